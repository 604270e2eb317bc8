"""Reductions, and the pools that are reductions."""

from __future__ import annotations

import math

from biopsy.questions.workarounds.spellings.site import FLOATS, Site, Spelling

_WITH_AXES = (
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip
_WITH_AXIS = ("ArgMax", "ArgMin")


def _axes(at: Site) -> list[int]:
    """The axes over which a node reduces, none negative."""
    rank = at.rank(at.node.input[0])
    if at.node.op_type in _WITH_AXIS:
        at.require(rank > 0)
        return [at.attribute("axis", 0) % rank]
    found = at.axes(rank, by_input_since=13 if at.node.op_type == "ReduceSum" else 18)
    at.require(bool(found) or not at.attribute("noop_with_empty_axes", 0))
    return found or list(range(rank))


def _with_kept_axes(at: Site) -> str:
    axes = _axes(at)
    at.require(at.attribute("keepdims", 1) == 0 and bool(axes))
    return at.squeezed(at.copy(at.node.input, keepdims=1), axes)


def _without_kept_axes(at: Site) -> str:
    axes = _axes(at)
    at.require(at.attribute("keepdims", 1) == 1 and bool(axes))
    return at.unsqueezed(at.copy(at.node.input, keepdims=0), axes)


def _squeeze_into_reduction(at: Site) -> str:
    made = at.maker(at.inputs(1)[0], *_WITH_AXES, *_WITH_AXIS)
    at.require(made.attribute("keepdims", 1) == 1)
    gone = at.axes(at.rank(at.inputs(1)[0]), by_input_since=13)
    at.require(bool(gone) and gone == _axes(made))
    copy = Site(at.scope, made.place)
    found = copy.copy(made.node.input, keepdims=0)
    at.take(copy)
    return found


def _mean_as_sum(at: Site) -> str:
    x, axes = at.inputs(1)[0], _axes(at)
    at.require(at.elem(x) in FLOATS)
    total = at.reduced("ReduceSum", x, axes, keepdims=at.attribute("keepdims", 1))
    sizes = [at.shape(x)[axis] for axis in axes]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) == len(sizes):
        return at.new("Div", total, at.scalar(math.prod(known), x))
    count = at.reduced("ReduceProd", at.new("Gather", at.new("Shape", x), at.longs(axes)), [0], keepdims=0)
    return at.new("Div", total, at.cast(count, at.elem(x)))


def _axis_by_axis(at: Site) -> str:
    found, axes = at.inputs(1)[0], _axes(at)
    at.require(len(axes) > 1)
    for axis in axes:
        found = at.reduced(at.node.op_type, found, [axis])
    return found if at.attribute("keepdims", 1) else at.squeezed(found, axes)


_TURNED = {"ReduceMax": "ReduceMin", "ReduceMin": "ReduceMax"}


def _turned(at: Site) -> str:
    x, axes = at.inputs(1)[0], _axes(at)
    at.require(at.elem(x) in FLOATS)
    other = at.reduced(_TURNED[at.node.op_type], at.new("Neg", x), axes, keepdims=at.attribute("keepdims", 1))
    return at.new("Neg", other)


def _as_sum(at: Site) -> str:
    x, axes, operator = at.inputs(1)[0], _axes(at), at.node.op_type
    at.require(at.elem(x) in FLOATS and bool(axes))
    if operator in {"ReduceL2", "ReduceSumSquare"}:
        x = at.new("Mul", x, x)
    elif operator != "ReduceLogSum":
        x = at.new("Abs" if operator == "ReduceL1" else "Exp", x)
    total = at.reduced("ReduceSum", x, axes, keepdims=at.attribute("keepdims", 1))
    after = {"ReduceL2": "Sqrt", "ReduceLogSum": "Log", "ReduceLogSumExp": "Log"}.get(operator)
    return at.new(after, total) if after else total


_OF_POOL = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}
_OF_REDUCTION = {reduction: pool for pool, reduction in _OF_POOL.items()}


def _global_pool_as_reduction(at: Site) -> str:
    (x,) = at.inputs(1)
    at.require(at.rank(x) >= 3)
    return at.reduced(_OF_POOL[at.node.op_type], x, range(2, at.rank(x)))


def _reduction_as_global_pool(at: Site) -> str:
    x, rank = at.inputs(1)[0], at.rank(at.inputs(1)[0])
    at.require(rank >= 3 and at.elem(x) in FLOATS and at.attribute("keepdims", 1) == 1)
    at.require(_axes(at) == list(range(2, rank)))
    return at.new(_OF_REDUCTION[at.node.op_type], x)


_SUMS = "all values; sums may be taken in another order"
_FREE = "nothing"

SPELLINGS = (
    Spelling(
        name="reduction-with-kept-axes",
        operators=(*_WITH_AXES, *_WITH_AXIS),
        matches="a reduction with keepdims=0",
        writes="keepdims=1 and Squeeze",
        draft=_with_kept_axes,
        cost=_FREE,
        exact=True,
    ),
    Spelling(
        name="reduction-without-kept-axes",
        operators=(*_WITH_AXES, *_WITH_AXIS),
        matches="a reduction with keepdims=1",
        writes="keepdims=0 and Unsqueeze",
        draft=_without_kept_axes,
        cost=_FREE,
        exact=True,
    ),
    Spelling(
        name="squeeze-into-reduction",
        operators=("Squeeze",),
        matches="a reduction with keepdims=1, and a Squeeze of its axes",
        writes="keepdims=0",
        draft=_squeeze_into_reduction,
        cost=_FREE,
        exact=True,
    ),
    Spelling(
        name="mean-as-sum",
        operators=("ReduceMean",),
        matches="ReduceMean",
        writes="ReduceSum divided by the number of elements",
        draft=_mean_as_sum,
        cost="one more pass over the smaller tensor",
        exact=False,
        holds=f"{_SUMS}; the sum must not overflow",
    ),
    Spelling(
        name="reduction-axis-by-axis",
        operators=("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"),
        matches="a reduction over several axes",
        writes="one reduction for each axis",
        draft=_axis_by_axis,
        cost="a pass over the tensor for each axis",
        exact=False,
        holds=_SUMS,
    ),
    Spelling(
        name="extremum-of-negated",
        operators=tuple(_TURNED),
        matches="ReduceMax or ReduceMin",
        writes="the other one between two Neg",
        draft=_turned,
        cost="two more passes over tensors",
        exact=False,
        holds="all values; the sign of zero may differ",
    ),
    Spelling(
        name="norm-as-sum",
        operators=("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
        matches="ReduceL1, ReduceL2, ReduceLogSum, ReduceLogSumExp or ReduceSumSquare",
        writes="ReduceSum between Abs, Mul, Exp, Sqrt or Log",
        draft=_as_sum,
        cost="up to two more passes over tensors",
        exact=False,
        holds="values whose squares, exponentials and sums do not overflow",
    ),
    Spelling(
        name="global-pool-as-reduction",
        operators=tuple(_OF_POOL),
        matches="GlobalAveragePool or GlobalMaxPool",
        writes="ReduceMean or ReduceMax",
        draft=_global_pool_as_reduction,
        cost="some engines compute a reduction more slowly than a pool",
        exact=False,
        holds=f"{_SUMS}; engines differ in what a maximum makes of NaN",
    ),
    Spelling(
        name="reduction-as-global-pool",
        operators=tuple(_OF_REDUCTION),
        matches="ReduceMean or ReduceMax over all axes after the second, keepdims=1",
        writes="GlobalAveragePool or GlobalMaxPool",
        draft=_reduction_as_global_pool,
        cost=_FREE,
        exact=False,
        holds=f"{_SUMS}; engines differ in what a maximum makes of NaN",
    ),
)
