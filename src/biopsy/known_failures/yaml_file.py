"""Reading YAML that a stranger may have written: texts, lists and mappings of them, and nothing else.

Every plain value stays the text that it is: a release 1.20 is no number and "no" is no truth value. Anchors, aliases
and tags are refused, so that nothing small becomes large and nothing is made of it but plain values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.filesystem.plain_file import read_plain
from biopsy.text import first_line

MOST_BYTES = 1 << 20
_DEEPEST = 8
_MOST_EVENTS = 20_000


def read_yaml(path: Path) -> Any:
    """What a file holds. Raises DataError, in one line that names the file, for anything that is not allowed."""
    try:
        text = read_plain(path, MOST_BYTES).decode("utf-8")
    except OSError as error:
        raise errors.DataError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise errors.DataError(f"{path}: it is no UTF-8 text") from error
    try:
        return value_in(text)
    except ValueError as error:
        raise errors.DataError(f"{path}: {error}") from error


def value_in(text: str) -> Any:
    """What a text holds. Raises ValueError, in one line, for what is no YAML or is not allowed in ours."""
    import yaml

    loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        _require_plain(yaml, yaml.parse(text, Loader=loader))
        return yaml.load(text, Loader=_without_repeated_keys(loader))  # noqa: S506 -- BaseLoader makes texts alone
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise ValueError(f"{where}{getattr(error, 'problem', None) or first_line(str(error))}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _require_plain(yaml: Any, events: Any) -> None:
    depth = 0
    for number, event in enumerate(events):
        line = event.start_mark.line + 1
        if number > _MOST_EVENTS:
            raise ValueError(f"line {line}: it has more than {_MOST_EVENTS:,} parts")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise ValueError(f"line {line}: anchors and aliases (& and *) are not allowed")
        if getattr(event, "tag", None) is not None:
            raise ValueError(f"line {line}: tags (!) are not allowed")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"line {line}: it is nested more than {_DEEPEST} deep")


def _without_repeated_keys(loader: Any) -> Any:
    """A loader that refuses a mapping with the same key twice, of which others keep the last."""

    class Strict(loader):  # type: ignore[misc]  # which one is known at run time
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value]
            repeated = next((key for number, key in enumerate(keys) if key in keys[:number]), None)
            if repeated is not None:
                raise ValueError(f"line {node.start_mark.line + 1}: the key {repeated!r:.60} stands there twice")
            return super().construct_mapping(node, deep=deep)

    return Strict
