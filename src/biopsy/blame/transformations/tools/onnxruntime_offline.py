"""ONNX Runtime's optimizer, offline: the optimized model is written to a file."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar

from biopsy.blame.transformations.tool import Omission, Setting, Tool, TransformOrder, left_out
from biopsy.engines.onnxrt.optimizer_names import KNOWN_RULES, RULES, optimizers_in_log

_LEVELS = {
    "basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED", "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}  # fmt: skip


class OnnxRuntimeOffline(Tool):
    """``SessionOptions.optimized_model_filepath``."""

    summary = "ONNX Runtime's optimizer, to a file"
    package = "onnxruntime"
    module = "onnxruntime"
    declared: ClassVar[Mapping[str, Setting]] = {
        "level": Setting(default="all", meaning="of the optimization", choices=tuple(_LEVELS))
    }

    def passes(self, source: str) -> list[str]:
        """Optimizers that run on the model at this level, by their own log; rules by their own names."""
        ran = _names_in_log(source, self._level)
        single = [name for name in ran if not name.endswith(RULES)]
        return [*single, *(KNOWN_RULES if len(single) < len(ran) else ())]

    def transform(self, order: TransformOrder) -> None:
        """Build a session, which writes what it has optimized; in the control, at the level "none"."""
        off = left_out(self.passes(order.source), order) if order.passes else []
        _build(order.source, "ORT_DISABLE_ALL" if order.passes == () else self._level, off, order.target)

    def omission(self, passes: Sequence[str]) -> Omission:
        """An argument of the session."""
        return Omission(python=f"onnxruntime.InferenceSession(model, options, disabled_optimizers={list(passes)})")

    @property
    def _level(self) -> str:
        return _LEVELS[self.settings["level"]]


def _build(source: str, level: str, off: Sequence[str], target: str | None, *, severity: int = 3) -> Any:
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    options.log_severity_level = severity
    if target is not None:
        options.optimized_model_filepath = target
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(source, options, providers=providers, disabled_optimizers=list(off) or None)


def _names_in_log(source: str, level: str) -> list[str]:
    """The optimizers that a session tells of in its log, which it writes to the descriptor of stderr."""
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            _build(source, level, (), None, severity=0)
        finally:
            os.dup2(before, 2)
            os.close(before)
        log.seek(0)
        return list(optimizers_in_log(log.read().decode("utf-8", "replace")))
