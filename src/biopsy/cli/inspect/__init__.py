"""``biopsy inspect ...``: show what a file holds."""
