"""Command lines as a person can paste them into a shell, whatever the names in them hold."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from biopsy.text import printable

_MOST_SHOWN = 200


@dataclass(frozen=True)
class ListOption:
    """An option with all its values, which come from anywhere: none of them may become an option itself."""

    name: str
    values: Sequence[str]

    @property
    def words(self) -> list[str]:
        """The words that argparse reads this option from, even if its only value begins with a dash."""
        alone = len(self.values) == 1 and _has_dash(self.values)
        return [f"{self.name}={self.values[0]}"] if alone else [self.name, *self.values]


def line_of(words: Iterable[str | ListOption]) -> str:
    """The words as one line of bash or zsh; a comment that says why where no line can hold them.

    What no quotes can hold, controls, marks and names that are no Unicode, stands in ``$'...'``: it reads back as what
    was meant, and neither the terminal nor who pastes it takes it for something else. A NUL cannot be typed at all, nor
    can half a surrogate pair: such a thing must be renamed first. So must a value that begins with a dash, unless it is
    the only one of its option: argparse takes it for an option, and options read, write and run files.
    """
    typed: list[str] = []
    for word in words:
        if isinstance(word, str):
            typed.append(word)
            continue
        if (wrong := _misread(word.values)) is not None:
            return f"# {word.name} cannot be given {_shown(wrong)}, which would be taken for an option: rename it first"
        typed += word.words
    for wrong in typed:
        if not can_be_typed(wrong):
            return f"# no shell can be given {_shown(wrong)}: rename it first"
    return " ".join(map(_quoted, typed))


def more_values(option: str, values: Sequence[str]) -> str:
    """Values to type behind those that an option has already; a comment that says why where that is impossible."""
    if _has_dash(values):
        return line_of([ListOption(option, ["", *values])])
    return line_of(values)


def is_refused(line: str) -> bool:
    """Whether a line is only the comment that says why there is none."""
    return line.startswith("# ")


def _has_dash(values: Iterable[str]) -> bool:
    return any(value.startswith("-") for value in values)


def _misread(values: Sequence[str]) -> str | None:
    """The first value that no form gives an option: ``--option=-x`` has one value, and ``--`` is dropped even there."""
    return next((value for value in values if value.startswith("-") and (len(values) > 1 or value == "--")), None)


def _shown(word: str) -> str:
    """In quotes: zsh looks for what to run in comments too, when it is typed into."""
    text = printable(word)
    return shlex.quote(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}...")


def option_line(name: str, value: str) -> str:
    """An option with one value, such as ``--atol y:0.1``, which reads back as what was meant."""
    return line_of([ListOption(name, [value])])


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
