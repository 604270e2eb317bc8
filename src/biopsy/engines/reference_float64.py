"""The reference evaluator in float64, whatever floating type the model declares, with operators that onnx lacks or
computes in float32: contrib operators and old versions.

The contrib operators are those of ONNX Runtime (domain ``com.microsoft``), which its optimizer and its exporters
write; the formulas are those of its documentation (ContribOperators.md). A function for an operator takes the inputs in
float64 (None for an absent one) and the node's attributes, and returns the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from biopsy.engines.reference_corrected import corrected_evaluator
from biopsy.engines.reference_moved import Movement
from biopsy.engines.reference_undefined import with_undefined
from biopsy.slow_imports import onnx
from biopsy.tensors.results import Array
from biopsy.tensors.types import dtype_named

NARROW = frozenset({"float16", "bfloat16", "float32"})
"""Types that become float64. Types of 8 bits or fewer stay, since they hold quantized values."""

_NARROW_ELEMS = frozenset({1, 10, 16})
_DOUBLE = 11
_HALVES = {10: "float16", 16: "bfloat16"}
_TYPE_ATTRIBUTES = ("dtype", "output_datatype", "output_dtype", "precision", "softmax_precision")
"""Attributes that choose the type of an operator's result, or of its inner computation."""

_SINGLE_INSIDE = frozenset(
    {"AffineGrid", "CausalConvWithState", "DynamicQuantizeLinear", "GridSample", "LinearAttention"}
)
"""Operators that onnx computes in float32 inside; only their results become float64."""


def single_inside(nodes: list[onnx.NodeProto]) -> list[str]:
    """The operators of these nodes that are computed in float32 nevertheless."""
    return sorted({node.op_type for node in nodes if node.op_type in _SINGLE_INSIDE or node.domain == "ai.onnx.ml"})


def widened(value: Any) -> Any:
    """A tensor or sequence of tensors in float64 if it has a narrower floating type, else unchanged."""
    if isinstance(value, list):
        return [widened(item) for item in value]
    return np.asarray(value).astype(np.float64) if _is_narrow(value) else value


def _is_narrow(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.dtype.name in NARROW


_ROUNDED_TYPES = ("float32", "float16", "tf32", "bfloat16")
_TF32_DIGITS = 11  # with the leading one

CASTS = "casts"
ROUNDINGS = (*(f"{name}{where}" for name in _ROUNDED_TYPES for where in ("", "-inputs", "-results")), CASTS)
"""Types to round to; what each node reads and its results are rounded, or one of these. For ``CASTS``, only the results
of Casts to float16 and bfloat16 are, each to its type.
"""


def _rounding(choice: str | None, where: str) -> Callable[[Any], Any]:
    """Rounds a tensor, or a sequence of tensors, as a choice of ``ROUNDINGS`` wants it for "inputs" or "results"."""
    name, _, only = (choice or "").partition("-")

    def rounded(value: Any) -> Any:
        if isinstance(value, list):
            return [rounded(item) for item in value]
        if not isinstance(value, np.ndarray | np.generic) or value.dtype != np.float64:
            return value
        if name == "tf32":
            significand, exponent = np.frexp(value)
            return np.ldexp(np.round(significand * 2.0**_TF32_DIGITS) / 2.0**_TF32_DIGITS, exponent)
        with np.errstate(over="ignore"):
            return np.asarray(value).astype(dtype_named(name)).astype(np.float64)

    return rounded if name in _ROUNDED_TYPES and only in ("", where) else lambda value: value


@cache
def evaluator_class(rounding: str | None = None, undefined: str | None = None, movement: Movement | None = None) -> Any:
    """The evaluator's class, defined at the first call, since onnx is imported only then.

    ``rounding`` is one of ``ROUNDINGS``: with it, the class simulates computing in a narrower type, with wider sums.
    ``undefined`` is one of ``UNDEFINED``, for results that ONNX does not define. With ``movement``, results that a
    narrower type cannot hold are moved.
    """
    classes = [operator_class(domain, name) for domain, name in OPERATORS]
    corrected: Any = corrected_evaluator()

    class WideEvaluator(corrected):  # type: ignore[misc]
        """Evaluates a model, a body or a function in float64."""

        def __init__(self, *args: Any, new_ops: Any = None, **settings: Any) -> None:
            # onnx creates the evaluators of functions without ``new_ops``.
            super().__init__(*args, **{**settings, "new_ops": new_ops or classes})

        def _init(self) -> None:
            super()._init()
            self.rt_inits_: Any = {name: widened(value) for name, value in self.rt_inits_.items()}
            for node in self.rt_nodes_:
                _widen(node, rounding, movement)
                if undefined and hasattr(node, "onnx_node"):
                    node.run = with_undefined(node.onnx_node, node.run_params["opsets"].get("", 1), node.run, undefined)

    return WideEvaluator


def _widen(node: Any, rounding: str | None, movement: Movement | None) -> None:
    """Make a node of the evaluator compute in float64 and return float64, rounded or moved as is wanted."""
    of_inputs, of_results = _rounding(rounding, "inputs"), _rounding(rounding, "results")
    proto = getattr(node, "onnx_node", None)
    op_type = proto.op_type if proto is not None and proto.domain == "" else ""
    if rounding == CASTS and op_type == "Cast" and getattr(node, "to", None) in _HALVES:
        of_results = _rounding(_HALVES[node.to], "results")
    for name in ("to",) if op_type == "Cast" else _TYPE_ATTRIBUTES:
        if getattr(node, name, None) in _NARROW_ELEMS:
            setattr(node, name, _DOUBLE)  # so a Cast neither rounds nor overflows
    original = node.run
    replacement = _REPLACEMENTS.get(op_type)

    def compute(*inputs: Any, **context: Any) -> tuple[Any, ...]:
        if replacement is not None and not context:
            results = replacement(node, *inputs)
        else:
            results = original(*inputs, **context)
            if op_type == "Cast" and _is_narrow(results[0]):  # in a function, ``to`` may refer to its attribute
                results = (np.asarray(inputs[0]).astype(np.float64),)
        return tuple(map(widened, results))

    computed = compute if movement is None else movement.around(node, op_type, compute)

    def run(*values: Any, **context: Any) -> Any:
        inputs = (of_inputs(widened(value)) for value in values)  # mapped weights are narrow until here
        return tuple(map(of_results, computed(*inputs, **context)))

    node.run = run


def _normalized(x: Array, axis: int, epsilon: float, scale: Array, shift: Array | None) -> tuple[Array, Array, Array]:
    """The layer normalization over the axes from ``axis`` on, the mean, and the inverse standard deviation."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(np.square(x - mean).mean(axis=axes, keepdims=True) + epsilon)
    result = (x - mean) * inverse * scale
    return (result if shift is None else result + shift, mean, inverse)


def _bit_cast(node: Any, x: Array) -> tuple[Array]:
    """Cast the bits of a widened float32 as those of float32."""
    from onnx.helper import tensor_dtype_to_np_dtype

    dtype = np.dtype(tensor_dtype_to_np_dtype(node.to))
    if x.dtype == np.float64 and dtype.itemsize == 4:
        x = x.astype(np.float32)
    return (widened(x.view(dtype)),)


_REPLACEMENTS: Mapping[str, Callable[..., tuple[Array, ...]]] = {
    "BitCast": _bit_cast,
    "Celu": lambda node, x: (np.maximum(x, 0) + np.minimum(0, node.alpha * np.expm1(x / node.alpha)),),
    "Erf": lambda _, x: (np.vectorize(math.erf, otypes=["d"])(x),),
    "LayerNormalization": lambda node, x, scale, bias=None: _normalized(x, node.axis, node.epsilon, scale, bias),
    "RMSNormalization": lambda node, x, scale: simplified_layer_normalization(x, scale, node.axis, node.epsilon)[:1],
}
"""Operators that some version of onnx computes in float32 inside."""


Operator: TypeAlias = Callable[..., tuple[Array, ...]]

CONTRIB = "com.microsoft"


def operator_class(domain: str, name: str) -> Any:
    """A class for the evaluator of onnx (``new_ops``) that computes an operator of ``OPERATORS``."""
    from onnx.reference.op_run import OpRun

    compute = OPERATORS[domain, name]

    def run(self: Any, *inputs: Any, **attributes: Any) -> tuple[Array, ...]:
        arrays = [None if value is None else np.asarray(value) for value in inputs]
        return compute(*arrays, **attributes)[: max(len(self.onnx_node.output), 1)]

    # Without this, onnx would use the schema of the same name in another domain, with its defaults.
    return type(name, (OpRun,), {"op_domain": domain, "op_schema": None, "_run": run})


def dequantize_linear(
    x: Array, scale: Array, zero: Array | None = None, axis: int = 1, block_size: int = 0, **_: Any
) -> tuple[Array]:
    """Compute (x - zero) * scale, per tensor, per slice of an axis, or per block of an axis."""
    values = x.astype(np.float64)
    if zero is not None and zero.dtype.kind in "iu":
        values = values - _spread(zero.astype(np.float64), x.shape, axis, block_size)
    return (values * _spread(scale.astype(np.float64), x.shape, axis, block_size),)


def _spread(values: Array, shape: tuple[int, ...], axis: int, block_size: int) -> Array:
    """Scales or zero points in a shape that broadcasts to their tensor's."""
    if values.size == 1:
        return values.reshape(())
    axis = axis % len(shape)
    if block_size:
        return np.take(np.repeat(values, block_size, axis), np.arange(shape[axis]), axis)
    return values.reshape([size if place == axis else 1 for place, size in enumerate(shape)])


def matmul_nbits(
    a: Array,
    b: Array,
    scales: Array,
    zeros: Array | None = None,
    order: Array | None = None,
    bias: Array | None = None,
    **attributes: Any,
) -> tuple[Array]:
    """Multiply by weights of 2, 4 or 8 bits: ``b`` is [N, blocks, bytes], packed along K, lowest bits first."""
    bits, size = attributes.get("bits", 4), attributes["block_size"]
    columns, inner = attributes["N"], attributes["K"]
    weights = _unpacked(b.reshape(columns, -1), bits).astype(np.float64)
    blocks = -(-inner // size)
    weights = weights[:, : blocks * size]
    if zeros is None:
        offsets = np.full((columns, blocks), float(2 ** (bits - 1)))
    elif zeros.dtype == np.uint8:
        offsets = _unpacked(zeros.reshape(columns, -1), bits)[:, :blocks].astype(np.float64)
    else:
        offsets = zeros.reshape(columns, blocks)
    group = np.repeat(np.arange(blocks), size) if order is None else np.resize(order, blocks * size)
    weights = (weights - offsets[:, group]) * scales.reshape(columns, blocks)[:, group]
    result: Array = a @ weights[:, :inner].T
    return (result if bias is None else result + bias,)


def _unpacked(data: Array, bits: int) -> Array:
    parts = [(data >> np.uint8(shift)) & np.uint8(2**bits - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(data.shape[0], -1)


def scatter(data: Array, indices: Array, updates: Array, axis: int = 0, **_: Any) -> tuple[Array]:
    """Scatter of opsets 9 and 10, which is called ScatterElements since then."""
    from onnx.reference.ops.op_scatter_elements import scatter_elements

    return (scatter_elements(data, indices, updates, axis),)  # type: ignore[no-untyped-call]


def gelu(x: Array, bias: Array | None = None, **_: Any) -> tuple[Array]:
    """Compute x * Phi(x), with the standard normal distribution Phi by erfc, which is accurate where Phi is near 0."""
    x = x if bias is None else x + bias
    return (0.5 * x * np.vectorize(math.erfc, otypes=["d"])(-x / math.sqrt(2)),)


def fast_gelu(x: Array, bias: Array | None = None, **_: Any) -> tuple[Array]:
    """Gelu, approximated by tanh."""
    x = x if bias is None else x + bias
    return (0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),)


def quick_gelu(x: Array, alpha: float = 1.702, **_: Any) -> tuple[Array]:
    """Compute x * sigmoid(alpha * x)."""
    return (x / (1 + np.exp(-alpha * x)),)


_ACTIVATIONS: Mapping[str, Callable[..., Array]] = {
    "": lambda x: x,
    "Relu": lambda x: np.maximum(x, 0),
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "LeakyRelu": lambda x, alpha=0.01: np.where(x < 0, alpha * x, x),
    "Clip": lambda x, low=-math.inf, high=math.inf: np.clip(x, low, high),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1),
}
"""Activations of fused operators."""


def fused_matmul(a: Array, b: Array, alpha: float = 1.0, **attributes: Any) -> tuple[Array]:
    """Compute alpha * A B, each transposed as its attributes say."""
    return (alpha * (_transposed(a, "A", attributes) @ _transposed(b, "B", attributes)),)


def _transposed(side: Array, which: str, attributes: Mapping[str, Any]) -> Array:
    if attributes.get(f"transBatch{which}"):
        side = np.moveaxis(side, 0, -2)
    return np.swapaxes(side, -1, -2) if attributes.get(f"trans{which}") and side.ndim > 1 else side


def fused_gemm(
    a: Array, b: Array, c: Array | None = None, alpha: float = 1.0, beta: float = 1.0, **attributes: Any
) -> tuple[Array]:
    """Gemm, then an activation."""
    result = alpha * (_transposed(a, "A", attributes) @ _transposed(b, "B", attributes))
    settings = [attributes[f"activation_{name}"] for name in ("alpha", "beta") if f"activation_{name}" in attributes]
    return (_ACTIVATIONS[attributes.get("activation", "")](result if c is None else result + beta * c, *settings),)


def fused_conv(x: Array, w: Array, b: Array | None = None, z: Array | None = None, **attributes: Any) -> tuple[Array]:
    """Conv, then a sum with ``z``, then an activation."""
    from onnx.reference.ops.op_conv import _conv_implementation

    spatial = x.ndim - 2
    result = _conv_implementation(  # type: ignore[no-untyped-call]
        x,
        w,
        b,
        auto_pad=attributes.get("auto_pad", "NOTSET"),
        dilations=attributes.get("dilations", [1] * spatial),
        group=attributes.get("group", 1),
        kernel_shape=attributes.get("kernel_shape", list(w.shape[2:])),
        pads=attributes.get("pads", [0] * 2 * spatial),
        strides=attributes.get("strides", [1] * spatial),
    )
    result = result if z is None else result + z
    return (_ACTIVATIONS[attributes.get("activation", "")](result, *attributes.get("activation_params", ())),)


def skip_layer_normalization(
    x: Array,
    skip: Array,
    scale: Array,
    shift: Array | None = None,
    bias: Array | None = None,
    epsilon: float = 1e-12,
    **_: Any,
) -> tuple[Array, ...]:
    """Layer normalization over the last axis of x + skip + bias; that sum is the fourth output."""
    total = x + skip if bias is None else x + skip + bias
    return (*_normalized(total, -1, epsilon, scale, shift), total)


def skip_simplified_layer_normalization(
    x: Array, skip: Array, scale: Array, bias: Array | None = None, epsilon: float = 1e-12, **_: Any
) -> tuple[Array, ...]:
    """RMS normalization over the last axis of x + skip + bias; that sum is the fourth output."""
    total = x + skip if bias is None else x + skip + bias
    result, inverse = simplified_layer_normalization(total, scale, epsilon=epsilon)
    return (result, np.zeros_like(inverse), inverse, total)


def simplified_layer_normalization(
    x: Array, scale: Array, axis: int = -1, epsilon: float = 1e-5, **_: Any
) -> tuple[Array, Array]:
    """RMS normalization over the axes from ``axis`` on; the second output is the inverse of the root mean square."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    inverse = 1 / np.sqrt(np.square(x).mean(axis=axes, keepdims=True) + epsilon)
    return (x * inverse * scale, inverse)


OPERATORS: Mapping[tuple[str, str], Operator] = {
    ("", "DequantizeLinear"): dequantize_linear,
    ("", "Scatter"): scatter,
    ("", "SimplifiedLayerNormalization"): simplified_layer_normalization,
    (CONTRIB, "BiasGelu"): gelu,
    (CONTRIB, "DequantizeLinear"): dequantize_linear,
    (CONTRIB, "FastGelu"): fast_gelu,
    (CONTRIB, "FusedConv"): fused_conv,
    (CONTRIB, "FusedGemm"): fused_gemm,
    (CONTRIB, "FusedMatMul"): fused_matmul,
    (CONTRIB, "Gelu"): gelu,
    (CONTRIB, "MatMulNBits"): matmul_nbits,
    (CONTRIB, "QuickGelu"): quick_gelu,
    (CONTRIB, "SkipLayerNormalization"): skip_layer_normalization,
    (CONTRIB, "SkipSimplifiedLayerNormalization"): skip_simplified_layer_normalization,
    (CONTRIB, "TransposeMatMul"): fused_matmul,
}
"""(domain, operator) -> the function that computes it."""
