"""The options that every command of ours has, where they stand before its words: ``biopsy -v debug reduce``."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
            place = _end_of_values(words, place)
        elif _SWITCH.fullmatch(word):
            place += 1
        else:
            break
    return list(words[:place]), list(words[place:])


def _end_of_values(words: Sequence[str], place: int) -> int:
    option, end = words[place], place + 2
    while end < len(words) and _is_value(option, words[end]):
        end += 1
    return min(end, len(words))


def _is_value(option: str, word: str) -> bool:
    if option == "--log-format":
        return word in FORMATS
    return option == "--verbosity" and word.rpartition(":")[2].upper() in LEVELS
