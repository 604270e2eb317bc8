"""Files that the words of a command name, and other files in their place."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import AnyStr

from biopsy.checks.words import as_word, names_path

_PLAIN = re.compile(r"[\w./+-]+")
"""A path that no shell reads as anything else: it may be found within the code of one."""
_BEFORE = r"(?<![^\s\"'=:,;<>()|&@])(?:\./+)*"
_AFTER = r"(?![^\s\"':,;<>()|&])"
"""What may stand around a path within a word."""


def is_named(path: Path, words: Sequence[str]) -> bool:
    """Whether words name a file, each time so that ``with_files`` can put another in its place.

    They do not if its name is also met otherwise, such as behind a variable: what reads it there would read a file of
    another run.
    """
    left = with_files(words, {path: Path("other")})
    if left == tuple(words):
        return False
    elsewhere = re.compile(rf"(?<![\w.-]){re.escape(path.name)}(?![\w.-])")
    return not any(elsewhere.search(word) for word in left)


def with_files(words: Iterable[str], files: Mapping[Path, Path]) -> tuple[str, ...]:
    """Words with other ``files`` in place of those that they name: as a word, behind ``=``, or within shell code."""
    others = {str(path): as_word(other) for path, other in files.items()}
    plain = [re.escape(path) for path in others if _PLAIN.fullmatch(path)]
    within = re.compile(f"{_BEFORE}({'|'.join(plain)}){_AFTER}") if plain else None
    return tuple(_with_files(word, others, within) for word in words)


def _with_files(word: str, others: Mapping[str, str], within: re.Pattern[str] | None) -> str:
    option, equals, value = word.partition("=")
    for path, other in others.items():
        if names_path(word, path):
            return other
        if equals and names_path(value, path):
            return f"{option}={other}"
    return within.sub(lambda found: others[found[1]], word) if within else word


def names_undone(text: AnyStr, files: Mapping[Path, Path]) -> AnyStr:
    """What a program said, as if it had been told the files themselves and not the others in their place."""
    for path, other in files.items():
        text = _renamed(text, other.name, path.name)
    return text


def _renamed(text: AnyStr, name: str, instead: str) -> AnyStr:
    pattern = rf"(?<![\w.-]){re.escape(name)}(?![\w-])"
    if isinstance(text, str):
        return re.sub(pattern, lambda _: instead, text)
    return re.sub(os.fsencode(pattern), lambda _: os.fsencode(instead), text)
