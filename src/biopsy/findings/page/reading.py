"""Reading report.json with checks of types and sizes, since it may come from a stranger; any key may be absent."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from biopsy import errors
from biopsy.processes.reading import read_plain
from biopsy.text import printable, shortened

VERSION = 2
"""The version of the schema; it grows when a key changes its meaning or is removed, not when one is added."""

_LARGEST = 64 << 20  # bytes
_DEEPEST = 64
"""Levels of nested objects and lists; biopsy's own reports have fewer than twenty."""

_MOST_ENTRIES = 200_000
"""Entries of a list or an object; biopsy's own reports have at most a tenth."""

_GREATEST = sys.float_info.max
Value = TypeVar("Value")

_MAKE_ONE = ("any command with --report FILE.json writes a report",)


def read_report(path: Path) -> Mapping[str, Any]:
    """The tree of a report. Raises UsageError if the file is not a report or cannot be read."""
    try:
        tree = json.loads(read_plain(path, _LARGEST, follow=True))
    except OSError as error:
        raise errors.UsageError(f"cannot read {path}: {error.strerror or error}", next_steps=_MAKE_ONE) from error
    except (ValueError, RecursionError) as error:
        why = "its lists are nested too deeply" if isinstance(error, RecursionError) else str(error)
        why = "it is not text" if isinstance(error, UnicodeDecodeError) else why
        summary = f"{path} is not a report: it is not JSON ({printable(shortened(why, 200))})"
        raise errors.UsageError(summary, next_steps=_MAKE_ONE) from error
    if not isinstance(tree, dict) or "biopsy_report" not in tree:
        raise errors.UsageError(
            f"{path} is not a report of biopsy: it has no key 'biopsy_report'", next_steps=_MAKE_ONE
        )
    version = tree["biopsy_report"]
    if version != VERSION or isinstance(version, bool):
        newer = isinstance(version, int) and version > VERSION
        raise errors.UsageError(
            f"{path} is a report of version {printable(shortened(repr(version), 40))}, not {VERSION}",
            next_steps=["pip install --upgrade biopsy"] if newer else _MAKE_ONE,
        )
    level: list[Any] = [tree]
    for _ in range(_DEEPEST):  # without recursion
        children = [each for value in level for each in (value.values() if isinstance(value, dict) else value)]
        level = [each for each in children if isinstance(each, dict | list)]
    if level:
        raise errors.UsageError(f"{path} is not a report: its lists and objects are nested too deeply")
    return tree


class DamagedReport(errors.UsageError):
    """A key of a report holds a value of the wrong kind."""


class Branch:
    """An object in the tree of a report, at ``place`` (for messages).

    A key that is absent or null reads as None or as an empty list. A value of another type than the one that the method
    reads raises DamagedReport.
    """

    def __init__(self, tree: Mapping[str, Any], place: str = "") -> None:
        self._tree = tree
        self._place = place

    def __contains__(self, key: str) -> bool:
        return self._tree.get(key) is not None

    def text(self, key: str) -> str:
        """A text, "" for none; a number or a truth value is written out."""
        return self._read(key, str) or ""

    def number(self, key: str) -> float | None:
        """A number, which may be NaN or infinite."""
        return self._read(key, float)

    def whole(self, key: str) -> int | None:
        """A whole number."""
        return self._read(key, int)

    def flag(self, key: str) -> bool | None:
        """True or false."""
        return self._read(key, bool)

    def part(self, key: str) -> Branch | None:
        """The object below a key."""
        return self._read(key, Branch)

    def child(self, key: str) -> Branch:
        """The object below a key; an empty one if there is none."""
        return self.part(key) or Branch({})

    def parts(self, key: str) -> list[Branch]:
        """The objects of a list."""
        return self._list(key, Branch)

    def parts_by_name(self, key: str) -> dict[str, Branch]:
        """The objects of an object."""
        return {name: self._value(each, Branch, f"{key}.{name}") for name, each in self._entries(key)}

    def texts(self, key: str) -> list[str]:
        """The texts of a list; numbers and truth values are written out."""
        return self._list(key, str)

    def texts_by_name(self, key: str) -> dict[str, str]:
        """An object of anything as texts: lists with commas, null as ""."""
        return {name: plain_text(each) for name, each in self._entries(key)}

    def numbers(self, key: str) -> list[float]:
        """The numbers of a list, NaN for null."""
        return self._list(key, float)

    def wholes(self, key: str) -> list[int]:
        """The whole numbers of a list."""
        return self._list(key, int)

    def rows(self, key: str, kind: type) -> list[list[Any]]:
        """A list of lists of numbers of a kind, NaN for null."""
        return [[self._value(each, kind, key) for each in row] for row in self._list(key, list)]

    def numbers_by_name(self, key: str) -> dict[str, float]:
        """The numbers of an object; null ones are left out."""
        entries = ((name, each) for name, each in self._entries(key) if each is not None)
        return {name: self._value(each, float, f"{key}.{name}") for name, each in entries}

    def loose(self, key: str) -> str:
        """A value of any type, such as a shape, an index or values, as one text; "" for null."""
        return plain_text(self._tree.get(key))

    def _read(self, key: str, kind: type[Value]) -> Value | None:
        value = self._tree.get(key)
        return None if value is None else self._value(value, kind, key)

    def _list(self, key: str, kind: type[Value]) -> list[Value]:
        values = self._read(key, list) or []
        return [self._value(each, kind, f"{key}[{place}]") for place, each in enumerate(values)]

    def _entries(self, key: str) -> Iterable[tuple[str, Any]]:
        tree = self._read(key, dict) or {}
        return tree.items()

    def _value(self, value: Any, kind: type[Value], key: str) -> Value:
        """A value converted to ``kind``. Raises DamagedReport if it is of another type."""
        (types, wanted), typed = _KINDS[kind], value
        is_kind = isinstance(value, types) and not (kind in (int, float) and isinstance(value, bool))
        if kind is float and (value is None or value in _NOT_FINITE):
            typed = float(value or "nan")
        elif not is_kind:
            raise self._damaged(key, wanted)
        elif isinstance(value, Mapping | list) and len(value) > _MOST_ENTRIES:
            raise self._damaged(key, f"{wanted} of at most {_MOST_ENTRIES} entries")
        elif kind is Branch:
            typed = Branch(value, f"{self._place}.{key}" if self._place else key)
        elif kind is float and abs(value) > _GREATEST:
            typed = float("inf") if value > 0 else float("-inf")
        elif kind in (str, float):
            typed = plain_text(value) if kind is str else float(value)
        return cast(Value, typed)

    def _damaged(self, key: str, wanted: str) -> DamagedReport:
        place = f"{self._place}.{key}" if self._place else key
        return DamagedReport(f"its '{printable(shortened(place, 200))}' is not {wanted}")


_NOT_FINITE = ("nan", "inf", "-inf")
"""The texts in a report for numbers that JSON lacks."""

_KINDS: Mapping[type, tuple[tuple[type, ...], str]] = {
    str: ((str, bool, int, float), "a text"),
    float: ((int, float), "a number"),
    int: ((int,), "a whole number"),
    bool: ((bool,), "true or false"),
    list: ((list,), "a list"),
    dict: ((Mapping,), "an object"),
    Branch: ((Mapping,), "an object"),
}
"""The types in a report that are accepted for each kind of value, and the name of the kind in messages."""


def nodes_of(report: Mapping[str, Any]) -> list[str]:
    """The nodes of the failing piece in order, by operator and name; none if the report has no piece."""
    nodes = Branch(report).child("piece").parts("nodes")
    return [f"{node.text('op_type')} {node.text('name')!r}" for node in nodes]


def plain_text(value: Any) -> str:
    """Any value of a tree as a short text: ``[1, N, ?]`` for a shape, ``a: 1, b: 2`` for an object."""
    if isinstance(value, list):
        return f"[{', '.join(plain_text(each) if each is not None else '?' for each in value)}]"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {plain_text(each)}" for name, each in value.items() if each is not None)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
