"""Files that a person may have meant by a name that is none."""

from __future__ import annotations

import os
from collections.abc import Collection
from itertools import islice
from pathlib import Path

from biopsy.similar_names import ask_for, similar

_MOST_LOOKED_AT = 10_000


def files_meant(path: Path, suffixes: Collection[str], what: str) -> list[str]:
    """What to say where nothing stands at ``path``: the files there that it may mean, else some of these suffixes.

    ``what``: what such files are called, in the plural.
    """
    if not path.parent.is_dir():
        return _folders_meant(path)
    near = similar_files(path, suffixes)
    if near:
        return ask_for([str(file) for file in near])
    others = _files(path.parent, suffixes)[:5]
    return [f"{what} there: {', '.join(map(str, others))}"] if others else []


def similar_files(path: Path, suffixes: Collection[str]) -> list[Path]:
    """The files of these suffixes beside ``path`` whose names are like its name."""
    files = _files(path.parent, suffixes)
    stems = similar(path.stem, {file.stem: None for file in files}, most=2, cutoff=0.6)
    return [file for stem in stems for file in files if file.stem == stem]


def _files(folder: Path, suffixes: Collection[str]) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in islice(entries, _MOST_LOOKED_AT))
    except OSError:
        return []
    files = [folder / name for name in names if not name.startswith(".")]
    return [file for file in files if file.suffix.lower() in suffixes]


def _folders_meant(path: Path) -> list[str]:
    folder = path.parent
    try:
        with os.scandir(folder.parent) as entries:
            names = [entry.name for entry in islice(entries, _MOST_LOOKED_AT) if entry.is_dir()]
    except OSError:
        return []
    near = similar(folder.name, sorted(names), most=1, cutoff=0.6)
    files = [folder.parent / name / path.name for name in near]
    return [*ask_for([str(file) for file in files if file.exists()]), f"there is no folder {folder}"]
