"""Reading report.json within bounds and by type: anybody may have written it, and any key may be absent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
        level = [below for each in level for below in _below(each)]
        if not level:
            return False
    return True


def _below(value: Any) -> list[Any]:
    children = value.values() if isinstance(value, dict) else value
    return [each for each in children if isinstance(each, dict | list)]


# Reading the tree of a report by type: anybody may have written it, and any key may be absent.

_NOT_FINITE = {"nan", "inf", "-inf"}
"""What the report writes for numbers that JSON lacks."""

_MOST_ENTRIES = 200_000
"""Of a list or an object that is read: ten times as many as any report has."""


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
        value = self._tree.get(key)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, bool | int | float):
            return _scalar_text(value)
        raise self._damaged(key, "a text")

    def number(self, key: str) -> float | None:
        """A number, which may be NaN or infinite."""
        return self._as_number(self._tree.get(key), key)

    def whole(self, key: str) -> int | None:
        """A whole number."""
        value = self._tree.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self._damaged(key, "a whole number")

    def flag(self, key: str) -> bool | None:
        """True or false."""
        value = self._tree.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self._damaged(key, "true or false")

    def part(self, key: str) -> Branch | None:
        """The object below a key."""
        value = self._tree.get(key)
        return None if value is None else self._as_branch(value, key)

    def parts(self, key: str) -> list[Branch]:
        """The objects of a list."""
        return [self._as_branch(each, f"{key}[{place}]") for place, each in enumerate(self._list(key))]

    def parts_by_name(self, key: str) -> dict[str, Branch]:
        """The objects of an object."""
        value = self._tree.get(key)
        below = {} if value is None else self._as_branch(value, key)._bounded(self, key)
        return {name: self._as_branch(each, f"{key}.{name}") for name, each in below.items()}

    def texts(self, key: str) -> list[str]:
        """The texts of a list; numbers and truth values are written out."""
        return [self._as_text(each, f"{key}[{place}]") for place, each in enumerate(self._list(key))]

    def texts_by_name(self, key: str) -> dict[str, str]:
        """An object of anything as texts: lists with commas, null as ""."""
        value = self._tree.get(key)
        below = {} if value is None else self._as_branch(value, key)._bounded(self, key)
        return {name: plain_text(each) for name, each in below.items()}

    def numbers(self, key: str) -> list[float]:
        """The numbers of a list."""
        found = [self._as_number(each, f"{key}[{place}]") for place, each in enumerate(self._list(key))]
        return [float("nan") if each is None else each for each in found]

    def wholes(self, key: str) -> list[int]:
        """The whole numbers of a list."""
        return self._wholes(self._list(key), key)

    def rows_of_wholes(self, key: str) -> list[list[int]]:
        """A list of lists of whole numbers."""
        rows = []
        for place, row in enumerate(self._list(key)):
            if not isinstance(row, list):
                raise self._damaged(f"{key}[{place}]", "a list")
            rows.append(self._wholes(row, f"{key}[{place}]"))
        return rows

    def rows_of_numbers(self, key: str) -> list[list[float]]:
        """A list of lists of numbers."""
        rows = []
        for place, row in enumerate(self._list(key)):
            if not isinstance(row, list):
                raise self._damaged(f"{key}[{place}]", "a list")
            found = [self._as_number(each, f"{key}[{place}]") for each in row]
            rows.append([float("nan") if each is None else each for each in found])
        return rows

    def numbers_by_name(self, key: str) -> dict[str, float]:
        """The numbers of an object; null ones are left out."""
        value = self._tree.get(key)
        below = {} if value is None else self._as_branch(value, key)._bounded(self, key)
        found = {name: self._as_number(each, f"{key}.{name}") for name, each in below.items()}
        return {name: each for name, each in found.items() if each is not None}

    def loose(self, key: str) -> str | None:
        """Whatever stands below a key as one text, as for shapes, indices and values; None for null."""
        value = self._tree.get(key)
        return None if value is None else plain_text(value)

    def _list(self, key: str) -> list[Any]:
        value = self._tree.get(key)
        if value is None:
            return []
        if isinstance(value, list):
            if len(value) > _MOST_ENTRIES:
                raise self._damaged(key, f"a list of at most {_MOST_ENTRIES} entries")
            return value
        raise self._damaged(key, "a list")

    def _bounded(self, above: Branch, key: str) -> Mapping[str, Any]:
        if len(self._tree) > _MOST_ENTRIES:
            raise above._damaged(key, f"an object of at most {_MOST_ENTRIES} entries")
        return self._tree

    def _as_branch(self, value: Any, key: str) -> Branch:
        if isinstance(value, Mapping):
            return Branch(value, self._path(key))
        raise self._damaged(key, "an object")

    def _as_text(self, value: Any, key: str) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, bool | int | float):
            return _scalar_text(value)
        raise self._damaged(key, "a text")

    def _as_number(self, value: Any, key: str) -> float | None:
        if value is None:
            return None
        is_text = isinstance(value, str) and value in _NOT_FINITE
        if is_text or (isinstance(value, int | float) and not isinstance(value, bool)):
            try:
                return float(value)
            except OverflowError:
                return float("inf") if value > 0 else float("-inf")
        raise self._damaged(key, "a number")

    def _wholes(self, values: list[Any], key: str) -> list[int]:
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in values):
            raise self._damaged(key, "a list of whole numbers")
        return values

    def _path(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key

    def _damaged(self, key: str, wanted: str) -> DamagedReport:
        return DamagedReport(f"its '{printable(shortened(self._path(key), 200))}' is not {wanted}")


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
