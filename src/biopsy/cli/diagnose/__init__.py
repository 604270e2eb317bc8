"""``biopsy diagnose``."""
