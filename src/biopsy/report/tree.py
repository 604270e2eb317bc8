"""A report as plain values, and how much of a text it holds: names come from anybody, and may have megabytes."""

from __future__ import annotations

from typing import Any, TypeAlias

from biopsy.text import shortened

Tree: TypeAlias = dict[str, Any]
"""A part of a report: text, numbers, truth values, lists and objects, as JSON has them."""

LONGEST_TEXT = 4000
"""Characters of any text but a command line."""

_LONGEST_LINE = 100_000
_LINES = frozenset({"line"})
"""Keys of command lines: half a line is another one."""


def bounded(tree: Any, key: str = "") -> Any:
    """The same tree with every long text shortened, keys too; a command line that is too long becomes None."""
    if isinstance(tree, dict):
        return {shortened(name, LONGEST_TEXT): bounded(value, name) for name, value in tree.items()}
    if isinstance(tree, list):
        return [bounded(value, key) for value in tree]
    if not isinstance(tree, str):
        return tree
    if key in _LINES:
        return tree if len(tree) <= _LONGEST_LINE else None
    return shortened(tree, LONGEST_TEXT)
