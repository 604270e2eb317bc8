"""Floating-point formats, the operators that allow them, and the conversion of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from biopsy.model.external import Span, chunks, is_external, raw_values, span_of
from biopsy.model.tensor_type import DTYPE_OF_ELEM
from biopsy.model.walk import schema_of
from biopsy.slow_imports import onnx
from biopsy.tensors.types import dtype_named

FLOAT, FLOAT16, DOUBLE, BFLOAT16, E4M3FN, E5M2 = 1, 10, 11, 16, 17, 19
"""Element types by their numbers in onnx.proto3."""

WORKING_TYPES = frozenset({FLOAT, FLOAT16, BFLOAT16})
"""Element types that a layer may change between. float64 stays, as a model that uses it needs it."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of floating-point numbers.

    ``digits`` is the number of stored bits of the significand, ``least`` the exponent of the least normal number,
    ``largest`` the greatest finite number. ``suffix`` is added to the name of a tensor for its copy in this format.
    ``least_opset`` is the first opset whose Cast supports it.
    """

    name: str
    elem: int
    suffix: str
    digits: int
    least: int
    largest: float
    least_opset: int = 6

    def __str__(self) -> str:
        return self.name

    @property
    def smallest(self) -> float:
        """The least positive number."""
        return math.ldexp(1.0, self.least - self.digits)

    @property
    def normal(self) -> float:
        """The least normal number."""
        return math.ldexp(1.0, self.least)

    @property
    def rounding(self) -> float:
        """The greatest relative error of rounding a number between ``normal`` and ``largest``."""
        return math.ldexp(1.0, -self.digits - 1)

    def holds(self, other: Format) -> bool:
        """Whether it holds every value of another format."""
        has_digits = self.digits >= other.digits and self.smallest <= other.smallest
        return has_digits and self.largest >= other.largest


FP64 = Format(name="float64", elem=DOUBLE, suffix="double", digits=52, least=-1022, largest=1.7976931348623157e308)
"""Nodes may be raised to it, but float64 is never lowered."""
FP32 = Format(name="float32", elem=FLOAT, suffix="float", digits=23, least=-126, largest=3.4028234663852886e38)
FP16 = Format(name="fp16", elem=FLOAT16, suffix="fp16", digits=10, least=-14, largest=65504.0)
BF16 = Format(
    name="bf16", elem=BFLOAT16, suffix="bf16", digits=7, least=-126, largest=3.3895313892515355e38, least_opset=13
)
FP8_E4M3FN = Format(name="fp8 e4m3fn", elem=E4M3FN, suffix="e4m3fn", digits=3, least=-6, largest=448.0, least_opset=19)
FP8_E5M2 = Format(name="fp8 e5m2", elem=E5M2, suffix="e5m2", digits=2, least=-14, largest=57344.0, least_opset=19)

FORMATS = (FP32, FP16, BF16, FP8_E4M3FN, FP8_E5M2)
OF_ELEM = {each.elem: each for each in (*FORMATS, FP64)}

Form = Literal["emulate", "native"]
"""The form of a low precision in a model: rounding around float32 arithmetic, or nodes that compute in it."""


@cache
def formats_holding(form: Format) -> frozenset[Format]:
    """The formats that hold every value of a format, including itself."""
    return frozenset(each for each in OF_ELEM.values() if each.holds(form))


def suffix(elem: int) -> str:
    """The suffix of a tensor's name for its copy in another type."""
    return OF_ELEM[elem].suffix


_TYPE_TEXT = {
    f"tensor({name})": elem
    for name, elem in (("float", FLOAT), ("float16", FLOAT16), ("bfloat16", BFLOAT16), ("double", DOUBLE))
}

EXACT = frozenset(
    {
        "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Tile", "Slice", "Split",
        "Concat", "Gather", "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth", "ReverseSequence",
        "Compress", "Trilu", "Where", "Neg", "Abs", "Relu", "Max", "Min", "MaxPool", "GlobalMaxPool", "ReduceMax",
        "ReduceMin",
    }
)  # fmt: skip
"""Operators without rounding: results are values of their inputs, also negated, or zero."""

_SAME_TYPE = {"Attention": frozenset({"T1", "T2"}), "RMSNormalization": frozenset({"T", "V"})}
"""Type variables that engines require to be the same type, although the schema does not."""

_IN_FLOAT_ONLY = frozenset({"MeanVarianceNormalization"})
"""Operators defined by a function with float32 constants, although the schema allows other types."""

_CONVERSIONS = frozenset({"Cast", "CastLike", "BitCast", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})


class Role(Enum):
    """The role of a node in a search over precisions.

    LAYER: it computes in any of several precisions. CARRIER: it passes values on in their precision. FIXED: its types
    stay. CONVERSION: it reads any type, and its output type stays.
    """

    LAYER = "layer"
    CARRIER = "carrier"
    FIXED = "fixed"
    CONVERSION = "conversion"


@dataclass(frozen=True)
class NodeRole:
    """The role of a node. The types of the ``inputs`` and ``outputs`` at these positions may change to ``types``.

    ``reason`` says why a node that computes is FIXED.
    """

    role: Role
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    types: frozenset[int] = frozenset()
    reason: str = ""


ElementOf = Callable[[str], int]
"""Returns the element type of the tensor of that name; 0 if unknown."""


def node_role(
    node: onnx.NodeProto, opset: int, elem: ElementOf, needed: frozenset[int] = frozenset({FLOAT16})
) -> NodeRole:
    """The role of a node. ``opset`` is the version of the default domain; a layer must support all types ``needed``.

    The schema decides: a type may change if a type variable shared by floating-point inputs and outputs allows it. All
    other inputs keep their types, such as scales of Resize; so do nodes without such variables, which create values
    (Constant, Range), compare or choose them (Greater, ArgMax) or convert them, and operators without a schema.

    fp16 is needed by default even for rounding around float32 arithmetic: engines do not lower an operator without it.
    """
    if node.domain not in ("", "ai.onnx"):
        return NodeRole(Role.FIXED, reason=f"no schema of {node.domain}.{node.op_type} is known")
    if node.op_type in _CONVERSIONS:
        return NodeRole(Role.CONVERSION if node.op_type == "Cast" else Role.FIXED)
    formal = _formal(node.op_type, opset)
    if formal is None:
        return NodeRole(Role.FIXED, reason=f"no schema of {node.op_type} is known for opset {opset}")
    if node.op_type in _IN_FLOAT_ONLY:
        return NodeRole(Role.FIXED, reason=f"the function that defines {node.op_type} computes in fp32")
    # ONNX Runtime loads a node that scatters and reduces in fp16, and then refuses to run it.
    reductions = {attribute.s for attribute in node.attribute if attribute.name == "reduction"}
    if node.op_type in {"ScatterND", "ScatterElements"} and reductions - {b"", b"none"}:
        return NodeRole(Role.FIXED, reason=f"no engine is known to compute {node.op_type} with a reduction in fp16")
    outputs = _changing(node.output, formal.outputs, formal.shared, elem)
    output_variables = {_variable_at(formal.outputs, place) for place in outputs}
    wanted = output_variables | _SAME_TYPE.get(node.op_type, frozenset())
    shared = {variable: types for variable, types in formal.shared.items() if variable in wanted}
    inputs = _changing(node.input, formal.inputs, shared, elem)
    if not inputs or not outputs:
        return NodeRole(Role.FIXED)
    variables = output_variables | {_variable_at(formal.inputs, place) for place in inputs}
    types = frozenset.intersection(*(formal.shared[variable] for variable in variables))
    if node.op_type in EXACT:
        return NodeRole(Role.CARRIER, inputs, outputs, types)
    if not needed <= types:
        lacking = " and no ".join(suffix(elem) for elem in sorted(needed - types))
        return NodeRole(Role.FIXED, reason=f"{node.op_type} of opset {opset} knows no {lacking}")
    return NodeRole(Role.LAYER, inputs, outputs, types)


@dataclass(frozen=True)
class _Formal:
    """The type variables of an operator's inputs and outputs; ``shared`` are those of both, with allowed types."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shared: dict[str, frozenset[int]]


@lru_cache(maxsize=1024)
def _formal(op_type: str, opset: int) -> _Formal | None:
    schema = schema_of(op_type, opset, "")
    if schema is None:
        return None

    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    inputs, outputs = (
        tuple("" if each.option == variadic and not each.is_homogeneous else str(each.type_str) for each in formals)
        for formals in (schema.inputs, schema.outputs)
    )
    both = set(inputs) & (set(outputs) | _SAME_TYPE.get(op_type, frozenset()))
    allowed = {
        constraint.type_param_str: frozenset(
            _TYPE_TEXT[text] for text in constraint.allowed_type_strs if text in _TYPE_TEXT
        )
        for constraint in schema.type_constraints
    }
    shared = {variable: types for variable, types in allowed.items() if variable in both and types}
    return _Formal(inputs, outputs, shared)


def _variable_at(variables: tuple[str, ...], place: int) -> str:
    """The variable at a position; the last one is variadic."""
    return variables[min(place, len(variables) - 1)] if variables else ""


def _changing(
    names: Iterable[str], variables: tuple[str, ...], shared: dict[str, frozenset[int]], elem: ElementOf
) -> tuple[int, ...]:
    return tuple(
        place
        for place, name in enumerate(names)
        if name and _variable_at(variables, place) in shared and elem(name) in WORKING_TYPES
    )


_MOST_EXAMINED = 1024
"""Elements of a weight that is tested for formats that hold it exactly, such as masks, scales and constants."""


class Weights:
    """A cache of what is computed from the weights of a model in ``folder``, for all candidates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._exact: dict[bytes, frozenset[Format]] = {}
        self._converted: dict[tuple[str, int, str], onnx.TensorProto] = {}

    def exact(self, weight: onnx.TensorProto) -> frozenset[Format]:
        """The formats that hold all values of a small weight; empty for a large one."""
        if math.prod(weight.dims) > _MOST_EXAMINED or is_external(weight):
            return frozenset()
        key = weight.SerializeToString()
        if key not in self._exact:
            values = next(values_of(weight, self._folder))
            self._exact[key] = frozenset(
                each
                for each in FORMATS
                if np.array_equal(rounded(values, each), values.astype(np.float32), equal_nan=True)
            )
        return self._exact[key]

    def converted(self, graph: onnx.GraphProto, name: str, elem: int, new_name: str) -> onnx.TensorProto | None:
        """An initializer in another type; None if it is external, as a Cast is then better."""
        key = (name, elem, new_name)
        if key not in self._converted:
            weight = next(weight for weight in graph.initializer if weight.name == name)
            if is_external(weight):
                return None
            values = next(values_of(weight, self._folder))
            converted = type(weight)(name=new_name, data_type=elem, dims=weight.dims)
            with np.errstate(over="ignore", invalid="ignore"):
                converted.raw_data = values.astype(np.float32).astype(_dtype(elem)).tobytes()
            self._converted[key] = converted
        return self._converted[key]


def values_of(weight: onnx.TensorProto, folder: Path) -> Iterator[np.ndarray[Any, Any]]:
    """The flat values of a weight in its own type; external ones are yielded a few megabytes at a time."""
    dtype = _dtype(weight.data_type)
    if not is_external(weight):
        yield np.frombuffer(raw_values(weight), dtype)
        return
    span: Span = span_of(weight, folder)
    for chunk in chunks(weight.name, span):
        yield np.frombuffer(chunk, dtype)


def rounded(values: np.ndarray[Any, Any], form: Format) -> np.ndarray[Any, Any]:
    """Values rounded to a format, in float32. Too large ones become infinite, or in fp8 the largest number."""
    with np.errstate(over="ignore", invalid="ignore"):
        wide = values.astype(np.float32)
        if form.elem in (E4M3FN, E5M2):
            finite = np.isfinite(wide)
            wide = np.where(finite, np.clip(wide, -form.largest, form.largest), wide)
        return wide.astype(_dtype(form.elem)).astype(np.float32)


def _dtype(elem: int) -> np.dtype[Any]:
    little_endian = {FLOAT: "<f4", FLOAT16: "<f2"}
    return np.dtype(little_endian[elem]) if elem in little_endian else dtype_named(DTYPE_OF_ELEM[elem])


@dataclass(frozen=True)
class RangeLoss:
    """The values of a weight that a format cannot hold, of ``count``.

    ``saturated`` become infinite or the largest number, ``vanished`` become zero.
    """

    name: str
    count: int
    saturated: int
    vanished: int


def range_loss_of(weight: onnx.TensorProto, folder: Path, form: Format) -> RangeLoss | None:
    """The loss of a weight in a format; None if there is none. External values are read piece by piece."""
    # Values above the limit round beyond the largest number: it is half a step above, inclusive if the largest number
    # is odd. No float32 equals it, so it must not be compared as one.
    step = 2.0 ** math.floor(math.log2(form.largest)) * 2 * form.rounding
    tie = form.largest + step / 2
    limit = np.float64(tie if form.largest / step % 2 == 0 else math.nextafter(tie, 0))
    count = saturated = vanished = 0
    for values in values_of(weight, folder):
        size = np.abs(values.astype(np.float32))
        count += size.size
        saturated += int(np.count_nonzero(np.isfinite(size) & (size > limit)))
        vanished += int(np.count_nonzero((size > 0) & (size <= form.smallest / 2)))
    return RangeLoss(weight.name, count, saturated, vanished) if saturated or vanished else None
