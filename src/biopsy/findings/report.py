"""The report of a command: its head (command, status, time, machine), the bounds of its values, and the course of a
search, collected from its events.

The schema is in docs/reference/report.md.
"""

from __future__ import annotations

import contextlib
import json
import platform
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, TypeAlias

from biopsy import errors, events
from biopsy.engines.registry import class_of, parse_spec
from biopsy.findings.page.reading import VERSION
from biopsy.records import plain
from biopsy.session.conditions import hardware
from biopsy.text import shortened

Tree: TypeAlias = dict[str, Any]
"""An object of a report, of values that JSON has."""

LONGEST_TEXT = 4000
"""Characters of any text but a command line."""

_LONGEST_LINE = 100_000


def bounded(tree: Any, key: str = "") -> Any:
    """The same tree with every long text and key shortened.

    A command line (``key`` is "line") that is too long becomes None, because half a line is another command.
    """
    if isinstance(tree, dict):
        return {shortened(name, LONGEST_TEXT): bounded(value, name) for name, value in tree.items()}
    if isinstance(tree, list):
        return [bounded(value, key) for value in tree]
    if not isinstance(tree, str):
        return tree
    if key == "line":
        return tree if len(tree) <= _LONGEST_LINE else None
    return shortened(tree, LONGEST_TEXT)


def report_tree(
    command: str, line: str | None, *, status: int, began: float, seconds: float, sections: Mapping[str, Any]
) -> Tree:
    """The whole report of a command. Sections that are None are left out, long texts are shortened.

    ``command`` is its name, such as "debug reduce"; ``line`` is the command line that repeats it, None for a
    call from Python; ``status`` is its exit status. ``began`` is in seconds since 1970, ``seconds`` is wall time.
    """
    head = {
        "biopsy_report": VERSION,
        "command": command,
        "line": line,
        "status": status,
        "created": datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
    }
    tree: Tree = bounded(plain({**head, **{key: value for key, value in sections.items() if value is not None}}))
    return tree


def as_json(tree: Tree) -> bytes:
    """The bytes of a report's file."""
    return json.dumps(tree, indent=1, allow_nan=False).encode("ascii") + b"\n"


_PACKAGES = (
    "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt", "tensorrt-rtx-cu13", "ml_dtypes",
    "onnxscript", "torch",
)  # fmt: skip
"""Distributions whose version may change a result."""


def versions_tree(engines: Iterable[str] = ()) -> Tree:
    """The versions of packages and engines, and the facts of this machine.

    ``engines`` are the specs of the engines that took part. Asking an engine for its version imports its package.
    """
    packages = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    trees = []
    for label in dict.fromkeys(engines):
        tree: Tree = {"label": label, "name": label.partition(":")[0], "version": None}
        with contextlib.suppress(errors.BiopsyError):
            spec = parse_spec(label)
            engine = class_of(spec)
            tree |= {"name": spec.name, "version": engine.version()}
            tree |= {"environment": elsewhere} if (elsewhere := dict(engine.imports.facts())) else {}
        trees.append(tree)
    return {
        "biopsy": metadata.version("biopsy"),
        "python": platform.python_version(),
        "packages": packages,
        "engines": trees,
        **machine_tree(),
    }


def machine_tree() -> Tree:
    """The system, the processor and its features, the first graphics card and its driver; None where unknown."""
    machine = hardware()
    return {
        "os": platform.platform(terse=True),
        "cpu": machine.processor,
        "cpu_features": list(machine.features),
        "gpu": machine.graphics[0] if machine.graphics else None,
        "driver": machine.driver,
    }


MOST_CHECKS = 4000
"""The most checks that are listed, half of them the first ones and half the last ones; all are counted."""

_LONGEST_REASON = 300
_MOST_PASSES = 2000


class SearchHistory:
    """A listener that keeps what the report says about a search; ``started`` is a time of ``time.monotonic``."""

    def __init__(self, started: float | None = None) -> None:
        self._started = time.monotonic() if started is None else started
        self._announced: dict[int, tuple[str, int | None]] = {}
        """The description of each running check, and how many nodes the candidate has; by the check's number."""
        self._passes: list[Tree] = []
        self._first: list[Tree] = []
        self._last: deque[Tree] = deque(maxlen=MOST_CHECKS // 2)
        self._outcomes: Counter[str] = Counter()
        self._facts: Tree = {}
        self._flaky_beside = ""

    def __call__(self, event: events.Event) -> None:
        """Record one event."""
        match event:
            case events.Checking():
                nodes = event.nodes if isinstance(event, events.CheckingCandidate) else None
                self._announced[event.number] = shortened(event.description, _LONGEST_REASON), nodes
            case events.Checked():
                self._checked(event)
            case events.Abandoned():
                self._announced.pop(event.number, None)
            case events.StageDone() if len(self._passes) < _MOST_PASSES:
                sizes = {key: getattr(event, key, None) for key in ("before", "after")}
                seconds = round(event.seconds, 4)
                self._passes.append({"stage": event.stage, **sizes, "checks": event.checks, "seconds": seconds})
            case events.ModelRead():
                self._facts["nodes"] = event.nodes
            case events.Stopped():
                self._facts["stopped"] = event.reason
            case events.Resumed():
                self._facts["remembered"] = event.runs
            case events.Verified():
                rate = {"failed": event.failed, "runs": event.runs}
                self._facts["verified"] = {**rate, "machine": event.machine or None}
            case events.FlakyFailure():
                rate = {"failed": event.failed, "runs": event.runs}
                self._facts["flaky"] = {**rate, "needed": event.needed, "confidence": event.confidence}
                self._flaky_beside = event.beside

    def _checked(self, event: events.Checked) -> None:
        description, nodes = self._announced.pop(event.number, ("", None))
        self._outcomes[event.outcome] += 1
        check = {
            "number": event.number,
            "stage": event.stage,
            "description": description,
            "nodes": getattr(event, "nodes", nodes),
            "left": getattr(event, "left", None),
            "outcome": event.outcome,
            "reason": shortened(event.reason, _LONGEST_REASON),
            "at": round(time.monotonic() - self._started, 4),
            "seconds": round(event.seconds, 4),
        }
        (self._first if len(self._first) < MOST_CHECKS // 2 else self._last).append(check)

    @property
    def is_empty(self) -> bool:
        """Whether no check has ended."""
        return not self._outcomes

    @property
    def how_often(self) -> str:
        """How many runs a flaky failure shows in, in words; "" if the failure is not known to be flaky."""
        rate = self._facts.get("flaky")
        return f"it fails in {rate['failed']} of {rate['runs']} runs{self._flaky_beside}" if rate else ""

    def tree(self) -> Tree:
        """The search so far, in the form of the key ``search``."""
        checks = [*self._first, *self._last]
        return {
            "passes": list(self._passes),
            "checks": checks,
            "more_checks": self._outcomes.total() - len(checks),
            "outcomes": dict(self._outcomes),
            "stopped": None,
            "flaky": None,
            "verified": None,
            **self._facts,
        }
