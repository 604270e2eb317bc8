"""Releases of packages, and the Python environments that hold them."""

import re


def normalized(name: str) -> str:
    """The name of a distribution as an index has it: small letters, and single dashes between its words (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
