"""The optimizers of ONNX Runtime: which exist, which run on a model, and which change it.

Its interface has no list of them. But the log of a session names the optimizers that run and those that change the
graph, and the names of rewrite rules, which run as one optimizer, can be read from the library.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.onnxrt_optimizers import KNOWN_RULES, optimizers_in_log
from biopsy.engines.registry import EngineSpec, class_of, create
from biopsy.model.load import read_bytes
from biopsy.processes import process
from biopsy.processes.own_process import own_python
from biopsy.processes.watch import Limits

_RULE_LIKE = re.compile(rb"\0([A-Z][A-Za-z0-9_]{5,60}(?:Fusion|Elimination|Rewrite))(?=\0)")

_LIMITS = Limits(seconds=600)
_LONGEST_LOG = 128 << 20
"""Bytes that are read of the beginning of the log, and as many of the end."""


@dataclass(frozen=True)
class Optimizers:
    """The optimizers that ran while a model was built, in their order; ``changed`` are those that changed the graph."""

    ran: tuple[str, ...]
    changed: tuple[str, ...]


def optimizers_of(model: Path, spec: EngineSpec, folder: Path | None = None) -> Optimizers:
    """The optimizers in the log of a build with ONNX Runtime, in a process of its own.

    ``folder`` is that of the model's weights. Empty if the model cannot be built, or the log names none.
    """
    request = {"model": str(model), "spec": spec.text, "folder": str(folder or model.parent)}
    ended = process.run([*own_python(__name__), json.dumps(request)], lambda: _LIMITS, kept=_LONGEST_LOG)
    ran = {} if ended.cause == "time" else optimizers_in_log(ended.output.decode("utf-8", "replace"))
    return Optimizers(tuple(ran), tuple(name for name, changed in ran.items() if changed))


def rules(spec: EngineSpec) -> list[str]:
    """Names of rewrite rules: the known ones, and those that look like one in the library of the spec's release."""
    imports = class_of(spec).imports
    if imports.is_here:
        package = find_spec("onnxruntime")
        folders = package.submodule_search_locations if package is not None else None
    else:
        folders = [str(Path(imports.module("onnxruntime").__file__).parent)]
    libraries = [file for folder in folders or () for file in Path(folder, "capi").glob("onnxruntime_pybind11_state*")]
    names = {name.decode() for library in libraries for name in _RULE_LIKE.findall(library.read_bytes())}
    return list(dict.fromkeys([*KNOWN_RULES, *sorted(names)]))


def main() -> None:
    """The child process: build the model of the request in the first argument, with a verbose log."""
    from biopsy.engines.onnxrt import OnnxRuntime

    request: Mapping[str, str] = json.loads(sys.argv[1])
    engine = create(request["spec"])
    if not isinstance(engine, OnnxRuntime):
        raise errors.UsageError(f"engine {engine.name!r} has no optimizers of ONNX Runtime")
    path = Path(request["model"])
    model = ModelInput(read_bytes(path), Path(request["folder"]), path)
    onnxruntime = engine.imported()
    options = engine.session_options(onnxruntime, model.folder)
    options.log_severity_level = 0
    off: Sequence[str] = engine.options["disabled_optimizers"]
    with engine.source(model) as source:
        onnxruntime.InferenceSession(
            source, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(off) or None
        )
