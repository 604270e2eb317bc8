"""Formats of numbers: what they can hold, what operators take them, and what conversion does to weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from biopsy.model.external import Span, chunks, is_external, raw_values, span_of
from biopsy.model.tensor_type import DTYPE_OF_ELEM
from biopsy.model.walk import schema_of
from biopsy.tensors.types import dtype_named

if TYPE_CHECKING:
    import onnx

FLOAT, FLOAT16, DOUBLE, BFLOAT16, E4M3FN, E5M2 = 1, 10, 11, 16, 17, 19
"""Element types as onnx.proto3 numbers them."""

WORKING_TYPES = frozenset({FLOAT, FLOAT16, BFLOAT16})
"""Element types that a layer may be moved between. float64 is left alone: who uses it needs it."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of floating-point numbers.

    ``digits`` are the stored bits of its significand, ``least`` is the exponent of the least normal number, ``largest``
    the greatest finite one. ``suffix`` is what is added to the name of a tensor for its copy in this format.
    ``least_opset`` is the first in which Cast knows it.
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
        """Whether it has every value of another format."""
        has_digits = self.digits >= other.digits and self.smallest <= other.smallest
        return has_digits and self.largest >= other.largest


FP64 = Format(name="float64", elem=DOUBLE, suffix="double", digits=52, least=-1022, largest=1.7976931348623157e308)
"""What nodes may be raised to; no model that has it is lowered."""
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
"""How a low precision gets into a model: by rounding around float32 arithmetic, or by nodes that compute in it."""


@cache
def holders(form: Format) -> frozenset[Format]:
    """The formats that hold every value of a format, itself among them."""
    return frozenset(each for each in OF_ELEM.values() if each.holds(form))


def suffix(elem: int) -> str:
    """What is added to the name of a tensor for its copy in another type."""
    return OF_ELEM[elem].suffix


# What can be said of an operator's precision: from the types that ONNX's own schemas allow, not from a list of ours.
#
# A layer can be computed in a type if the type variables that its floating-point inputs share with its outputs allow
# it. All other inputs (scales and regions of Resize, statistics of BatchNormalization, axes) keep the type they have.
# So do nodes with none such: those that make values (Constant, Range, RandomNormal), compare or choose them (Greater,
# ArgMax, NonMaxSuppression), convert them, and operators that no schema is known of.

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
"""Operators whose results are values of their inputs, or those with another sign, or zero: they round nothing."""

_TOGETHER = {"Attention": frozenset({"T1", "T2"}), "RMSNormalization": frozenset({"T", "V"})}
"""Type variables that must have one type, though a schema tells them apart: else no engine loads the model."""

_IN_FLOAT_ONLY = frozenset({"MeanVarianceNormalization"})
"""Operators that the schema allows in other types, but whose function in the standard has constants in float32."""

_CONVERSIONS = frozenset({"Cast", "CastLike", "BitCast", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})


class Role(Enum):
    """What a node is for a search over precisions.

    LAYER: it computes, and can do so in several precisions. CARRIER: it hands on values in the precision they have.
    FIXED: its types stay. CONVERSION: it reads any type, and gives what it gives.
    """

    LAYER = "layer"
    CARRIER = "carrier"
    FIXED = "fixed"
    CONVERSION = "conversion"


@dataclass(frozen=True)
class NodeRole:
    """The role of a node. ``inputs`` and ``outputs`` are the positions whose type may change, ``types`` to which."""

    role: Role
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    types: frozenset[int] = frozenset()
    reason: str = ""


ElementOf = Callable[[str], int]
"""The element type of the tensor of that name; 0 if it is not known or no tensor."""


def node_role(
    node: onnx.NodeProto, opset: int, elem: ElementOf, needed: frozenset[int] = frozenset({FLOAT16})
) -> NodeRole:
    """What a node is. ``opset`` is the version of the default domain; a layer must know all types ``needed``.

    Rounding around float32 arithmetic needs none, but what ONNX has no fp16 for is nothing that engines lower either.
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
    given = {_at(formal.outputs, place) for place in outputs}
    together = _TOGETHER.get(node.op_type, frozenset())
    shared = {variable: types for variable, types in formal.shared.items() if variable in given | together}
    inputs = _changing(node.input, formal.inputs, shared, elem)
    if not inputs or not outputs:
        return NodeRole(Role.FIXED)
    variables = {_at(formal.inputs, place) for place in inputs} | {_at(formal.outputs, place) for place in outputs}
    types = frozenset.intersection(*(formal.shared[variable] for variable in variables))
    if node.op_type in EXACT:
        return NodeRole(Role.CARRIER, inputs, outputs, types)
    if not needed <= types:
        lacking = " and no ".join(suffix(elem) for elem in sorted(needed - types))
        return NodeRole(Role.FIXED, reason=f"{node.op_type} of opset {opset} knows no {lacking}")
    return NodeRole(Role.LAYER, inputs, outputs, types)


@dataclass(frozen=True)
class _Formal:
    """Type variables of formal inputs and outputs; ``shared``: those of both, with the working types they allow."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shared: dict[str, frozenset[int]]


@lru_cache(maxsize=1024)
def _formal(op_type: str, opset: int) -> _Formal | None:
    schema = schema_of(op_type, opset, "")
    if schema is None:
        return None
    from onnx import defs

    variadic = defs.OpSchema.FormalParameterOption.Variadic
    inputs, outputs = (
        tuple("" if one.option == variadic and not one.is_homogeneous else str(one.type_str) for one in formals)
        for formals in (schema.inputs, schema.outputs)
    )
    both = set(inputs) & (set(outputs) | _TOGETHER.get(op_type, frozenset()))
    allowed = {
        constraint.type_param_str: frozenset(
            _TYPE_TEXT[text] for text in constraint.allowed_type_strs if text in _TYPE_TEXT
        )
        for constraint in schema.type_constraints
    }
    shared = {variable: types for variable, types in allowed.items() if variable in both and types}
    return _Formal(inputs, outputs, shared)


def _at(variables: tuple[str, ...], place: int) -> str:
    """The variable at a position; the last one is repeated, as variadic inputs are."""
    return variables[min(place, len(variables) - 1)] if variables else ""


def _changing(
    names: Iterable[str], variables: tuple[str, ...], shared: dict[str, frozenset[int]], elem: ElementOf
) -> tuple[int, ...]:
    return tuple(
        place
        for place, name in enumerate(names)
        if name and _at(variables, place) in shared and elem(name) in WORKING_TYPES
    )


# Weights in other formats: converted once, and what conversion does to them.

_MOST_LOOKED_AT = 1024
"""Elements of a weight that is looked at to see whether a format holds it exactly: masks, scales, constants."""


class Weights:
    """The weights of a model in ``folder``: what is worked out about them once and asked for in every candidate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._exact: dict[bytes, frozenset[Format]] = {}
        self._converted: dict[tuple[str, int, str], onnx.TensorProto] = {}

    def exact(self, weight: onnx.TensorProto) -> frozenset[Format]:
        """The formats that hold all values of a small weight; none of a large one."""
        if math.prod(weight.dims) > _MOST_LOOKED_AT or is_external(weight):
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
        """An initializer in another type; None if its values stand elsewhere and are better cast there."""
        key = (name, elem, new_name)
        if key not in self._converted:
            weight = next(weight for weight in graph.initializer if weight.name == name)
            if is_external(weight):
                return None
            values = next(values_of(weight, self._folder))
            made = type(weight)(name=new_name, data_type=elem, dims=weight.dims)
            with np.errstate(over="ignore", invalid="ignore"):
                made.raw_data = values.astype(np.float32).astype(_dtype(elem)).tobytes()
            self._converted[key] = made
        return self._converted[key]


def values_of(weight: onnx.TensorProto, folder: Path) -> Iterator[np.ndarray[Any, Any]]:
    """The values of a weight in float32 or its own type, flat; those in other files a few megabytes at a time."""
    dtype = _dtype(weight.data_type)
    if not is_external(weight):
        yield np.frombuffer(raw_values(weight), dtype)
        return
    span: Span = span_of(weight, folder)
    for chunk in chunks(weight.name, span):
        yield np.frombuffer(chunk, dtype)


def rounded(values: np.ndarray[Any, Any], form: Format) -> np.ndarray[Any, Any]:
    """Values as a format holds them, in float32. What is too large is infinite, or the largest number in fp8."""
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
    """What a format does to a weight: how many of its ``count`` values become infinite (or the largest), or zero."""

    name: str
    count: int
    saturated: int
    vanished: int


def range_loss_of(weight: onnx.TensorProto, folder: Path, form: Format) -> RangeLoss | None:
    """What a format does to a weight, None if nothing. Read piece by piece where the values stand elsewhere."""
    # What is above the limit rounds beyond the largest number: half a step above it, and there too if the largest is
    # odd. The limit is no float32, so it must not be compared as one.
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
