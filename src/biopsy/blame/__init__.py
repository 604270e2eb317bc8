"""Which release of a package, or which transformation of a model, a failure comes from."""
