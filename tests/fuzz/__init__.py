"""Random models with random failures, reduced, and the results held to an oracle that shares no code with biopsy."""
