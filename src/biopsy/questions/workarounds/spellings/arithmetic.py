"""Arithmetic, comparisons and choices, element by element; and Clip, Max and Min."""

from __future__ import annotations

from typing import Any

import numpy as np

from biopsy.questions.workarounds.spellings.site import DOUBLE, FLOAT, FLOATS, INT64, Site, Spelling

_SIGNED = FLOATS | {3, 5, 6, INT64}
_MODERATE = 2.0**100
"""A divisor up to this, or above its reciprocal, has a reciprocal that neither overflows nor loses digits."""


def _pow_as_mul(at: Site) -> str:
    x, exponent = at.inputs(2)
    at.require(at.elem(x) in FLOATS and at.value(exponent).ndim <= at.rank(x))
    power = at.single(exponent)
    at.require(power in (2, 3))
    square = at.new("Mul", x, x)
    return square if power == 2 else at.new("Mul", square, x)


def _mul_as_pow(at: Site) -> str:
    x, other = at.inputs(2)
    at.require(x == other and at.elem(x) in FLOATS)
    return at.new("Pow", x, at.scalar(2, x))


def _div_as_reciprocal(at: Site) -> str:
    a, b = at.inputs(2)
    at.require(at.elem(b) in FLOATS)
    return at.new("Mul", a, at.new("Reciprocal", b))


def _reciprocal_and_mul_as_div(at: Site) -> str:
    for one, other in (at.inputs(2), reversed(at.inputs(2))):
        place = at.scope.producers.get(other)
        if place is not None and at.scope.graph.node[place].op_type == "Reciprocal":
            return at.new("Div", one, at.maker(other, "Reciprocal").inputs(1)[0])
    at.require(False)
    return ""


def _div_by_constant_as_mul(at: Site) -> str:
    a, b = at.inputs(2)
    elem, divisor = at.elem(b), at.value(b)
    at.require(elem in {1, 11} and divisor.size > 0)
    sizes = np.abs(divisor)
    at.require(bool(np.all((sizes <= _MODERATE) & (sizes >= 1 / _MODERATE))))
    return at.new("Mul", a, at.constant(1 / divisor, elem))


def _reciprocal_as_div(at: Site) -> str:
    (x,) = at.inputs(1)
    return at.new("Div", at.scalar(1, x), x)


def _div_of_one_as_reciprocal(at: Site) -> str:
    one, x = at.inputs(2)
    at.require(at.elem(x) in FLOATS and at.value(one).ndim <= at.rank(x) and at.single(one) == 1)
    return at.new("Reciprocal", x)


def _sub_as_add(at: Site) -> str:
    a, b = at.inputs(2)
    at.require(at.elem(b) in _SIGNED)
    return at.new("Add", a, at.new("Neg", b))


def _neg_as_mul(at: Site) -> str:
    (x,) = at.inputs(1)
    at.require(at.elem(x) in FLOATS)
    return at.new("Mul", x, at.scalar(-1, x))


def _mean_as_sum(at: Site) -> str:
    count = len(at.node.input)
    at.require(count > 1)
    return at.new("Div", at.new("Sum", *at.node.input), at.scalar(count, at.node.input[0]))


_MIRRORED = {"Greater": "Less", "Less": "Greater", "GreaterOrEqual": "LessOrEqual", "LessOrEqual": "GreaterOrEqual"}


def _comparison_mirrored(at: Site) -> str:
    a, b = at.inputs(2)
    return at.new(_MIRRORED[at.node.op_type], b, a)


def _operands_swapped(at: Site) -> str:
    a, b = at.inputs(2)
    at.require(a != b)
    return at.copy([b, a])


def _where_swapped(at: Site) -> str:
    condition, a, b = at.inputs(3)
    return at.new("Where", at.new("Not", condition), b, a)


def _sub_of_constant_as_add(at: Site) -> str:
    x, other = at.inputs(2)
    elem = at.elem(other)
    at.require(elem in {1, 11} and at.scope.value_of(x) is None)
    return at.new("Add", x, at.constant(-at.value(other), elem))


SPELLINGS = (
    Spelling(
        name="pow-as-mul",
        operators=("Pow",),
        matches="Pow with the exponent 2 or 3",
        writes="Mul",
        draft=_pow_as_mul,
        cost="nothing",
        exact=False,
        holds="all values; a third power may be rounded differently",
    ),
    Spelling(
        name="mul-as-pow",
        operators=("Mul",),
        matches="Mul of a tensor with itself",
        writes="Pow with the exponent 2",
        draft=_mul_as_pow,
        cost="slower in engines that compute every power alike",
        exact=False,
        holds="all values; rounded differently",
    ),
    Spelling(
        name="div-as-reciprocal",
        operators=("Div",),
        matches="Div",
        writes="Mul by the Reciprocal",
        draft=_div_as_reciprocal,
        cost="one more pass over the divisor",
        exact=False,
        holds="all values, but divisors whose reciprocal overflows or vanishes",
    ),
    Spelling(
        name="reciprocal-and-mul-as-div",
        operators=("Mul",),
        matches="Mul by a Reciprocal",
        writes="Div",
        draft=_reciprocal_and_mul_as_div,
        cost="nothing",
        exact=False,
        holds="all values, but divisors whose reciprocal overflows or vanishes",
    ),
    Spelling(
        name="div-by-constant-as-mul",
        operators=("Div",),
        matches="Div by a constant of moderate size",
        writes="Mul by its reciprocal",
        draft=_div_by_constant_as_mul,
        cost="nothing",
        exact=False,
        holds="all values; rounded differently",
    ),
    Spelling(
        name="reciprocal-as-div",
        operators=("Reciprocal",),
        matches="Reciprocal",
        writes="Div of 1",
        draft=_reciprocal_as_div,
        cost="nothing",
        exact=True,
    ),
    Spelling(
        name="div-of-one-as-reciprocal",
        operators=("Div",),
        matches="Div of the constant 1",
        writes="Reciprocal",
        draft=_div_of_one_as_reciprocal,
        cost="nothing",
        exact=True,
    ),
    Spelling(
        name="sub-as-add",
        operators=("Sub",),
        matches="Sub",
        writes="Add of the Neg",
        draft=_sub_as_add,
        cost="one more pass over the second tensor",
        exact=True,
    ),
    Spelling(
        name="sub-of-constant-as-add",
        operators=("Sub",),
        matches="Sub of a constant",
        writes="Add of the constant with the other sign",
        draft=_sub_of_constant_as_add,
        cost="nothing",
        exact=True,
    ),
    Spelling(
        name="neg-as-mul",
        operators=("Neg",),
        matches="Neg",
        writes="Mul by -1",
        draft=_neg_as_mul,
        cost="nothing",
        exact=True,
    ),
    Spelling(
        name="mean-of-tensors-as-sum",
        operators=("Mean",),
        matches="Mean of several tensors",
        writes="Sum and Div",
        draft=_mean_as_sum,
        cost="one more pass over the tensor",
        exact=False,
        holds="all values whose sum does not overflow; rounded differently",
        least_opset=8,
    ),
    Spelling(
        name="comparison-mirrored",
        operators=tuple(_MIRRORED),
        matches="Greater, Less, GreaterOrEqual or LessOrEqual",
        writes="the mirrored comparison of the swapped operands",
        draft=_comparison_mirrored,
        cost="nothing",
        exact=True,
    ),
    Spelling(
        name="operands-swapped",
        operators=("Add", "Mul", "And", "Or", "Xor", "Equal"),
        matches="Add, Mul, And, Or, Xor or Equal",
        writes="the same of the swapped operands: some fusions look at one order only",
        draft=_operands_swapped,
        cost="nothing",
        exact=True,
    ),
    Spelling(
        name="where-swapped",
        operators=("Where",),
        matches="Where",
        writes="Where of the opposite condition and the swapped tensors",
        draft=_where_swapped,
        cost="one pass over the condition",
        exact=True,
        least_opset=9,
    ),
)


# Clip, Max and Min.

_MOST_INPUTS = 64

_INTEGERS_SINCE = 12
"""Before this opset Max, Min and Clip are for floating-point numbers."""


def _clip_as_max_and_min(at: Site) -> str:
    x, low, high = at.inputs(3)
    elem = at.elem(x)
    at.require(at.opset >= _INTEGERS_SINCE or elem in {FLOAT, DOUBLE})
    if at.opset < 11:
        least, most = _finite(elem)  # what is not given is the last finite number there
        low, high = (at.constant(bound, elem) for bound in (at.attribute("min", least), at.attribute("max", most)))
    at.require(bool(low or high))
    found = at.new("Max", x, low) if low else x
    return at.new("Min", found, high) if high else found


def _finite(elem: int) -> tuple[Any, Any]:
    """The least and greatest finite number of an element type."""
    from onnx import helper

    info = np.finfo(helper.tensor_dtype_to_np_dtype(elem))
    return info.min, info.max


def _max_and_min_as_clip(at: Site) -> str:
    at.require(len(at.node.input) == 2)
    outer, inner = at.node.op_type, "Min" if at.node.op_type == "Max" else "Max"
    for first, bound in (tuple(at.node.input), tuple(reversed(at.node.input))):
        if at.scope.value_of(bound) is None or at.scope.value_of(first) is not None:
            continue
        made = at.maker(first, inner)
        at.require(len(made.node.input) == 2)
        for x, other in (tuple(made.node.input), tuple(reversed(made.node.input))):
            if at.scope.value_of(other) is None or at.scope.value_of(x) is not None:
                continue
            low, high = (other, bound) if outer == "Min" else (bound, other)
            return _clipped(at, x, low, high)
    at.require(False)
    return ""


def _clipped(at: Site, x: str, low: str, high: str) -> str:
    bounds = [at.value(bound) for bound in (low, high)]
    at.require(all(bound.size == 1 and bound.ndim <= at.rank(x) for bound in bounds))
    least, most = (bound.reshape(()) for bound in bounds)
    at.require(bool(least <= most))  # else the order of the two decides; nor is NaN at most anything
    elem = at.elem(x)
    if at.opset < 11:
        at.require(elem == FLOAT)
        return at.new("Clip", x, min=float(least), max=float(most))
    at.require(at.opset >= _INTEGERS_SINCE or elem in {FLOAT, DOUBLE})
    return at.new("Clip", x, at.constant(least, elem), at.constant(most, elem))


def _relu_as_max(at: Site) -> str:
    (x,) = at.inputs(1)
    at.require(at.opset >= _INTEGERS_SINCE or at.elem(x) in {FLOAT, DOUBLE})
    return at.new("Max", x, at.scalar(0, x))


def _relu_as_where(at: Site) -> str:
    (x,) = at.inputs(1)
    zero = at.scalar(0, x)
    return at.new("Where", at.new("Less", x, zero), zero, x)


def _folded(at: Site) -> str:
    """Max, Min, Sum of several inputs as the same of two."""
    at.require(2 < len(at.node.input) <= _MOST_INPUTS)
    found = at.node.input[0]
    for other in at.node.input[1:]:
        found = at.copy([found, other])
    return found


_SIGN_OF_ZERO = "the sign of zero may differ"

CLAMPING_SPELLINGS = (
    Spelling(
        name="clip-as-max-and-min",
        operators=("Clip",),
        matches="Clip",
        writes="Min(Max(x, min), max)",
        draft=_clip_as_max_and_min,
        cost="one more pass over the tensor unless the engine fuses the two",
        exact=False,
        holds=f"all values; an infinity stays one where its bound is not given, and {_SIGN_OF_ZERO}",
    ),
    Spelling(
        name="max-and-min-as-clip",
        operators=("Min", "Max"),
        matches="Max and Min with constant bounds",
        writes="Clip",
        draft=_max_and_min_as_clip,
        cost="nothing",
        exact=False,
        holds=f"all values, where the lower bound is at most the upper one; {_SIGN_OF_ZERO}",
    ),
    Spelling(
        name="relu-as-max",
        operators=("Relu",),
        matches="Relu",
        writes="Max(x, 0)",
        draft=_relu_as_max,
        cost="engines fuse it less often with what stands before it",
        exact=False,
        holds=f"all values; {_SIGN_OF_ZERO}",
    ),
    Spelling(
        name="relu-as-where",
        operators=("Relu",),
        matches="Relu",
        writes="Where(x < 0, 0, x)",
        draft=_relu_as_where,
        cost="two more passes over the tensor; engines fuse it less often with what stands before it",
        exact=False,
        holds=f"all values; {_SIGN_OF_ZERO}",
        least_opset=9,
    ),
    Spelling(
        name="many-inputs-as-pairs",
        operators=("Max", "Min", "Sum"),
        matches="Max, Min or Sum of three inputs or more",
        writes="the same of two inputs each",
        draft=_folded,
        cost="a pass over the tensor for each further input",
        exact=False,
        holds=f"all values; a Sum may be rounded differently, and {_SIGN_OF_ZERO}",
        least_opset=8,
    ),
)
