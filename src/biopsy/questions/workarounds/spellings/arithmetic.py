"""Arithmetic, comparisons and choices, element by element; and Clip, Max and Min."""

from __future__ import annotations

import numpy as np

from biopsy.questions.workarounds.spellings.site import (
    DOUBLE,
    FLOAT,
    FLOATS,
    INT64,
    Family,
    Site,
)

_SIGNED = FLOATS | {3, 5, 6, INT64}
_MODERATE = 2.0**100
"""A divisor up to this, or above its reciprocal, has a reciprocal that neither overflows nor loses digits."""
_RECIPROCALS = "all values, but divisors whose reciprocal overflows or vanishes"

ARITHMETIC = Family()


@ARITHMETIC.by(
    "pow-as-mul",
    "Pow",
    matches="Pow with the exponent 2 or 3",
    writes="Mul",
    holds="all values; a third power may be rounded differently",
)
def _(at: Site) -> str:
    x, exponent = at.inputs(2)
    at.require(at.is_float(x) and at.value(exponent).ndim <= at.rank(x) and at.single(exponent) in (2, 3))
    return at.write("x * x" if at.single(exponent) == 2 else "x * x * x", x=x)


ARITHMETIC.text(
    "mul-as-pow",
    "Mul(x, other)",
    "Pow(x, 2)",
    where=lambda at, x, other: x == other and at.is_float(x),
    matches="Mul of a tensor with itself",
    writes="Pow with the exponent 2",
    cost="slower in engines that compute every power alike",
    holds="all values; rounded differently",
)
ARITHMETIC.text(
    "div-as-reciprocal",
    "Div(a, b)",
    "a * Reciprocal(b)",
    where=lambda at, a, b: at.is_float(b),
    writes="Mul by the Reciprocal",
    cost="one more pass over the divisor",
    holds=_RECIPROCALS,
)


@ARITHMETIC.by("reciprocal-and-mul-as-div", "Mul", matches="Mul by a Reciprocal", writes="Div", holds=_RECIPROCALS)
def _(at: Site) -> str:
    reciprocal, factor = at.either("Reciprocal")
    return at.new("Div", factor, reciprocal.node.input[0])


@ARITHMETIC.by(
    "div-by-constant-as-mul",
    "Div",
    matches="Div by a constant of moderate size",
    writes="Mul by its reciprocal",
    holds="all values; rounded differently",
)
def _(at: Site) -> str:
    a, b = at.inputs(2)
    divisor = at.value(b)
    sizes = np.abs(divisor)
    at.require(at.elem(b) in {FLOAT, DOUBLE} and divisor.size > 0)
    at.require(bool(np.all((sizes <= _MODERATE) & (sizes >= 1 / _MODERATE))))
    return at.new("Mul", a, at.constant(1 / divisor, at.elem(b)))


ARITHMETIC.text("reciprocal-as-div", "Reciprocal(x)", "1 / x", writes="Div of 1")
ARITHMETIC.text(
    "div-of-one-as-reciprocal",
    "Div(one, x)",
    "Reciprocal(x)",
    where=lambda at, one, x: at.is_float(x) and at.value(one).ndim <= at.rank(x) and at.single(one) == 1,
    matches="Div of the constant 1",
    writes="Reciprocal",
)
ARITHMETIC.text(
    "sub-as-add",
    "Sub(a, b)",
    "a + -b",
    where=lambda at, a, b: at.elem(b) in _SIGNED,
    writes="Add of the Neg",
    cost="one more pass over the second tensor",
)


@ARITHMETIC.by(
    "sub-of-constant-as-add", "Sub", matches="Sub of a constant", writes="Add of the constant with the other sign"
)
def _(at: Site) -> str:
    x, other = at.inputs(2)
    at.require(at.elem(other) in {FLOAT, DOUBLE} and at.scope.value_of(x) is None)
    return at.new("Add", x, at.constant(-at.value(other), at.elem(other)))


ARITHMETIC.text("neg-as-mul", "Neg(x)", "x * -1", where=lambda at, x: at.is_float(x), writes="Mul by -1")


@ARITHMETIC.by(
    "mean-of-tensors-as-sum",
    "Mean",
    matches="Mean of several tensors",
    writes="Sum and Div",
    cost="one more pass over the tensor",
    holds="all values whose sum does not overflow; rounded differently",
    least_opset=8,
)
def _(at: Site) -> str:
    count = len(at.node.input)
    at.require(count > 1)
    return at.write("total / count", at.node.input[0], total=at.new("Sum", *at.node.input), count=count)


_MIRRORED = {"Greater": "Less", "Less": "Greater", "GreaterOrEqual": "LessOrEqual", "LessOrEqual": "GreaterOrEqual"}


@ARITHMETIC.by("comparison-mirrored", *_MIRRORED, writes="the mirrored comparison of the swapped operands")
def _(at: Site) -> str:
    a, b = at.inputs(2)
    return at.new(_MIRRORED[at.node.op_type], b, a)


@ARITHMETIC.by(
    "operands-swapped",
    *("Add", "Mul", "And", "Or", "Xor", "Equal"),
    writes="the same of the swapped operands: some fusions look at one order only",
)
def _(at: Site) -> str:
    a, b = at.inputs(2)
    at.require(a != b)
    return at.copy([b, a])


ARITHMETIC.text(
    "where-swapped",
    "Where(condition, a, b)",
    "Where(Not(condition), b, a)",
    writes="Where of the opposite condition and the swapped tensors",
    cost="one pass over the condition",
    least_opset=9,
)


# Clip, Max and Min.

_MOST_INPUTS = 64
_SIGN_OF_ZERO = "the sign of zero may differ"

CLAMPING = Family()


def _has_extrema(at: Site, x: str) -> bool:
    """Whether Max, Min and Clip take the type of a tensor: before opset 12 they are for floating-point numbers."""
    return at.opset >= 12 or at.elem(x) in {FLOAT, DOUBLE}


@CLAMPING.by(
    "clip-as-max-and-min",
    "Clip",
    writes="Min(Max(x, min), max)",
    cost="one more pass over the tensor unless the engine fuses the two",
    holds=f"all values; an infinity stays one where its bound is not given, and {_SIGN_OF_ZERO}",
)
def _(at: Site) -> str:
    from onnx import helper

    x, low, high = at.inputs(3)
    at.require(_has_extrema(at, x))
    if at.opset < 11:  # what is not given is the last finite number there
        finite = np.finfo(helper.tensor_dtype_to_np_dtype(at.elem(x)))
        low, high = (at.scalar(at.attribute(*bound), x) for bound in (("min", finite.min), ("max", finite.max)))
    at.require(bool(low or high))
    clipped = at.new("Max", x, low) if low else x
    return at.new("Min", clipped, high) if high else clipped


@CLAMPING.by(
    "max-and-min-as-clip",
    *("Min", "Max"),
    matches="Max and Min with constant bounds",
    writes="Clip",
    holds=f"all values, where the lower bound is at most the upper one; {_SIGN_OF_ZERO}",
)
def _(at: Site) -> str:
    inner, outer_bound = _bounded(at)
    x, inner_bound = _bounded(at.maker(inner, "Min" if at.node.op_type == "Max" else "Max"))
    bounds = (inner_bound, outer_bound) if at.node.op_type == "Min" else (outer_bound, inner_bound)
    at.require(all(at.value(bound).ndim <= at.rank(x) for bound in bounds))
    low, high = (at.value(bound).reshape(()) for bound in bounds)
    at.require(bool(low <= high))  # else the order of the two decides; nor is NaN at most anything
    if at.opset < 11:
        at.require(at.elem(x) == FLOAT)
        return at.new("Clip", x, min=float(low), max=float(high))
    at.require(_has_extrema(at, x))
    return at.new("Clip", x, at.constant(low, at.elem(x)), at.constant(high, at.elem(x)))


def _bounded(at: Site) -> tuple[str, str]:
    """The tensor and the constant of which a node takes the greater or lesser."""
    at.require(len(at.node.input) == 2)
    x, bound = sorted(at.node.input, key=lambda name: at.scope.value_of(name) is not None)
    at.require(at.scope.value_of(x) is None is not at.scope.value_of(bound))
    return x, bound


CLAMPING.text(
    "relu-as-max",
    "Relu(x)",
    "Max(x, 0)",
    where=_has_extrema,
    cost="engines fuse it less often with what stands before it",
    holds=f"all values; {_SIGN_OF_ZERO}",
)
CLAMPING.text(
    "relu-as-where",
    "Relu(x)",
    "Where(x < 0, 0, x)",
    cost="two more passes over the tensor; engines fuse it less often with what stands before it",
    holds=f"all values; {_SIGN_OF_ZERO}",
    least_opset=9,
)


def in_pairs(at: Site) -> str:
    """The same operator of the first two inputs, then of that and the next one, and so on."""
    at.require(2 < len(at.node.input) <= _MOST_INPUTS)
    first, *others = at.node.input
    for other in others:
        first = at.copy([first, other])
    return first


CLAMPING.by(
    "many-inputs-as-pairs",
    *("Max", "Min", "Sum"),
    matches="Max, Min or Sum of three inputs or more",
    writes="the same of two inputs each",
    cost="a pass over the tensor for each further input",
    holds=f"all values; a Sum may be rounded differently, and {_SIGN_OF_ZERO}",
    least_opset=8,
)(in_pairs)
