"""The questions of a diagnosis, one file each."""
