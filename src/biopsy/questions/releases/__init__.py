"""Which release of a package broke a model, or mended it: a check is asked in environments that hold releases."""
