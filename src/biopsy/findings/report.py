"""What every report begins with: the command, how it ended, when and on what; and the bounds of its values.
The schema: docs/reference/report.md.
"""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, TypeAlias

from biopsy import errors
from biopsy.engines.registry import class_of, parse_spec
from biopsy.findings.page.reading import VERSION
from biopsy.records import plain
from biopsy.session.conditions import hardware
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


def report_tree(
    command: str, line: str, *, status: int, began: float, seconds: float, sections: Mapping[str, Any]
) -> Tree:
    """The whole report of a command and how it ended: sections that are None are left out, long texts are shortened.

    ``command`` are its words, such as "debug reduce"; ``line`` repeats it; ``status`` is its exit status. ``began`` is
    in seconds since 1970, ``seconds`` is wall time.
    """
    head = {
        "biopsy_report": VERSION,
        "command": command,
        "line": line,
        "status": status,
        "created": datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
    }
    known = {key: value for key, value in sections.items() if value is not None}
    tree: Tree = bounded(plain({**head, **known}))
    return tree


def as_json(tree: Tree) -> bytes:
    """The report as it stands in a file."""
    return json.dumps(tree, indent=1, allow_nan=False).encode("ascii") + b"\n"


# What a command ran on: packages, engines, the processor and what it can do, the graphics card.

_PACKAGES = (
    "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt", "tensorrt-rtx-cu13", "ml_dtypes",
    "onnxscript", "torch",
)  # fmt: skip
"""Distributions whose version may change a result."""


def versions_tree(engines: Iterable[str] = ()) -> Tree:
    """The facts of this machine; ``engines`` are those that took part, as ``NAME[:key=value,...]``.

    Asking an engine for its version imports its package.
    """
    packages = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    return {
        "biopsy": metadata.version("biopsy"),
        "python": platform.python_version(),
        "packages": packages,
        "engines": [_engine(label) for label in dict.fromkeys(engines)],
        **machine_tree(),
    }


def machine_tree() -> Tree:
    """The system, the processor and what it can do, the first graphics card and its driver; None where unknown."""
    machine = hardware()
    return {
        "os": platform.platform(terse=True),
        "cpu": machine.processor,
        "cpu_features": list(machine.features),
        "gpu": machine.graphics[0] if machine.graphics else None,
        "driver": machine.driver,
    }


def _engine(label: str) -> Tree:
    tree: Tree = {"label": label, "name": label.partition(":")[0], "version": None}
    with contextlib.suppress(errors.BiopsyError):  # nobody can say
        spec = parse_spec(label)
        engine = class_of(spec)
        tree |= {"name": spec.name, "version": engine.version()}
        tree |= {"environment": elsewhere} if (elsewhere := dict(engine.imports.facts())) else {}
    return tree
