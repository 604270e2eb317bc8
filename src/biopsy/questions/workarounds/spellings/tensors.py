"""Spellings of reductions, of global pools, and of operators that only move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import numpy as np

from biopsy.model.tensor_type import Dim
from biopsy.questions.workarounds.spellings.site import INT64, Drafts, Site

DRAFTS = Drafts(
    {
        "dropout-as-identity": lambda at, x, ratio, training: (
            at.is_only_output() and (not training or not at.value(training).any())
        )
    }
)


@DRAFTS.of("without-identity")
def _(at: Site) -> str:
    x, operator = at.node.input[0], at.node.op_type
    if operator == "Dropout":
        at.require(not (at.inputs(3)[2] and at.value(at.inputs(3)[2]).any()))
    elif operator == "Cast":
        at.require(at.attribute("to", 0) == at.elem(x))
    elif operator == "Transpose":
        order = range(at.rank(x))
        at.require(list(at.attribute("perm", order[::-1])) == list(order))
    else:
        at.require(operator == "Identity" or len(at.node.input) == 1)
    at.require(at.may_give(x))
    return x


_WITH_AXIS = ("ArgMax", "ArgMin")
_REDUCTIONS = (
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare", *_WITH_AXIS,
)  # fmt: skip


def _axes(at: Site) -> list[int]:
    """The axes over which a node reduces, none negative."""
    rank = at.rank(at.node.input[0])
    if at.node.op_type in _WITH_AXIS:
        at.require(rank > 0)
        return [at.attribute("axis", 0) % rank]
    axes = at.axes(rank)
    at.require(bool(axes) or not at.attribute("noop_with_empty_axes", 0))
    return axes or list(range(rank))


def _keepdims(at: Site) -> int:
    return int(at.attribute("keepdims", 1))


def _with_keepdims(at: Site, keepdims: int) -> str:
    axes = _axes(at)
    at.require(_keepdims(at) != keepdims and bool(axes))
    return at.new("Squeeze" if keepdims else "Unsqueeze", at.copy(at.node.input, keepdims=keepdims), axes=axes)


DRAFTS["reduction-with-kept-axes"] = partial(_with_keepdims, keepdims=1)
DRAFTS["reduction-without-kept-axes"] = partial(_with_keepdims, keepdims=0)


@DRAFTS.of("squeeze-into-reduction")
def _(at: Site) -> str:
    reduction = at.producer(at.node.input[0])
    squeezed = at.axes(at.rank(at.node.input[0]))
    at.require(reduction.node.op_type in _REDUCTIONS and _keepdims(reduction) == 1)
    at.require(bool(squeezed) and squeezed == _axes(reduction))
    return reduction.copy(reduction.node.input, keepdims=0)


@DRAFTS.of("mean-as-sum")
def _(at: Site) -> str:
    x, axes = at.node.input[0], _axes(at)
    at.require(at.is_float(x))
    total = at.new("ReduceSum", x, axes=axes, keepdims=_keepdims(at))
    sizes = [size for axis in axes if isinstance(size := at.shape(x)[axis], int)]
    if len(sizes) == len(axes):
        return at.write("total / count", x, total=total, count=math.prod(sizes))
    product = "ReduceProd(Gather(Shape(x), axes), axes=[0], keepdims=0)"
    return at.write(f"total / Cast({product}, to=elem)", x=x, total=total, axes=axes, elem=at.elem(x))


@DRAFTS.of("reduction-axis-by-axis")
def _(at: Site) -> str:
    reduced, axes = at.node.input[0], _axes(at)
    at.require(len(axes) > 1)
    for axis in axes:
        reduced = at.new(at.node.op_type, reduced, axes=[axis])
    return reduced if _keepdims(at) else at.new("Squeeze", reduced, axes=axes)


_OF_FLOATS = {
    "ReduceMax": "-ReduceMin(-x, axes=axes, keepdims=keepdims)",
    "ReduceMin": "-ReduceMax(-x, axes=axes, keepdims=keepdims)",
    "ReduceL1": "ReduceSum(Abs(x), axes=axes, keepdims=keepdims)",
    "ReduceL2": "Sqrt(ReduceSum(x * x, axes=axes, keepdims=keepdims))",
    "ReduceLogSum": "Log(ReduceSum(x, axes=axes, keepdims=keepdims))",
    "ReduceLogSumExp": "Log(ReduceSum(Exp(x), axes=axes, keepdims=keepdims))",
    "ReduceSumSquare": "ReduceSum(x * x, axes=axes, keepdims=keepdims)",
}


@DRAFTS.of("extremum-of-negated", "norm-as-sum")
def _(at: Site) -> str:
    x, axes = at.node.input[0], _axes(at)
    at.require(at.is_float(x) and bool(axes))
    return at.write(_OF_FLOATS[at.node.op_type], x=x, axes=axes, keepdims=_keepdims(at))


_OF_POOL = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}
_OF_REDUCTION = {reduction: pool for pool, reduction in _OF_POOL.items()}


@DRAFTS.of("global-pool-as-reduction")
def _(at: Site) -> str:
    rank = at.rank(at.node.input[0])
    at.require(rank >= 3)
    return at.new(_OF_POOL[at.node.op_type], at.node.input[0], axes=range(2, rank))


@DRAFTS.of("reduction-as-global-pool")
def _(at: Site) -> str:
    x, rank = at.node.input[0], at.rank(at.node.input[0])
    at.require(rank >= 3 and at.is_float(x) and _keepdims(at) == 1 and _axes(at) == list(range(2, rank)))
    return at.new(_OF_REDUCTION[at.node.op_type], x)


_MOST_PARTS = 64
_LAST = (1 << 63) - 1


@DRAFTS.of("as-reshape")
def _(at: Site) -> str:
    # not the inferred shape: before opset 13 onnx infers a wrong one if the axes are not sorted
    dims = at.shape(at.node.input[0])
    shape: Sequence[Dim]
    if at.node.op_type == "Squeeze":
        axes = at.axes(len(dims))
        if axes is None:
            axes = [axis for axis, dim in enumerate(at.dims(at.node.input[0])) if dim == 1]
        shape = [dim for axis, dim in enumerate(dims) if axis not in axes]
    elif at.node.op_type == "Unsqueeze":
        rank = len(dims) + len(at.numbers(at.node.input[1]) if at.opset >= 13 else at.attribute("axes", []))
        axes, remaining = at.axes(rank) or [], iter(dims)
        shape = [1 if axis in axes else next(remaining) for axis in range(rank)]
    else:
        axis = at.attribute("axis", 1)
        at.require(-len(dims) <= axis <= len(dims))
        axis += len(dims) if axis < 0 else 0
        shape = [_product(dims[:axis]), _product(dims[axis:])]
    sizes = [dim if isinstance(dim, int) else -1 for dim in shape]
    at.require(0 not in sizes and sizes.count(-1) <= 1)
    return at.new("Reshape", at.node.input[0], sizes)


def _product(dims: Sequence[Dim]) -> Dim:
    known = [dim for dim in dims if isinstance(dim, int)]
    return math.prod(known) if len(known) == len(dims) else None


@DRAFTS.of("transpose-as-reshape")
def _(at: Site) -> str:
    dims = at.dims(at.node.input[0])
    order = at.attribute("perm", list(reversed(range(len(dims)))))
    moved = [axis for axis in order if dims[axis] != 1]
    at.require(0 not in dims and moved == sorted(moved) and bool(dims))
    return at.new("Reshape", at.node.input[0], [dims[axis] for axis in order])


@DRAFTS.of("expand-as-tile")
def _(at: Site) -> str:
    x = at.node.input[0]
    small, large = at.dims(x), at.dims(at.node.output[0])
    at.require(bool(large))
    added = len(large) - len(small)
    times = [new if old == 1 else 1 for old, new in zip([*[1] * added, *small], large, strict=True)]
    return at.new("Tile", at.new("Unsqueeze", x, axes=range(added)), times)


@DRAFTS.of("split-as-slices")
def _(at: Site) -> list[str]:
    x, parts = at.node.input[0], list(at.node.output)
    axis = at.attribute("axis", 0) % at.rank(x)
    sizes = at.attribute("split", None) if at.opset < 13 else None
    if at.opset >= 13 and at.inputs(2)[1]:
        sizes = at.numbers(at.node.input[1])
    if sizes is None:
        size = at.shape(x)[axis]
        at.require(isinstance(size, int) and (at.opset >= 18 or size % len(parts) == 0))
        assert isinstance(size, int)
        share = -(-size // len(parts))
        sizes = [min(share, max(0, size - share * part)) for part in range(len(parts))]
    at.require(0 < len(sizes) == len(parts) <= _MOST_PARTS)
    slices = zip(parts, sizes, accumulate(sizes), strict=True)
    return [at.sliced(x, end - size, end, axis) if name else "" for name, size, end in slices]


@DRAFTS.of("gather-as-slice")
def _(at: Site, x: str, index: str, axis: int) -> str:
    axis %= at.rank(x)
    at.require(at.value(index).ndim == 0)
    start, size = int(at.value(index)), at.shape(x)[axis]
    at.require(isinstance(size, int) and -size <= start < size)
    return at.new("Squeeze", at.sliced(x, start, start + 1 if start != -1 else _LAST, axis), axes=[axis])


@DRAFTS.of("slice-as-gather")
def _(at: Site) -> str:
    x, *bounds = at.inputs(5)
    if at.opset < 10:
        starts, ends = at.attribute("starts", []), at.attribute("ends", [])
        axes, steps = at.attribute("axes", range(len(starts))), [1] * len(starts)
    else:
        starts, ends = at.numbers(bounds[0]), at.numbers(bounds[1])
        axes = at.numbers(bounds[2]) if bounds[2] else range(len(starts))
        steps = at.numbers(bounds[3]) if bounds[3] else [1] * len(starts)
    at.require(len(starts) == len(ends) == len(axes) == len(steps) == 1)
    axis = axes[0] % at.rank(x)
    size = at.shape(x)[axis]
    at.require(isinstance(size, int) and steps[0] > 0)
    assert isinstance(size, int)
    places = range(size)[starts[0] : ends[0] : steps[0]]
    at.require(0 < len(places) <= 1024)
    return at.new("Gather", x, places, axis=axis)


@DRAFTS.of("shape-as-constant")
def _(at: Site) -> str:
    dims = at.dims(at.node.input[0])
    return at.constant(dims[at.attribute("start", 0) : at.attribute("end", len(dims))], INT64)


@DRAFTS.of("depth-to-space-as-transpose", "space-to-depth-as-transpose")
def _(at: Site) -> str:
    x, mode, block = at.node.input[0], at.attribute("mode", "DCR"), int(at.attribute("blocksize", 0))
    dims = at.dims(x)
    at.require(len(dims) == 4 and 0 not in dims)
    batch, channels, height, width = dims
    if at.node.op_type == "SpaceToDepth":
        at.require(mode == "DCR")
        parts, order = [batch, channels, height // block, block, width // block, block], [0, 3, 5, 1, 2, 4]
        shape = [batch, channels * block**2, height // block, width // block]
    else:
        channels //= block**2
        parts, order = [batch, channels, block, block, height, width], [0, 1, 4, 2, 5, 3]
        if mode == "DCR":
            parts, order = [batch, block, block, channels, height, width], [0, 3, 4, 1, 5, 2]
        shape = [batch, channels, height * block, width * block]
    return at.new("Reshape", at.new("Transpose", at.new("Reshape", x, parts), perm=order), shape)


@DRAFTS.of("pad-as-concat")
def _(at: Site) -> str:
    x, pads_input, constant, axes = at.inputs(4)
    at.require(at.attribute("mode", "constant") == "constant" and not axes)
    if at.opset < 11:
        pads, value = list(at.attribute("pads", [])), at.attribute("value", 0.0)
    else:  # the value in its own type, because a float cannot represent every int64
        at.require(not constant or at.value(constant).size == 1)
        pads, value = at.numbers(pads_input), at.value(constant).reshape(-1)[0] if constant else 0.0
    padded, dims = x, list(at.dims(x))
    at.require(len(pads) == 2 * len(dims) and min(pads, default=0) >= 0 and any(pads))
    filling = at.scalar(value, x)
    for axis, pair in enumerate(zip(pads, pads[len(dims) :], strict=False)):
        shapes = [[*dims[:axis], size, *dims[axis + 1 :]] if size else [] for size in pair]
        before, after = ([at.new("Expand", filling, shape)] if shape else [] for shape in shapes)
        if before or after:
            padded = at.new("Concat", *before, padded, *after, axis=axis)
        dims[axis] += sum(pair)
    return padded


@DRAFTS.of("nearest-resize-as-expand")
def _(at: Site) -> str:
    x, dims, large = at.node.input[0], at.dims(at.node.input[0]), at.dims(at.node.output[0])
    at.require(at.attribute("mode", "nearest") == "nearest" and 0 not in dims and bool(dims))
    at.require(not at.attribute("axes", None) and at.attribute("antialias", 0) == 0)
    factors = [new // old for old, new in zip(dims, large, strict=True)]
    at.require(all(old * factor == new for old, factor, new in zip(dims, factors, large, strict=True)))
    if at.opset < 11:
        scales_input, mapping, rounding = at.node.input[1], "asymmetric", "floor"
        at.value(scales_input)
    else:
        scales_input, sizes = at.inputs(4)[2:]
        at.require(bool(sizes) or (bool(scales_input) and at.scope.value_of(scales_input) is not None))
        mapping = at.attribute("coordinate_transformation_mode", "half_pixel")
        rounding = at.attribute("nearest_mode", "round_prefer_floor")
    scales = at.scope.value_of(scales_input) if scales_input else None
    at.require(scales is None or scales.size == 0 or bool(np.all(scales == np.asarray(factors, scales.dtype))))
    is_floor = mapping == "asymmetric" and rounding == "floor"
    at.require(is_floor or (mapping == "half_pixel" and rounding in {"round_prefer_floor", "round_prefer_ceil"}))
    split = [size for dim in dims for size in (dim, 1)]
    spread = [size for dim, factor in zip(dims, factors, strict=True) for size in (dim, factor)]
    return at.new("Reshape", at.new("Expand", at.new("Reshape", x, split), spread), large)
