"""``biopsy surgeon ...``: change a model."""
