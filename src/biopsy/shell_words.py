"""Command lines as a person can paste them into a shell, whatever the names in them hold."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from biopsy.text import printable


def line_of(words: Sequence[str]) -> str:
    """The words as one line of bash or zsh; a comment that says why where no line can hold them.

    What no quotes can hold, controls, marks and names that are no Unicode, stands in ``$'...'``: it reads back as what
    was meant, and neither the terminal nor who pastes it takes it for something else. A NUL cannot be typed at all, nor
    can half a surrogate pair: such a thing must be renamed first.
    """
    if any(not can_be_typed(word) for word in words):
        wrong = next(word for word in words if not can_be_typed(word))
        return f"# no shell can be given {printable(wrong)}: rename it first"
    return " ".join(map(_quoted, words))


def option_line(name: str, value: str) -> str:
    """An option with one value, such as ``--atol y:0.1``, which reads back as what was meant."""
    # argparse takes a value that looks like an option for one, unless it stands in the same word
    return line_of([f"{name}={value}"] if value.startswith("-") else [name, value])


def can_be_typed(word: str) -> bool:
    """Whether a program can be given a word at all."""
    try:
        return b"\0" not in word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def _quoted(word: str) -> str:
    if word == "{}":  # which means nothing to a shell
        return word
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word.encode('utf-8', 'surrogateescape')))}'"


def _escaped(byte: int) -> str:
    if byte in b"\\'":
        return f"\\{chr(byte)}"
    plain = 32 <= byte < 127 and byte not in b"!"  # which some shells look for in any quotes
    return chr(byte) if plain else f"\\x{byte:02x}"  # bash reads two digits at most
