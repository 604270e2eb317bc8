"""Values as Python writes them: names and numbers of strangers go into a script as these, and in no other way."""

from __future__ import annotations

import math
import pprint
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Literal: TypeAlias = "bool | int | float | str | Sequence[Literal] | Mapping[str, Literal] | None"
"""What can be written. Sequences become lists."""

_WIDTH = 110


def literal(value: Literal) -> str:
    """The value as an expression that gives it back, over several lines if it is long.

    What is not printable is escaped. Raises TypeError for anything that is none of these.
    """
    return pprint.pformat(_plain(value), width=_WIDTH, sort_dicts=False, compact=True)


def docstring(text: str) -> str:
    """The text, of lines of our own that may quote a stranger's name, between three quotes."""
    lines = (_escaped(line) for line in text.split("\n"))
    return '"""' + "\n".join(lines) + '"""'


def _escaped(line: str) -> str:
    quoted = line.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in quoted)


class _Expression(str):
    """Text that stands in a literal as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _plain(value: Literal) -> object:
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _Expression(f'float("{value}")')
    if isinstance(value, Mapping):
        return {_text(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [_plain(one) for one in value]
    raise TypeError(f"{type(value).__name__} is no literal")


def _text(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError("the key of a literal is text")
    return str(key)
