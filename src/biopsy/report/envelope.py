"""What every report begins with: the command, how it ended, when, on what. The schema: docs/reference/report.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from biopsy.comparison.json_report import plain
from biopsy.report.tree import Tree, bounded

VERSION = 2
"""Of the schema: it grows when a key changes its meaning or goes, not when one is added."""


@dataclass(frozen=True, kw_only=True)
class CommandRun:
    """A command and how it ended: its words, such as "debug reduce"; the whole line that repeats it; its exit status.

    ``began`` is in seconds since 1970, ``seconds`` is wall time.
    """

    command: str
    line: str
    status: int
    began: float
    seconds: float


def report_tree(run: CommandRun, sections: Mapping[str, Any]) -> Tree:
    """The whole report; sections that are None are left out, long texts are shortened."""
    head = {
        "biopsy_report": VERSION,
        "command": run.command,
        "line": run.line,
        "status": run.status,
        "created": datetime.fromtimestamp(run.began, UTC).isoformat(timespec="seconds"),
        "seconds": round(run.seconds, 3),
    }
    there = {key: value for key, value in sections.items() if value is not None}
    found: Tree = bounded(plain({**head, **there}))
    return found


def as_json(tree: Tree) -> bytes:
    """The report as it stands in a file."""
    return json.dumps(tree, indent=1, allow_nan=False).encode("ascii") + b"\n"
