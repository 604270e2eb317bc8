"""``biopsy data ...``: files of inputs and outputs."""
