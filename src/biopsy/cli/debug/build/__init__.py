"""``biopsy debug build``: build a model again and again, and sort the builds by a check."""
