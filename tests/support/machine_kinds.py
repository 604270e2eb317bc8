"""Machines of other kinds: packages that only one of them has."""

from __future__ import annotations

from pathlib import Path


def installed(folder: Path, name: str, version: str) -> Path:
    """A folder for ``sys.path`` in which a package is installed that engines may load."""
    folder.mkdir(exist_ok=True)
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder
