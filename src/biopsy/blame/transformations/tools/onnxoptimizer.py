"""onnxoptimizer: every pass has a name, and the passes to run are named."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from biopsy.blame.transformations.tool import Omission, Tool, TransformOrder, write_model


class OnnxOptimizer(Tool):
    """``onnxoptimizer.optimize``, with the passes that it runs by itself."""

    summary = "onnxoptimizer"
    package = "onnxoptimizer"
    module = "onnxoptimizer"

    def passes(self, source: str) -> list[str]:
        """Those that fuse and eliminate, which are the default."""
        del source
        return list(import_module("onnxoptimizer").get_fuse_and_elimination_passes())

    def transform(self, order: TransformOrder) -> None:
        """Optimize a model; in the control, it goes through the tool's own form of a graph and back."""
        model = import_module("onnx").load(order.source)
        wanted = None if order.passes is None else list(order.passes)
        write_model(import_module("onnxoptimizer").optimize(model, wanted), order.target)

    def omission(self, passes: Sequence[str]) -> Omission:
        """It has no option that leaves out: all others are named."""
        rest = f"[p for p in onnxoptimizer.get_fuse_and_elimination_passes() if p not in {list(passes)}]"
        return Omission(python=f"onnxoptimizer.optimize(model, {rest})")
