"""Which layers of a model need a high precision: models of mixed precision, and the search among them."""
