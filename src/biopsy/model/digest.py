"""The identity of a model's file."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits. It is read in pieces; weights in other files do not count."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
