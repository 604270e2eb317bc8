"""Which programs are this one, ``biopsy`` or its alias, and the options that each of its commands has before its
words. Light: every command imports it at its start.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from biopsy.processes.own_process import own_python

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


# The options that every command of ours has, where they stand before its words: ``biopsy -v debug reduce``.

LEVELS = {
    "ULTRA_VERBOSE": 4,
    "SUPER_VERBOSE": 3,
    "EXTRA_VERBOSE": 2,
    "VERBOSE": 1,
    "INFO": 0,
    "START": -1,
    "FINISH": -2,
    "WARNING": -3,
    "ERROR": -4,
    "CRITICAL": -5,
}
"""The levels of ``--verbosity``, as Polygraphy names them -> how many times ``-v``, or ``-q`` if negative."""

FORMATS = ("timestamp", "line-info", "no-colors")
"""What ``--log-format`` takes."""

HELP = ("-h", "--help")
VERSION = ("-V", "--version")

_SWITCH = re.compile(r"-[vqhV]+|--verbose|--quiet|--silent|--help|--version|--(verbosity|log-format|log-file)=.*", re.S)
_WITH_VALUES = ("--verbosity", "--log-format", "--log-file")


def split_leading(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The common options that words begin with, and the words behind them.

    An option that takes several values takes one in any case, and more of them as long as they are values of it: what
    comes behind is the name of a command.
    """
    place = 0
    while place < len(words):
        word = words[place]
        if word in _WITH_VALUES:
            option, end = words[place], place + 2
            while end < len(words) and _is_value(option, words[end]):
                end += 1
            place = min(end, len(words))
        elif _SWITCH.fullmatch(word):
            place += 1
        else:
            break
    return list(words[:place]), list(words[place:])


def _is_value(option: str, word: str) -> bool:
    if option == "--log-format":
        return word in FORMATS
    return option == "--verbosity" and word.rpartition(":")[2].upper() in LEVELS
