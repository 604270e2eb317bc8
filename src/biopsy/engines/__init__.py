"""Engines: what builds or runs a model. One file per engine; only the registry loads them, by name."""
