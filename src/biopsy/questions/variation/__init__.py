"""What may vary in a small failing model, and what must be as it is."""
