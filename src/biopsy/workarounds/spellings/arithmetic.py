"""Arithmetic, comparisons and choices, element by element."""

from __future__ import annotations

import numpy as np

from biopsy.workarounds.spellings.site import FLOATS, INT64, Site
from biopsy.workarounds.spellings.spelling import Spelling

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
