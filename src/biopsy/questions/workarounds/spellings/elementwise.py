"""Spellings of what is computed element by element, in Python as far as they depend on more than the operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from biopsy.questions.workarounds.spellings.site import (
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT16,
    FLOATS,
    INT32,
    INT64,
    Drafts,
    Site,
)

GELU_BY_ERF = f"x * 0.5 * (Erf(x * {1 / math.sqrt(2)}) + 1)"
GELU_BY_TANH = f"x * 0.5 * (Tanh((x + x * x * x * 0.044715) * {math.sqrt(2 / math.pi)}) + 1)"

_SIGNED = FLOATS | {3, 5, INT32, INT64}
_MODERATE = 2.0**100
"""A divisor up to this, or above its reciprocal, has a reciprocal that neither overflows nor loses digits."""

_MOST_INPUTS = 64
_WIDER = {FLOAT16: FLOAT, BFLOAT16: FLOAT, FLOAT: DOUBLE}

DRAFTS = Drafts()


def _has_extrema(at: Site, x: str) -> bool:
    """Whether Max, Min and Clip take the type of a tensor: before opset 12 they are for floating-point numbers."""
    return at.opset >= 12 or at.elem(x) in {FLOAT, DOUBLE}


CONDITIONS: Mapping[str, Callable[..., bool]] = {
    "erf-as-gelu": lambda at, x, **_: at.is_float(x),
    "sigmoid-as-swish": lambda at, x: at.is_float(x),
    "leaky-relu-as-max": lambda at, x, alpha: 0 < alpha <= 1,
    "prelu-as-where": lambda at, x, slope: at.is_float(x),
    "prelu-with-whole-slope": lambda at, x, slope: at.kind(slope).shape is None or at.shape(slope) != at.shape(x),
    "mul-as-pow": lambda at, x: at.is_float(x),
    "div-as-reciprocal": lambda at, a, b: at.is_float(b),
    "div-of-one-as-reciprocal": lambda at, one, x: (
        at.is_float(x) and at.value(one).ndim <= at.rank(x) and at.single(one) == 1
    ),
    "sub-as-add": lambda at, a, b: at.elem(b) in _SIGNED,
    "neg-as-mul": lambda at, x: at.is_float(x),
    "relu-as-max": _has_extrema,
}
"""What must hold of what a pattern has matched, for a spelling that is written by its text."""


@DRAFTS.of("gelu-as-operators")
def _(at: Site, x: str, approximate: str) -> str:
    return at.write(GELU_BY_TANH if approximate == "tanh" else GELU_BY_ERF, x=x)


@DRAFTS.of("pow-as-mul")
def _(at: Site, x: str, exponent: str) -> str:
    at.require(at.is_float(x) and at.value(exponent).ndim <= at.rank(x) and at.single(exponent) in (2, 3))
    return at.write("x * x" if at.single(exponent) == 2 else "x * x * x", x=x)


@DRAFTS.of("div-by-constant-as-mul")
def _(at: Site, a: str, b: str) -> str:
    divisor = at.value(b)
    sizes = np.abs(divisor)
    at.require(at.elem(b) in {FLOAT, DOUBLE} and divisor.size > 0)
    at.require(bool(np.all((sizes <= _MODERATE) & (sizes >= 1 / _MODERATE))))
    return at.new("Mul", a, at.constant(1 / divisor, at.elem(b)))


@DRAFTS.of("sub-of-constant-as-add")
def _(at: Site, x: str, other: str) -> str:
    at.require(at.elem(other) in {FLOAT, DOUBLE} and at.scope.value_of(x) is None)
    return at.new("Add", x, at.constant(-at.value(other), at.elem(other)))


@DRAFTS.of("mean-of-tensors-as-sum")
def _(at: Site) -> str:
    count = len(at.node.input)
    at.require(count > 1)
    return at.write("total / count", at.node.input[0], total=at.new("Sum", *at.node.input), count=count)


_MIRRORED = {"Greater": "Less", "Less": "Greater", "GreaterOrEqual": "LessOrEqual", "LessOrEqual": "GreaterOrEqual"}


@DRAFTS.of("comparison-mirrored")
def _(at: Site) -> str:
    return at.new(_MIRRORED[at.node.op_type], *at.inputs(2)[::-1])


@DRAFTS.of("operands-swapped")
def _(at: Site) -> str:
    a, b = at.inputs(2)
    at.require(a != b)
    return at.copy([b, a])


@DRAFTS.of("clip-as-max-and-min")
def _(at: Site) -> str:
    from onnx import helper

    x, low, high = at.inputs(3)
    at.require(_has_extrema(at, x))
    if at.opset < 11:  # what is not given is the last finite number there
        finite = np.finfo(helper.tensor_dtype_to_np_dtype(at.elem(x)))
        low, high = (at.scalar(at.attribute(*bound), x) for bound in (("min", finite.min), ("max", finite.max)))
    at.require(bool(low or high))
    return at.write("y = Max(x, low) if low else x; Min(y, high) if high else y", x=x, low=low, high=high)


@DRAFTS.of("max-and-min-as-clip")
def _(at: Site, x: str, low: str, high: str) -> str:
    at.require(at.scope.value_of(x) is None and all(at.value(bound).ndim <= at.rank(x) for bound in (low, high)))
    least, most = (at.value(bound).reshape(()) for bound in (low, high))
    at.require(bool(least <= most))  # else the order of the two decides; nor is NaN at most anything
    if at.opset < 11:
        at.require(at.elem(x) == FLOAT)
        return at.new("Clip", x, min=float(least), max=float(most))
    at.require(_has_extrema(at, x))
    return at.new("Clip", x, at.constant(least, at.elem(x)), at.constant(most, at.elem(x)))


@DRAFTS.of("many-inputs-as-pairs", "concat-in-pairs")
def _(at: Site) -> str:
    at.require(2 < len(at.node.input) <= _MOST_INPUTS)
    first, *others = at.node.input
    for other in others:
        first = at.copy([first, other])
    return first


# Barriers: nodes that change no value and that optimizers do not see through. The node stands there again, and only its
# first output gets one.


def _behind(at: Site, elems: frozenset[int], text: str, **names: int) -> list[str]:
    elem = at.elem(at.node.output[0])
    at.require(bool(at.node.output[0]) and at.node.op_type not in {"Constant", "Identity"} and elem in elems)
    first, *others = at.copies(at.node.input)
    return [at.write(text, r=first, elem=elem, **names), *others]


@DRAFTS.of("cast-pair")
def _(at: Site) -> list[str]:
    wider = _WIDER.get(at.elem(at.node.output[0]), FLOAT)
    return _behind(at, frozenset(_WIDER), "Cast(Cast(r, to=wider), to=elem)", wider=wider)


@DRAFTS.of("max-with-itself")
def _(at: Site) -> list[str]:
    more = {FLOAT16, INT32, INT64} if at.opset >= 12 else set()
    return _behind(at, frozenset({FLOAT, DOUBLE, *more}), "Max(r, r)")


@DRAFTS.of("where-with-itself")
def _(at: Site) -> list[str]:
    return _behind(at, frozenset({FLOAT, DOUBLE, INT64, INT32}), "Where(r < r, r, r)")
