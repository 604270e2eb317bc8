"""What every report begins with: the command, how it ended, when and on what; and the sections of ``biopsy run``.
The schema: docs/reference/report.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from biopsy import errors
from biopsy.comparison.describe import noise_tree, not_finite_tree, run_tree
from biopsy.comparison.metrics import NotFinite
from biopsy.comparison.noise import NoiseReport
from biopsy.comparison.runs import RunComparison
from biopsy.engines.base import Engine
from biopsy.findings.page.reading import VERSION
from biopsy.findings.report import Tree, bounded
from biopsy.records import plain


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
    tree: Tree = bounded(plain({**head, **there}))
    return tree


def as_json(tree: Tree) -> bytes:
    """The report as it stands in a file."""
    return json.dumps(tree, indent=1, allow_nan=False).encode("ascii") + b"\n"


# The sections of ``biopsy run``: engines, comparisons, what noise says, NaN and infinity.


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """What became of one engine: seconds of each iteration, None where not measured, or how it failed."""

    engine: Engine
    seconds: Sequence[float | None] = ()
    remarks: Sequence[str] = ()
    failure: errors.EngineFailure | None = None

    @property
    def version(self) -> str | None:
        """The version of its package; None of one that has crashed: to ask it could crash this process too."""
        return None if isinstance(self.failure, errors.EngineCrash) else self.engine.version()


def run_section(
    engines: Sequence[EngineRun],
    compared: Sequence[RunComparison] = (),
    noise: Sequence[NoiseReport] = (),
    not_finite: Sequence[tuple[str, NotFinite]] = (),
) -> Tree:
    """The key ``run``; ``not_finite`` are found with the label of their engine."""
    return {
        "engines": [
            {
                "label": run.engine.label,
                "name": run.engine.name,
                "version": run.version,
                "seconds": list(run.seconds),
                "remarks": list(run.remarks),
                "failure": run.failure and {key: getattr(run.failure, key) for key in ("stage", "kind", "message")},
            }
            for run in engines
        ],
        "comparisons": [run_tree(each) for each in compared],
        "noise": [noise_tree(each) for each in noise],
        "not_finite": [not_finite_tree(engine, odd) for engine, odd in not_finite],
    }
