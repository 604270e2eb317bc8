"""Changes with which the whole model is right in the engine that must be used."""
