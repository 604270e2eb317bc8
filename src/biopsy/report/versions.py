"""What a command ran on: packages, engines, the processor and what it can do, the graphics card."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from importlib import metadata

from biopsy import errors
from biopsy.report.tree import Tree
from biopsy.session.hardware import hardware

_PACKAGES = (
    "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt", "tensorrt-rtx-cu13", "ml_dtypes",
    "onnxscript", "torch",
)  # fmt: skip
"""Distributions whose version may change a result."""


def versions_tree(engines: Iterable[str] = ()) -> Tree:
    """The facts of this machine; ``engines`` are those that took part, as ``NAME[:key=value,...]``.

    Asking an engine for its version imports its package.
    """
    return {
        "biopsy": metadata.version("biopsy"),
        "python": platform.python_version(),
        "packages": dict(_packages()),
        "engines": [_engine(label) for label in dict.fromkeys(engines)],
        **machine_tree(),
    }


def machine_tree() -> Tree:
    """The system, the processor and what it can do, the first graphics card and its driver; None where unknown."""
    found = hardware()
    return {
        "os": platform.platform(terse=True),
        "cpu": found.processor,
        "cpu_features": list(found.features),
        "gpu": found.graphics[0] if found.graphics else None,
        "driver": found.driver,
    }


def _packages() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def _engine(label: str) -> Tree:
    from biopsy.engines.registry import class_of, parse_spec

    name = label.partition(":")[0]
    try:
        spec = parse_spec(label)
        name, engine = spec.name, class_of(spec)
        version: str | None = engine.version()
        elsewhere = dict(engine.imports.facts())
    except errors.BiopsyError:
        version, elsewhere = None, {}
    told: Tree = {"label": label, "name": name, "version": version}
    return {**told, "environment": elsewhere} if elsewhere else told
