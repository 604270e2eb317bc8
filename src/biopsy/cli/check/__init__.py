"""``biopsy check``: what is wrong with a model."""
