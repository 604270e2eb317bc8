"""``biopsy debug reduce``: the smallest part of a model that still fails the same way."""
