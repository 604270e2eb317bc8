"""Converters of float32 to float16: their passes are the operators that become float16."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import ClassVar

from biopsy.blame.transformations.tool import Omission, Tool, TransformOrder, left_out, write_model


class Float16(Tool):
    """``convert_float_to_float16`` of onnxconverter-common; inputs and outputs keep their types."""

    summary = "onnxconverter_common.float16"
    package = "onnxconverter-common"
    module = "onnxconverter_common.float16"
    needs: ClassVar[tuple[str, ...]] = ("onnx",)
    rounds_to = "float16"

    def passes(self, source: str) -> list[str]:
        """The operators of the model that it may convert."""
        model = import_module("onnx").load(source, load_external_data=False)
        blocked = set(import_module(self.module).DEFAULT_OP_BLOCK_LIST)
        return list(dict.fromkeys(node.op_type for node in model.graph.node if node.op_type not in blocked))

    def transform(self, order: TransformOrder) -> None:
        """Convert; in the control, load and save alone: the tool works on what onnx has loaded."""
        model, float16 = import_module("onnx").load(order.source), import_module(self.module)
        if order.passes != ():
            blocked = [*float16.DEFAULT_OP_BLOCK_LIST, *left_out(self.passes(order.source), order)]
            model = float16.convert_float_to_float16(model, keep_io_types=True, op_block_list=blocked)
        write_model(model, order.target)

    def omission(self, passes: Sequence[str]) -> Omission:
        """A list of operators that stay float32."""
        blocked = f"[*DEFAULT_OP_BLOCK_LIST, {', '.join(map(repr, passes))}]"
        return Omission(python=f"convert_float_to_float16(model, keep_io_types=True, op_block_list={blocked})")


class OnnxRuntimeFloat16(Float16):
    """The copy of it that ONNX Runtime has changed since."""

    summary = "onnxruntime.transformers.float16"
    package = "onnxruntime"
    module = "onnxruntime.transformers.float16"
    needs = ("onnx", "sympy", "coloredlogs")
