"""Engines build and run models. Each is one file, with further files whose names begin with its own; the registry
loads them by name.
"""
