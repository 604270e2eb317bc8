"""Spellings of elementwise operators, barriers, and guards against inputs for which ONNX defines no result."""

from __future__ import annotations

import numpy as np
from onnx import helper

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
from biopsy.tensors.results import Array

_INTEGERS = frozenset({2, 3, 4, 5, INT32, INT64, 12, 13})
_SIGNED = FLOATS | {3, 5, INT32, INT64}
_MODERATE = 2.0**100
"""Divisors between 1 / this and this have a reciprocal that neither overflows nor loses digits."""

_MOST_INPUTS = 64
_WIDER = {FLOAT16: FLOAT, BFLOAT16: FLOAT, FLOAT: DOUBLE}


def _has_extrema(at: Site, x: str) -> bool:
    """Whether Max, Min and Clip take the type of a tensor: before opset 12 only float32 and float64."""
    return at.opset >= 12 or at.elem(x) in {FLOAT, DOUBLE}


DRAFTS = Drafts(
    {
        "gelu-as-operators": lambda at, x, approximate: {"by_tanh": approximate == "tanh"},
        "erf-as-gelu": lambda at, x, **_: at.is_float(x),
        "sigmoid-as-swish": lambda at, x: at.is_float(x),
        "leaky-relu-as-max": lambda at, x, alpha: 0 < alpha <= 1,
        "prelu-as-where": lambda at, x, slope: at.is_float(x),
        "prelu-with-whole-slope": lambda at, x, slope: at.kind(slope).shape is None or at.shape(slope) != at.shape(x),
        "pow-as-mul": lambda at, x, exponent: (
            at.is_float(x)
            and at.value(exponent).ndim <= at.rank(x)
            and at.single(exponent) in (2, 3)
            and {"is_cube": at.single(exponent) == 3}
        ),
        "mul-as-pow": lambda at, x: at.is_float(x),
        "div-as-reciprocal": lambda at, a, b: at.is_float(b),
        "div-of-one-as-reciprocal": lambda at, one, x: (
            at.is_float(x) and at.value(one).ndim <= at.rank(x) and at.single(one) == 1
        ),
        "sub-as-add": lambda at, a, b: at.elem(b) in _SIGNED,
        "sub-of-constant-as-add": lambda at, x, other: (
            at.elem(other) in {FLOAT, DOUBLE}
            and at.scope.value_of(x) is None
            and {"opposite": at.constant(-at.value(other), at.elem(other))}
        ),
        "neg-as-mul": lambda at, x: at.is_float(x),
        "mean-of-tensors-as-sum": lambda at: (
            len(at.node.input) > 1
            and {"x": at.node.input[0], "total": at.new("Sum", *at.node.input), "count": len(at.node.input)}
        ),
        "relu-as-max": _has_extrema,
    }
)


@DRAFTS.of("div-by-constant-as-mul")
def _(at: Site, a: str, b: str) -> str:
    divisor = at.value(b)
    sizes = np.abs(divisor)
    at.require(at.elem(b) in {FLOAT, DOUBLE} and divisor.size > 0)
    at.require(bool(np.all((sizes <= _MODERATE) & (sizes >= 1 / _MODERATE))))
    return at.new("Mul", a, at.constant(1 / divisor, at.elem(b)))


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
    x, low, high = at.inputs(3)
    at.require(_has_extrema(at, x))
    if at.opset < 11:  # the defaults are the extreme finite numbers
        finite = np.finfo(helper.tensor_dtype_to_np_dtype(at.elem(x)))
        low, high = (at.scalar(at.attribute(*bound), x) for bound in (("min", finite.min), ("max", finite.max)))
    at.require(bool(low or high))
    return at.write("y = Max(x, low) if low else x; Min(y, high) if high else y", x=x, low=low, high=high)


@DRAFTS.of("max-and-min-as-clip")
def _(at: Site, x: str, low: str, high: str) -> str:
    at.require(at.scope.value_of(x) is None and all(at.value(bound).ndim <= at.rank(x) for bound in (low, high)))
    least, most = (at.value(bound).reshape(()) for bound in (low, high))
    at.require(bool(least <= most))  # otherwise the order of the two matters; also false for NaN
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


def _behind(at: Site, elems: frozenset[int], text: str, **names: int) -> list[str]:
    """Write the node again, and a barrier behind its first output."""
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


@DRAFTS.of("divisor-guarded")
def _(at: Site) -> str:
    a, b = at.inputs(2)
    at.require(at.elem(b) in _INTEGERS)
    divisor = at.scope.value_of(b)
    at.require(divisor is None or not np.all(divisor))
    return at.copy([a, at.write("Where(Equal(b, 0), 1, b)", b=b)])


@DRAFTS.of("cast-guarded")
def _(at: Site) -> str:
    (x,) = at.inputs(1)
    elem, to = at.elem(x), at.attribute("to", 0)
    at.require(elem in FLOATS and to in _INTEGERS)
    low, high = (at.constant(bound, elem) for bound in _bounds(elem, to))
    return at.copy([at.write("Where(And(low < x, x < high), x, 0)", x=x, low=low, high=high)])


@DRAFTS.of("index-guarded")
def _(at: Site) -> str:
    x, indices, *others = at.node.input
    size, given = at.shape(x)[at.attribute("axis", 0)], at.scope.value_of(indices)
    at.require(isinstance(size, int) and (given is None or bool((given < 0).any())))
    return at.copy([x, at.write(f"Where(i < 0, i + {size}, i)", i=indices), *others])


def _bounds(elem: int, to: int) -> tuple[Array, Array]:
    """The numbers of a floating-point type between which all can be cast to an integer type, both excluded."""
    dtype, limits = helper.tensor_dtype_to_np_dtype(elem), np.iinfo(helper.tensor_dtype_to_np_dtype(to))
    with np.errstate(over="ignore"):
        least, below, above = (np.float64(each).astype(dtype) for each in (limits.min, limits.min - 1, limits.max + 1))
    return np.nextafter(least, np.array(-np.inf, dtype)) if below == least else below, above
