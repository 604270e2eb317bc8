"""``biopsy debug ...``: find what makes a model fail."""
