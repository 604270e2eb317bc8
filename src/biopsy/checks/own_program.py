"""Which programs are this one: ``biopsy``, and ``polygraphy`` where the alias is installed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from biopsy.isolation.interpreter import own_python

NAME, ALIAS = "biopsy", "polygraphy"

SETTINGS_VARIABLE, NO_SETTINGS = "BIOPSY_SETTINGS", "none"
"""With that value, a command of ours reads no settings files, nor does what it starts.

So is a check that is our own command: whoever runs it has added to its words what it is to have.
"""


def is_own_program(word: str) -> bool:
    """Whether a program is ours, typed as ``biopsy`` or as the alias, with or without a path."""
    name = Path(word).name
    return name == NAME or (name == ALIAS and _alias_installed())


def is_this_installation(word: str) -> bool:
    """Whether a program of our name is what runs here, and not another one of that name, named by its path."""
    if word == NAME:
        return True
    program = Path(shutil.which(word) or Path(sys.executable).with_name(word))
    try:
        return program.parent.samefile(Path(sys.executable).parent)
    except OSError:
        return False


def start_words(word: str) -> list[str]:
    """The words that start a program. ``biopsy`` is this very installation, also where it is not on the PATH."""
    if word == NAME:
        return own_python("biopsy.cli.app")
    if word == ALIAS and shutil.which(word) is None:
        beside = Path(sys.executable).with_name(word)
        return [str(beside)] if beside.exists() else [word]
    return [word]


def _alias_installed() -> bool:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution("polygraphy-is-biopsy")
    except PackageNotFoundError:
        return False
    return True
