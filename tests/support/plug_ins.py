"""Engines in packages of their own, as entry points: for what no engine that is installed does."""

from pathlib import Path


def install(folder: Path, name: str, module: str, entry_points: str) -> None:
    """What pip does with a package of one module: the module, and the metadata that entry points are found in."""
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[biopsy.engines]\n{entry_points}\n")
    (folder / f"{name.replace('-', '_')}.py").write_text(module)
