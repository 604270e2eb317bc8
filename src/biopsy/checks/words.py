"""Paths as words of a command line."""

from __future__ import annotations

from pathlib import Path


def as_word(path: Path) -> str:
    """A path as a word that no program takes for an option, which Path makes of ``./-name``."""
    text = str(path)
    return f"./{text}" if text.startswith("-") else text


def output_word(name: str, model: Path) -> str:
    """A file name to suggest for an output: ``name``, or another one if that is the model itself."""
    path = Path(name)
    return f"{path.stem}_2{path.suffix}" if path.resolve() == model.resolve() else name


def names_path(word: str, path: str) -> bool:
    """Whether a word is a path, however it is spelled: ``./a`` is ``a``."""
    return word == path or (word[:1] == "." and str(Path(word)) == path)
