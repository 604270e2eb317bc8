"""The questions of a diagnosis, a file for each kind; ``evidence.PLAN`` has their order."""
