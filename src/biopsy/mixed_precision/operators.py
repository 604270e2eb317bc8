"""What can be said of an operator's precision: from the types that ONNX's own schemas allow, not from a list of ours.

A layer can be computed in a type if the type variables that its floating-point inputs share with its outputs allow it.
All other inputs (scales and regions of Resize, statistics of BatchNormalization, axes) keep the type they have. So do
nodes with none such: those that make values (Constant, Range, RandomNormal), compare or choose them (Greater, ArgMax,
NonMaxSuppression), convert them, and operators that no schema is known of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

from biopsy.mixed_precision.formats import BFLOAT16, DOUBLE, FLOAT, FLOAT16, WORKING_TYPES, suffix
from biopsy.model.schema import schema_of

if TYPE_CHECKING:
    import onnx

_TYPE_TEXT = {
    "tensor(float)": FLOAT,
    "tensor(float16)": FLOAT16,
    "tensor(bfloat16)": BFLOAT16,
    "tensor(double)": DOUBLE,
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
    if _reduces(node):
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


def _reduces(node: onnx.NodeProto) -> bool:
    """Whether a node scatters and reduces: ONNX Runtime loads it in fp16, and then refuses to run it."""
    return node.op_type in {"ScatterND", "ScatterElements"} and any(
        attribute.name == "reduction" and attribute.s not in {b"", b"none"} for attribute in node.attribute
    )


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
    inputs = tuple(_variable(formal) for formal in schema.inputs)
    outputs = tuple(_variable(formal) for formal in schema.outputs)
    both = set(inputs) & (set(outputs) | _TOGETHER.get(op_type, frozenset()))
    allowed = {
        constraint.type_param_str: frozenset(
            _TYPE_TEXT[text] for text in constraint.allowed_type_strs if text in _TYPE_TEXT
        )
        for constraint in schema.type_constraints
    }
    shared = {variable: types for variable, types in allowed.items() if variable in both and types}
    return _Formal(inputs, outputs, shared)


def _variable(formal: onnx.defs.OpSchema.FormalParameter) -> str:
    from onnx import defs

    variadic = formal.option == defs.OpSchema.FormalParameterOption.Variadic
    return "" if variadic and not formal.is_homogeneous else str(formal.type_str)


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
