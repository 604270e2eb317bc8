"""OnnxSlim: its optimizations, and each of its fusion patterns by name."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from biopsy.blame.transformations.tool import Omission, Tool, TransformOrder, left_out, write_model

_FUSION = "graph_fusion"
_SHAPES = "shape_inference"


class OnnxSlim(Tool):
    """``onnxslim.slim``."""

    summary = "OnnxSlim"
    package = "onnxslim"
    module = "onnxslim"

    def passes(self, source: str) -> list[str]:
        """Optimizations but for the fusion as a whole, then the patterns of that."""
        del source
        return [*(name for name in _optimizations() if name != _FUSION), _SHAPES, *_patterns()]

    def transform(self, order: TransformOrder) -> None:
        """Slim a model; in the control, everything that it has a switch for is off."""
        off = left_out(self.passes(order.source), order)
        skipped = [name for name in off if name in _optimizations()]
        if order.passes is not None and not set(order.passes) & set(_patterns()):
            skipped.append(_FUSION)
        # None and not an empty list: releases before 0.1.50 ask for the former.
        model = import_module("onnxslim").slim(
            order.source,
            no_shape_infer=_SHAPES in off,
            skip_optimizations=skipped or None,
            skip_fusion_patterns=[name for name in off if name in _patterns()] or None,
        )
        write_model(model, order.target)

    def omission(self, passes: Sequence[str]) -> Omission:
        """Three options take what has a name."""
        patterns = [name for name in passes if name not in {*_OPTIMIZATIONS, _SHAPES}]
        optimizations = [name for name in passes if name in _OPTIMIZATIONS]
        command, python = ["onnxslim model.onnx out.onnx"], []
        if _SHAPES in passes:
            command.append("--no-shape-infer")
            python.append("no_shape_infer=True")
        if optimizations:
            command.append(f"--skip-optimizations {' '.join(optimizations)}")
            python.append(f"skip_optimizations={optimizations}")
        if patterns:
            command.append(f"--skip-fusion-patterns {' '.join(patterns)}")
            python.append(f"skip_fusion_patterns={patterns}")
        return Omission(command=" ".join(command), python=f"onnxslim.slim(model, {', '.join(python)})")


_OPTIMIZATIONS = ("constant_folding", "dead_node_elimination", "subexpression_elimination", "weight_tying")


def _optimizations() -> list[str]:
    settings = import_module("onnxslim.core.optimization").OptimizationSettings
    return list(settings.keys())


def _patterns() -> list[str]:
    return list(import_module("onnxslim.core.pattern.registry").DEFAULT_FUSION_PATTERNS)
