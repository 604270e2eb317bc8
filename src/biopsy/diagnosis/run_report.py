"""What the report of one ``biopsy run`` says, as far as a diagnosis needs it; and any other tree of the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from biopsy.filesystem.plain_file import read_plain

REPORT = "run.json"
"""The name of the file, in the folder of the evidence."""

_MOST_BYTES = 256 << 20


def tree_of(path: Path) -> dict[str, Any]:
    """The object in a file; an empty one where what makes it has ended before it was written, or it is too large."""
    try:
        tree = json.loads(read_plain(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def run_of(path: Path) -> dict[str, Any]:
    """What the report of a run says of engines and comparisons; nothing where it has ended before that was written."""
    found = tree_of(path).get("run")
    return found if isinstance(found, dict) else {}


def versions_in(tree: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The label of each engine that was run, and its version."""
    engines = tree.get("engines", [])
    return tuple((str(one["label"]), str(one["version"])) for one in engines if one.get("version"))


def nan_in(tree: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The outputs in which an engine gives NaN, and the engines that do; infinity alone may be meant."""
    odd = [one for one in tree.get("not_finite", []) if one.get("nan")]
    names = dict.fromkeys(str(one.get("output", one.get("name"))) for one in odd)
    return tuple(names), tuple(dict.fromkeys(str(one["engine"]) for one in odd))
