"""The reference evaluator computing in float64, whatever floating type the model declares.

The evaluator of onnx takes its types from the values that it is fed, not from the model. So it is enough to feed wider
values, to hold everything at that width on the way (what any node takes or gives, whatever a Cast says), and to do it
in bodies of If, Loop and Scan and in functions too, which run in evaluators of the same class. A few operators of
onnx compute in float32 inside: those that matter are computed here, the others are named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from biopsy.engines.reference.wide_operators import OPERATORS, operator_class
from biopsy.tensors.results import Array

if TYPE_CHECKING:
    import onnx

NARROW = frozenset({"float16", "bfloat16", "float32"})
"""Types that become float64. Types of 8 bits and fewer stay: they hold what was quantized on purpose."""

_NARROW_ELEMS = frozenset({1, 10, 16})
_DOUBLE = 11
_CHOOSING = ("dtype", "output_datatype", "output_dtype", "precision", "softmax_precision")
"""Attributes by which operators choose the type of their result, or of what they compute inside."""

_SINGLE_INSIDE = frozenset(
    {"AffineGrid", "CausalConvWithState", "DynamicQuantizeLinear", "GridSample", "LinearAttention"}
)
"""Operators that onnx computes in float32 inside, and whose results are only made wider here."""


def single_inside(nodes: list[onnx.NodeProto]) -> list[str]:
    """Operators among these nodes that are computed in float32 after all."""
    return sorted({node.op_type for node in nodes if node.op_type in _SINGLE_INSIDE or node.domain == "ai.onnx.ml"})


def widened(value: Any) -> Any:
    """A tensor, or a sequence of tensors, in float64 if it is of a narrower floating type; else what it was."""
    if isinstance(value, list):
        return [widened(one) for one in value]
    return np.asarray(value).astype(np.float64) if _is_narrow(value) else value


def _is_narrow(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.dtype.name in NARROW


@cache
def evaluator_class() -> Any:
    """The evaluator. Made when it is first asked for, since onnx is imported only then."""
    from onnx.reference import ReferenceEvaluator

    classes = [operator_class(domain, name) for domain, name in OPERATORS]

    class WideEvaluator(ReferenceEvaluator):
        """Evaluates a model, a body or a function in float64."""

        def __init__(self, *args: Any, new_ops: Any = None, **settings: Any) -> None:
            # Functions are made without the operators of the model that calls them.
            super().__init__(*args, **{**settings, "new_ops": new_ops or classes})

        def _init(self) -> None:
            super()._init()
            self.rt_inits_ = {name: widened(value) for name, value in self.rt_inits_.items()}
            for node in self.rt_nodes_:
                _widen(node)

    return WideEvaluator


def _widen(node: Any) -> None:
    """Make a node of the evaluator compute in float64 and give float64."""
    proto = getattr(node, "onnx_node", None)
    op_type = proto.op_type if proto is not None and proto.domain == "" else ""
    for name in ("to",) if op_type == "Cast" else _CHOOSING:
        if getattr(node, name, None) in _NARROW_ELEMS:
            setattr(node, name, _DOUBLE)  # a Cast rounds nothing then; nothing overflows or vanishes
    original = node.run
    instead = _INSTEAD.get(op_type)

    def run(*given: Any, **context: Any) -> Any:
        inputs = tuple(widened(value) for value in given)  # large weights are narrow until a node takes them
        if instead is not None and not context:
            return instead(node, *inputs)
        found = original(*inputs, **context)
        if op_type == "Cast" and _is_narrow(found[0]):  # its type is that of the function that it stands in
            return (np.asarray(inputs[0]).astype(np.float64),)
        return tuple(widened(value) for value in found)

    node.run = run


def _erf(node: Any, x: Array) -> tuple[Array]:
    del node
    return (np.vectorize(math.erf, otypes=["d"])(x) if x.size else x,)


def _celu(node: Any, x: Array) -> tuple[Array]:
    return (np.maximum(x, 0) + np.minimum(0, node.alpha * np.expm1(x / node.alpha)),)


def _layer_normalization(node: Any, x: Array, scale: Array, bias: Array | None = None) -> tuple[Array, ...]:
    axes = _axes_from(node, x)
    mean = x.mean(axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(np.square(x - mean).mean(axis=axes, keepdims=True) + node.epsilon)
    result = (x - mean) * inverse * scale
    return (result if bias is None else result + bias, mean, inverse)


def _rms_normalization(node: Any, x: Array, scale: Array) -> tuple[Array]:
    root = np.sqrt(np.square(x).mean(axis=_axes_from(node, x), keepdims=True) + node.epsilon)
    return (x / root * scale,)


def _axes_from(node: Any, x: Array) -> tuple[int, ...]:
    return tuple(range(node.axis % x.ndim, x.ndim))


def _bit_cast(node: Any, x: Array) -> tuple[Array]:
    """The bits are those of float32: a type of the width of float64 is no part of a model that was made wider."""
    from onnx.helper import tensor_dtype_to_np_dtype

    dtype = np.dtype(tensor_dtype_to_np_dtype(node.to))
    if x.dtype == np.float64 and dtype.itemsize == 4:
        x = x.astype(np.float32)
    return (widened(x.view(dtype)),)


_INSTEAD: Mapping[str, Callable[..., tuple[Array, ...]]] = {
    "BitCast": _bit_cast,
    "Celu": _celu,
    "Erf": _erf,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
}
"""Operators that some version of onnx computes in float32 inside."""
