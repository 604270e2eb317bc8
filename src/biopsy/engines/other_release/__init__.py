"""Engines with another release of their package, which is imported in another Python environment.

The engine itself runs here, with its options, failures, layers and remarks; only the objects of its package are in the
other interpreter. ``runner`` is a small script there that works on them; ``classes`` has stand-ins for them here. So
one implementation of an engine serves every release.
"""
