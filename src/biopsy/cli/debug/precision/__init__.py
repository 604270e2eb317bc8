"""``biopsy debug precision``: which layers need a high precision."""
