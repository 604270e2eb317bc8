"""Clip, Max and Min."""

from __future__ import annotations

from typing import Any

import numpy as np

from biopsy.workarounds.spellings.site import DOUBLE, FLOAT, Site
from biopsy.workarounds.spellings.spelling import Spelling

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

SPELLINGS = (
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
