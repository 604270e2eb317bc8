"""Softmax and LogSoftmax."""

from __future__ import annotations

from biopsy.workarounds.spellings.site import FLOATS, Site
from biopsy.workarounds.spellings.spelling import Spelling

_ALONG_ONE_AXIS_SINCE = 13
"""Before this opset Softmax takes all axes from ``axis`` on together."""


def _axis(at: Site, x: str) -> int:
    """The one axis along which a node normalizes."""
    rank = at.rank(x)
    at.require(rank > 0 and at.elem(x) in FLOATS)
    axis: int = at.attribute("axis", -1 if at.opset >= _ALONG_ONE_AXIS_SINCE else 1)
    at.require(-rank <= axis < rank)
    at.require(at.opset >= _ALONG_ONE_AXIS_SINCE or axis % rank == rank - 1)
    return axis % rank


def _shifted(at: Site, x: str, axis: int) -> str:
    return at.new("Sub", x, at.reduced("ReduceMax", x, [axis]))


def _softmax_as_exp(at: Site) -> str:
    (x,) = at.inputs(1)
    axis = _axis(at, x)
    exponential = at.new("Exp", _shifted(at, x, axis))
    return at.new("Div", exponential, at.reduced("ReduceSum", exponential, [axis]))


def _log_softmax_as_log(at: Site) -> str:
    (x,) = at.inputs(1)
    axis = _axis(at, x)
    shifted = _shifted(at, x, axis)
    return at.new("Sub", shifted, at.new("Log", at.reduced("ReduceSum", at.new("Exp", shifted), [axis])))


def _on_the_last_axis(at: Site) -> str:
    (x,) = at.inputs(1)
    axis, rank = _axis(at, x), at.rank(x)
    at.require(axis != rank - 1)
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return at.transposed(at.copy([at.transposed(x, order)], axis=-1), order)


def _exp_as_softmax(at: Site) -> str:
    exponential, total = at.inputs(2)
    (shifted,) = at.maker(exponential, "Exp").inputs(1)
    x, greatest = at.maker(shifted, "Sub").inputs(2)
    axis = _reduced_axis(at, greatest, "ReduceMax", x, 18)
    at.require(at.elem(x) in FLOATS and axis == _reduced_axis(at, total, "ReduceSum", exponential, 13))
    return at.new("Softmax", x, axis=axis)


def _reduced_axis(at: Site, name: str, operator: str, of: str, since: int) -> int:
    made = at.maker(name, operator)
    axes = made.axes(at.rank(of), by_input_since=since)
    at.require(made.inputs(1)[0] == of and made.attribute("keepdims", 1) == 1 and axes is not None and len(axes) == 1)
    assert axes is not None
    return axes[0]


_ROUNDED = "all values; rounded differently"

SPELLINGS = (
    Spelling(
        name="softmax-as-exp",
        operators=("Softmax",),
        matches="Softmax",
        writes="ReduceMax, Sub, Exp, ReduceSum and Div",
        draft=_softmax_as_exp,
        cost="about five passes over the tensor instead of one",
        exact=False,
        holds=_ROUNDED,
    ),
    Spelling(
        name="log-softmax-as-log",
        operators=("LogSoftmax",),
        matches="LogSoftmax",
        writes="ReduceMax, Sub, Exp, ReduceSum, Log and Sub",
        draft=_log_softmax_as_log,
        cost="about five passes over the tensor instead of one",
        exact=False,
        holds=_ROUNDED,
    ),
    Spelling(
        name="softmax-on-the-last-axis",
        operators=("Softmax", "LogSoftmax"),
        matches="Softmax or LogSoftmax along another axis than the last",
        writes="the same along the last axis between two Transposes",
        draft=_on_the_last_axis,
        cost="two copies of the tensor",
        exact=False,
        holds=_ROUNDED,
        least_opset=_ALONG_ONE_AXIS_SINCE,
    ),
    Spelling(
        name="exp-as-softmax",
        operators=("Div",),
        matches="a decomposed Softmax",
        writes="Softmax",
        draft=_exp_as_softmax,
        cost="nothing: one pass instead of five",
        exact=False,
        holds=_ROUNDED,
        least_opset=_ALONG_ONE_AXIS_SINCE,
    ),
)
