"""``biopsy debug transform``: what a simplifier, an optimizer, a quantizer or a converter breaks in a model."""
