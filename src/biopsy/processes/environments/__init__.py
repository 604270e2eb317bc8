"""Releases of packages, and the Python environments that hold them."""
