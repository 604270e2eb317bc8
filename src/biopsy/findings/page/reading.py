"""Reading report.json within bounds and by type: anybody may have written it, and any key may be absent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from biopsy import errors
from biopsy.processes.reading import read_plain
from biopsy.text import printable, shortened

VERSION = 2
"""Of the reports that can be read."""

_LARGEST = 64 << 20
_DEEPEST = 64
"""Objects and lists in each other; a report of ours has less than twenty."""


def read_report(path: Path) -> Mapping[str, Any]:
    """The tree of a report. Raises UsageError if the file is none, or one that cannot be read."""
    try:
        data = read_plain(path, _LARGEST, follow=True)
    except OSError as error:
        raise errors.UsageError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        why = "its lists are nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise errors.UsageError(f"{path} is no report: it is no JSON ({printable(shortened(why, 200))})") from error
    if not isinstance(tree, dict) or "biopsy_report" not in tree:
        raise errors.UsageError(f"{path} is no report of biopsy: it has no key 'biopsy_report'", next_steps=_MAKE_ONE)
    found = tree["biopsy_report"]
    if found != VERSION or isinstance(found, bool):
        shown = printable(shortened(repr(found), 40))
        newer = isinstance(found, int) and found > VERSION
        raise errors.UsageError(
            f"{path} is a report of version {shown}, not {VERSION}",
            next_steps=["pip install --upgrade biopsy"] if newer else _MAKE_ONE,
        )
    if _is_deep(tree):
        raise errors.UsageError(f"{path} is no report: its lists and objects are nested too deeply")
    return tree


_MAKE_ONE = ("any command with --report FILE.json writes a report",)


def _is_deep(tree: Any) -> bool:
    """Whether something is nested deeper than in any report, found without recursion."""
    level = [tree]
    for _ in range(_DEEPEST):
        children = [each for value in level for each in (value.values() if isinstance(value, dict) else value)]
        level = [each for each in children if isinstance(each, dict | list)]
        if not level:
            return False
    return True


_NOT_FINITE = {"nan", "inf", "-inf"}
"""What the report writes for numbers that JSON lacks."""

_MOST_ENTRIES = 200_000
"""Of a list or an object that is read: ten times as many as any report has."""

Value = TypeVar("Value")


class DamagedReport(errors.UsageError):
    """A key of a report holds something else than its kind of value."""


class Branch:
    """An object within the tree of a report. ``place`` is where it stands, for messages.

    What is absent or null reads as None, or as an empty list. What is of another type than the one asked for raises
    DamagedReport.
    """

    def __init__(self, tree: Mapping[str, Any], place: str = "") -> None:
        self._tree = tree
        self._place = place

    def __contains__(self, key: str) -> bool:
        return self._tree.get(key) is not None

    def text(self, key: str) -> str | None:
        """A text; a number or a truth value is written out."""
        return self._read(key, self._text)

    def number(self, key: str) -> float | None:
        """A number, which may be NaN or infinite."""
        return self._read(key, self._number)

    def whole(self, key: str) -> int | None:
        """A whole number."""
        return self._read(key, self._whole)

    def flag(self, key: str) -> bool | None:
        """True or false."""
        return self._read(key, self._flag)

    def part(self, key: str) -> Branch | None:
        """The object below a key."""
        return self._read(key, self._branch)

    def parts(self, key: str) -> list[Branch]:
        """The objects of a list."""
        return self._read_list(key, self._branch)

    def parts_by_name(self, key: str) -> dict[str, Branch]:
        """The objects of an object."""
        return {name: self._branch(each, f"{key}.{name}") for name, each in self._entries(key)}

    def texts(self, key: str) -> list[str]:
        """The texts of a list; numbers and truth values are written out."""
        return self._read_list(key, self._text)

    def texts_by_name(self, key: str) -> dict[str, str]:
        """An object of anything as texts: lists with commas, null as ""."""
        return {name: plain_text(each) for name, each in self._entries(key)}

    def numbers(self, key: str) -> list[float]:
        """The numbers of a list, NaN for null."""
        return self._read_list(key, self._number_or_nan)

    def wholes(self, key: str) -> list[int]:
        """The whole numbers of a list."""
        return self._read(key, self._wholes) or []

    def rows_of_wholes(self, key: str) -> list[list[int]]:
        """A list of lists of whole numbers."""
        return self._read_list(key, self._wholes)

    def rows_of_numbers(self, key: str) -> list[list[float]]:
        """A list of lists of numbers, NaN for null."""
        return self._read_list(key, self._row_of_numbers)

    def numbers_by_name(self, key: str) -> dict[str, float]:
        """The numbers of an object; null ones are left out."""
        return {name: self._number(each, f"{key}.{name}") for name, each in self._entries(key) if each is not None}

    def loose(self, key: str) -> str | None:
        """Whatever stands below a key as one text, as for shapes, indices and values; None for null."""
        value = self._tree.get(key)
        return None if value is None else plain_text(value)

    def _read(self, key: str, kind: Callable[[Any, str], Value]) -> Value | None:
        value = self._tree.get(key)
        return None if value is None else kind(value, key)

    def _read_list(self, key: str, kind: Callable[[Any, str], Value]) -> list[Value]:
        values = self._read(key, self._list) or []
        return [kind(each, f"{key}[{place}]") for place, each in enumerate(values)]

    def _list(self, value: Any, key: str) -> list[Any]:
        if not isinstance(value, list):
            raise self._damaged(key, "a list")
        if len(value) > _MOST_ENTRIES:
            raise self._damaged(key, f"a list of at most {_MOST_ENTRIES} entries")
        return value

    def _entries(self, key: str) -> Iterable[tuple[str, Any]]:
        """The entries of an object by name."""
        value = self._tree.get(key)
        tree = {} if value is None else self._branch(value, key)._tree
        if len(tree) > _MOST_ENTRIES:
            raise self._damaged(key, f"an object of at most {_MOST_ENTRIES} entries")
        return tree.items()

    def _branch(self, value: Any, key: str) -> Branch:
        if isinstance(value, Mapping):
            return Branch(value, f"{self._place}.{key}" if self._place else key)
        raise self._damaged(key, "an object")

    def _text(self, value: Any, key: str) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, bool | int | float):
            return _scalar_text(value)
        raise self._damaged(key, "a text")

    def _flag(self, value: Any, key: str) -> bool:
        if isinstance(value, bool):
            return value
        raise self._damaged(key, "true or false")

    def _whole(self, value: Any, key: str) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise self._damaged(key, "a whole number")

    def _number(self, value: Any, key: str) -> float:
        is_text = isinstance(value, str) and value in _NOT_FINITE
        if is_text or (isinstance(value, int | float) and not isinstance(value, bool)):
            try:
                return float(value)
            except OverflowError:
                return float("inf") if value > 0 else float("-inf")
        raise self._damaged(key, "a number")

    def _wholes(self, value: Any, key: str) -> list[int]:
        numbers = self._list(value, key)
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in numbers):
            raise self._damaged(key, "a list of whole numbers")
        return numbers

    def _row_of_numbers(self, value: Any, key: str) -> list[float]:
        return [self._number_or_nan(each, key) for each in self._list(value, key)]

    def _number_or_nan(self, value: Any, key: str) -> float:
        return float("nan") if value is None else self._number(value, key)

    def _damaged(self, key: str, wanted: str) -> DamagedReport:
        place = f"{self._place}.{key}" if self._place else key
        return DamagedReport(f"its '{printable(shortened(place, 200))}' is not {wanted}")


def plain_text(value: Any) -> str:
    """Any part of a tree as a short text: ``[1, N, ?]`` for a shape, ``a: 1, b: 2`` for an object."""
    if isinstance(value, list):
        return f"[{', '.join(plain_text(each) if each is not None else '?' for each in value)}]"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {plain_text(each)}" for name, each in value.items() if each is not None)
    return "" if value is None else value if isinstance(value, str) else _scalar_text(value)


def _scalar_text(value: float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
