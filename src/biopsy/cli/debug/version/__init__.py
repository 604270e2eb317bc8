"""``biopsy debug version``: which release of a package broke a model, or mended it."""
