"""Finding changes with which a failing model is right in the engine that must be used."""
