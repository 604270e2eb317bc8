"""The files and folders that a command names: among its words, inside them, and as modules of Python."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from biopsy.checks.command import CommandCheck
from biopsy.checks.words import names_path

_MOST_PIECES = 1000
"""Of one word; a script that is longer stands in the line itself, as do the files it names."""

_LONGEST_SPLIT = 1 << 16  # characters
_SEPARATORS = ";&|()<>"
"""What ends a word of a shell, besides spaces."""


def files_named_by(check: CommandCheck, candidate: Path) -> Iterator[Path]:
    """Files and folders among the words of a check, its program, and what is named inside a word.

    A word such as the script of ``sh -c 'python check.py'`` is split as a shell would; only files count in it, since a
    folder such as ``.`` is as a rule where something happens, and not what it depends on. The ``candidate`` is none.
    """
    program = shutil.which(check.words[0])
    words = [*check.words, *(word.partition("=")[2] for word in check.words), *([program] if program else [])]
    inner = [piece for word in check.words for piece in _pieces(word)]
    own = {str(candidate), check.default_name}
    for word in sorted(set(filter(None, words))):
        if not names_path(word, check.default_name) and word not in own and os.path.exists(word):  # noqa: PTH110 -- any word
            yield Path(word)
    for piece in sorted(set(inner) - set(words)):
        if not names_path(piece, check.default_name) and piece not in own and os.path.isfile(piece):  # noqa: PTH113 -- any word
            yield Path(piece)
    yield from _modules(check.words)
    for word in check.words:
        yield from _modules(list(_split(word)))


def _pieces(word: str) -> Iterator[str]:
    """The words inside a word, and what stands behind a ``=`` in them."""
    for piece in _split(word):
        yield piece
        if "=" in piece:
            yield piece.partition("=")[2]


def _split(word: str) -> Sequence[str]:
    """A word as a shell splits it; none where it is a single one, or no text for a shell."""
    if len(word) > _LONGEST_SPLIT or not any(letter.isspace() or letter in _SEPARATORS for letter in word):
        return ()
    lexer = shlex.shlex(word, posix=True, punctuation_chars=_SEPARATORS)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)[:_MOST_PIECES]
    except ValueError:  # quotes that do not end, as in a text of another language
        return word.split()[:_MOST_PIECES]


def _modules(words: Iterable[str]) -> Iterator[Path]:
    """The files of modules that stand behind ``-m`` and are the user's own: where Python looks before its packages.

    Of a package it is the whole folder, for the module as a rule imports what stands beside it.
    """
    for option, name in pairwise(words):
        if option == "-m" and all(part.isidentifier() for part in name.split(".")):
            yield from _found(name.split("."))


def _found(parts: Sequence[str]) -> Iterator[Path]:
    for place in ("", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))):
        folder, file = Path(place, parts[0]), Path(place, f"{parts[0]}.py")
        if folder.is_dir() and (len(parts) > 1 or (folder / "__main__.py").is_file()):
            yield folder
            return
        if len(parts) == 1 and file.is_file():
            yield file
            return
