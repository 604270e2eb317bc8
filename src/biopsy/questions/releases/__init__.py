"""Which release of a package broke a model, or mended it: a check is run in environments with different releases."""
