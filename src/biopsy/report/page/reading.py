"""Reading report.json: a file that anybody may have written, within bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.filesystem.plain_file import read_plain
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
