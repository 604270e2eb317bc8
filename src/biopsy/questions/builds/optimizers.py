"""The optimizers of ONNX Runtime: which there are, which of them run on a model, and which of those change it.

There is no list of them in its interface. But a session tells in its log which optimizers it runs and which change the
graph; and the rules, which it runs as one optimizer, have names that stand in the library.
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
"""Bytes of the beginning, and as many of the end, that are read of it."""


@dataclass(frozen=True)
class Optimizers:
    """The optimizers that ran while a model was built, in their order; ``changed`` are those that changed the graph."""

    ran: tuple[str, ...]
    changed: tuple[str, ...]


def optimizers_of(model: Path, spec: EngineSpec, folder: Path | None = None) -> Optimizers:
    """Build a model with ONNX Runtime, in a process of its own, and read from its log what was done to it.

    ``folder`` is that of its weights. Nothing is found if it cannot be built, or the log does not tell.
    """
    request = {"model": str(model), "spec": spec.text, "folder": str(folder or model.parent)}
    ended = process.run([*own_python(__name__), json.dumps(request)], lambda: _LIMITS, kept=_LONGEST_LOG)
    ran = {} if ended.cause == "time" else optimizers_in_log(ended.output.decode("utf-8", "replace"))
    return Optimizers(tuple(ran), tuple(name for name, changed in ran.items() if changed))


def rules(spec: EngineSpec) -> list[str]:
    """Names of single rules: those known, and what looks like one in the library of the release that a spec names."""
    imports = class_of(spec).imports
    if imports.is_here:
        package = find_spec("onnxruntime")
        places = package.submodule_search_locations if package is not None else None
    else:
        places = [str(Path(imports.module("onnxruntime").__file__).parent)]
    libraries = [file for place in places or () for file in Path(place, "capi").glob("onnxruntime_pybind11_state*")]
    names = {name.decode() for library in libraries for name in _RULE_LIKE.findall(library.read_bytes())}
    return list(dict.fromkeys([*KNOWN_RULES, *sorted(names)]))


def main() -> None:
    """The child's side: build the model that the first argument tells of with a log of everything."""
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
