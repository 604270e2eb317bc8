"""Reductions, and the pools that are reductions."""

from __future__ import annotations

import math

from biopsy.questions.workarounds.spellings.site import Family, Site

_WITH_AXES = (
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip
_WITH_AXIS = ("ArgMax", "ArgMin")
_SUMS = "all values; sums may be taken in another order"
_MAXIMA = f"{_SUMS}; engines differ in what a maximum makes of NaN"

REDUCTIONS = Family()


def _axes(at: Site) -> list[int]:
    """The axes over which a node reduces, none negative."""
    rank = at.rank(at.node.input[0])
    if at.node.op_type in _WITH_AXIS:
        at.require(rank > 0)
        return [at.attribute("axis", 0) % rank]
    axes = at.axes(rank)
    at.require(bool(axes) or not at.attribute("noop_with_empty_axes", 0))
    return axes or list(range(rank))


@REDUCTIONS.by(
    "reduction-with-kept-axes",
    *_WITH_AXES,
    *_WITH_AXIS,
    matches="a reduction with keepdims=0",
    writes="keepdims=1 and Squeeze",
)
def _(at: Site) -> str:
    axes = _axes(at)
    at.require(at.attribute("keepdims", 1) == 0 and bool(axes))
    return at.squeezed(at.copy(at.node.input, keepdims=1), axes)


@REDUCTIONS.by(
    "reduction-without-kept-axes",
    *_WITH_AXES,
    *_WITH_AXIS,
    matches="a reduction with keepdims=1",
    writes="keepdims=0 and Unsqueeze",
)
def _(at: Site) -> str:
    axes = _axes(at)
    at.require(at.attribute("keepdims", 1) == 1 and bool(axes))
    return at.unsqueezed(at.copy(at.node.input, keepdims=0), axes)


@REDUCTIONS.by(
    "squeeze-into-reduction",
    "Squeeze",
    matches="a reduction with keepdims=1, and a Squeeze of its axes",
    writes="keepdims=0",
)
def _(at: Site) -> str:
    reduction = at.maker(at.node.input[0], *_WITH_AXES, *_WITH_AXIS)
    squeezed = at.axes(at.rank(at.node.input[0]))
    at.require(reduction.attribute("keepdims", 1) == 1 and bool(squeezed) and squeezed == _axes(reduction))
    return reduction.copy(reduction.node.input, keepdims=0)


@REDUCTIONS.by(
    "mean-as-sum",
    "ReduceMean",
    writes="ReduceSum divided by the number of elements",
    cost="one more pass over the smaller tensor",
    holds=f"{_SUMS}; the sum must not overflow",
)
def _(at: Site) -> str:
    x, axes = at.node.input[0], _axes(at)
    at.require(at.is_float(x))
    total = at.new("ReduceSum", x, axes=axes, keepdims=at.attribute("keepdims", 1))
    sizes = [size for axis in axes if isinstance(size := at.shape(x)[axis], int)]
    if len(sizes) == len(axes):
        return at.write("total / count", x, total=total, count=math.prod(sizes))
    product = "ReduceProd(Gather(Shape(x), axes), axes=[0], keepdims=0)"
    return at.write(f"total / Cast({product}, to=elem)", x=x, total=total, axes=at.longs(axes), elem=at.elem(x))


@REDUCTIONS.by(
    "reduction-axis-by-axis",
    *("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"),
    matches="a reduction over several axes",
    writes="one reduction for each axis",
    cost="a pass over the tensor for each axis",
    holds=_SUMS,
)
def _(at: Site) -> str:
    reduced, axes = at.node.input[0], _axes(at)
    at.require(len(axes) > 1)
    for axis in axes:
        reduced = at.new(at.node.op_type, reduced, axes=[axis])
    return reduced if at.attribute("keepdims", 1) else at.squeezed(reduced, axes)


_OPPOSITE = {"ReduceMax": "ReduceMin", "ReduceMin": "ReduceMax"}


@REDUCTIONS.by(
    "extremum-of-negated",
    *_OPPOSITE,
    writes="the other one between two Neg",
    cost="two more passes over tensors",
    holds="all values; the sign of zero may differ",
)
def _(at: Site) -> str:
    x, axes, keepdims = at.node.input[0], _axes(at), at.attribute("keepdims", 1)
    at.require(at.is_float(x))
    return at.write(
        f"-{_OPPOSITE[at.node.op_type]}(-x, axes=axes, keepdims=keepdims)", x=x, axes=axes, keepdims=keepdims
    )


_NORMS = {
    "ReduceL1": "ReduceSum(Abs(x), axes=axes, keepdims=keepdims)",
    "ReduceL2": "Sqrt(ReduceSum(x * x, axes=axes, keepdims=keepdims))",
    "ReduceLogSum": "Log(ReduceSum(x, axes=axes, keepdims=keepdims))",
    "ReduceLogSumExp": "Log(ReduceSum(Exp(x), axes=axes, keepdims=keepdims))",
    "ReduceSumSquare": "ReduceSum(x * x, axes=axes, keepdims=keepdims)",
}


@REDUCTIONS.by(
    "norm-as-sum",
    *_NORMS,
    writes="ReduceSum between Abs, Mul, Exp, Sqrt or Log",
    cost="up to two more passes over tensors",
    holds="values whose squares, exponentials and sums do not overflow",
)
def _(at: Site) -> str:
    x, axes = at.node.input[0], _axes(at)
    at.require(at.is_float(x) and bool(axes))
    return at.write(_NORMS[at.node.op_type], x=x, axes=axes, keepdims=at.attribute("keepdims", 1))


_OF_POOL = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}
_OF_REDUCTION = {reduction: pool for pool, reduction in _OF_POOL.items()}


@REDUCTIONS.by(
    "global-pool-as-reduction",
    *_OF_POOL,
    writes="ReduceMean or ReduceMax",
    cost="some engines compute a reduction more slowly than a pool",
    holds=_MAXIMA,
)
def _(at: Site) -> str:
    x, rank = at.node.input[0], at.rank(at.node.input[0])
    at.require(rank >= 3)
    return at.new(_OF_POOL[at.node.op_type], x, axes=range(2, rank))


@REDUCTIONS.by(
    "reduction-as-global-pool",
    *_OF_REDUCTION,
    matches="ReduceMean or ReduceMax over all axes after the second, keepdims=1",
    writes="GlobalAveragePool or GlobalMaxPool",
    holds=_MAXIMA,
)
def _(at: Site) -> str:
    x, rank = at.node.input[0], at.rank(at.node.input[0])
    at.require(rank >= 3 and at.is_float(x) and at.attribute("keepdims", 1) == 1 and _axes(at) == list(range(2, rank)))
    return at.new(_OF_REDUCTION[at.node.op_type], x)
