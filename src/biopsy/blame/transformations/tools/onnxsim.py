"""onnxsim: the passes of its optimizer by name, besides constant folding and shape inference."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from biopsy.blame.transformations.tool import Omission, Tool, TransformOrder, left_out, write_model

_FOLDING = "constant_folding"
_SHAPES = "shape_inference"

_OPTIMIZERS = (
    "nop", "eliminate_nop_cast", "eliminate_nop_dropout", "eliminate_nop_flatten", "extract_constant_to_initializer",
    "eliminate_consecutive_idempotent_ops", "eliminate_if_with_const_cond", "eliminate_nop_monotone_argmax",
    "eliminate_nop_pad", "eliminate_nop_concat", "eliminate_nop_split", "eliminate_nop_expand",
    "eliminate_shape_gather", "eliminate_slice_after_shape", "eliminate_nop_transpose", "fuse_add_bias_into_conv",
    "fuse_bn_into_conv", "fuse_consecutive_concats", "fuse_consecutive_log_softmax",
    "fuse_consecutive_reduce_unsqueeze", "fuse_consecutive_squeezes", "fuse_consecutive_squeeze_unsqueeze",
    "fuse_consecutive_transposes", "fuse_matmul_add_bias_into_gemm", "fuse_pad_into_conv", "fuse_pad_into_pool",
    "fuse_transpose_into_gemm", "fuse_concat_into_reshape", "eliminate_nop_reshape", "eliminate_nop_with_unit",
    "eliminate_common_subexpression", "fuse_qkv", "fuse_consecutive_unsqueezes", "eliminate_deadend",
    "eliminate_identity", "eliminate_shape_op", "fuse_consecutive_slices", "eliminate_unused_initializer",
    "eliminate_duplicate_initializer", "rewrite_where",
)  # fmt: skip
"""Its optimizers, of onnxsim 0.8.1. A name that a release does not have is skipped by it without a word."""


class OnnxSim(Tool):
    """``onnxsim.simplify``, with no check of its own."""

    summary = "onnxsim, onnx-simplifier"
    package = "onnxsim"
    module = "onnxsim"
    needs = ("onnxruntime",)

    def passes(self, source: str) -> list[str]:
        """Constant folding and shape inference, then the optimizers that the release has."""
        del source
        compiled = import_module("onnxsim.onnxsim_cpp2py_export")
        listed = getattr(compiled, "list_default_optimizers", None) or getattr(
            compiled, "_get_default_optimizers", None
        )
        return [_FOLDING, _SHAPES, *(listed() if callable(listed) else _OPTIMIZERS)]

    def transform(self, order: TransformOrder) -> None:
        """Simplify a model; in the control, no optimizer, no folding and no inference."""
        everything = self.passes(order.source)
        off = left_out(everything, order)
        optimizers = [name for name in everything if name not in {_FOLDING, _SHAPES}]
        model, _ = import_module("onnxsim").simplify(
            import_module("onnx").load(order.source),
            check_n=0,
            perform_optimization=not set(optimizers) <= set(off),
            skipped_optimizers=[name for name in off if name in optimizers] or None,
            skip_constant_folding=_FOLDING in off,
            skip_shape_inference=_SHAPES in off,
        )
        write_model(model, order.target)

    def omission(self, passes: Sequence[str]) -> Omission:
        """Optimizers by one option, the others by one each."""
        optimizers = [name for name in passes if name not in {_FOLDING, _SHAPES}]
        command, python = ["onnxsim model.onnx out.onnx"], []
        if optimizers:
            command.append(f"--skip-optimization {' '.join(optimizers)}")
            python.append(f"skipped_optimizers={optimizers}")
        for name, option in ((_FOLDING, "skip_constant_folding"), (_SHAPES, "skip_shape_inference")):
            if name in passes:
                command.append(f"--{option.replace('_', '-')}")
                python.append(f"{option}=True")
        return Omission(command=" ".join(command), python=f"onnxsim.simplify(model, {', '.join(python)})")
