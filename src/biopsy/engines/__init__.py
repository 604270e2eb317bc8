"""Engines: what builds or runs a model. Each is one file, and further ones that begin with its name; only the registry
loads them, by name.
"""
