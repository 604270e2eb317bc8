"""Operators that move elements and compute nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from biopsy.model.tensor_type import Dim
from biopsy.questions.workarounds.spellings.arithmetic import in_pairs
from biopsy.questions.workarounds.spellings.site import Family, Site

_MOST_PARTS = 64
_LAST = (1 << 63) - 1
_KNOWN = "the sizes are fixed, as they are in the model"

LAYOUTS = Family()


@LAYOUTS.by(
    "as-reshape",
    *("Squeeze", "Unsqueeze", "Flatten"),
    writes="Reshape",
    cost=f"nothing; {_KNOWN}",
    exact=True,
    holds="tensors that are not empty, with at most one unknown size",
)
def _(at: Site) -> str:
    # The shape is worked out here: before opset 13 onnx infers a wrong one where axes are not in order.
    dims = at.shape(at.node.input[0])
    shape: Sequence[Dim]
    if at.node.op_type == "Squeeze":
        axes = at.axes(len(dims))
        if axes is None:
            axes = [axis for axis, dim in enumerate(at.dims(at.node.input[0])) if dim == 1]
        shape = [dim for axis, dim in enumerate(dims) if axis not in axes]
    elif at.node.op_type == "Unsqueeze":
        rank = len(dims) + len(at.numbers(at.node.input[1]) if at.opset >= 13 else at.attribute("axes", []))
        axes, rest = at.axes(rank) or [], iter(dims)
        shape = [1 if axis in axes else next(rest) for axis in range(rank)]
    else:
        axis = at.attribute("axis", 1)
        at.require(-len(dims) <= axis <= len(dims))
        axis += len(dims) if axis < 0 else 0
        shape = [_product(dims[:axis]), _product(dims[axis:])]
    sizes = [dim if isinstance(dim, int) else -1 for dim in shape]
    at.require(0 not in sizes and sizes.count(-1) <= 1)
    return at.reshaped(at.node.input[0], sizes)


def _product(dims: Sequence[Dim]) -> Dim:
    known = [dim for dim in dims if isinstance(dim, int)]
    return math.prod(known) if len(known) == len(dims) else None


@LAYOUTS.by(
    "transpose-as-reshape",
    "Transpose",
    matches="Transpose that moves only axes of one element",
    writes="Reshape",
    cost=f"nothing; {_KNOWN}",
)
def _(at: Site) -> str:
    dims = at.dims(at.node.input[0])
    order = at.attribute("perm", list(reversed(range(len(dims)))))
    moved = [axis for axis in order if dims[axis] != 1]
    at.require(0 not in dims and moved == sorted(moved) and bool(dims))
    return at.reshaped(at.node.input[0], [dims[axis] for axis in order])


@LAYOUTS.by("expand-as-tile", "Expand", matches="Expand to known sizes", writes="Unsqueeze and Tile", least_opset=8)
def _(at: Site) -> str:
    x = at.node.input[0]
    small, large = at.dims(x), at.dims(at.node.output[0])
    at.require(bool(large))
    added = len(large) - len(small)
    times = [more if one == 1 else 1 for one, more in zip([*[1] * added, *small], large, strict=True)]
    return at.new("Tile", at.unsqueezed(x, range(added)), at.longs(times))


@LAYOUTS.by("split-as-slices", "Split", matches="Split into known sizes", writes="a Slice for each part")
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
        each = -(-size // len(parts))
        sizes = [min(each, max(0, size - each * part)) for part in range(len(parts))]
    at.require(0 < len(sizes) == len(parts) <= _MOST_PARTS)
    slices = zip(parts, sizes, accumulate(sizes), strict=True)
    return [at.sliced(x, end - size, end, axis) if name else "" for name, size, end in slices]


@LAYOUTS.by("gather-as-slice", "Gather", matches="Gather of one constant index", writes="Slice and Squeeze")
def _(at: Site) -> str:
    x, index = at.inputs(2)
    axis = at.attribute("axis", 0) % at.rank(x)
    at.require(at.value(index).ndim == 0)
    start, size = int(at.value(index)), at.shape(x)[axis]
    at.require(isinstance(size, int) and -size <= start < size)
    return at.squeezed(at.sliced(x, start, start + 1 if start != -1 else _LAST, axis), [axis])


@LAYOUTS.by(
    "slice-as-gather",
    "Slice",
    matches="Slice along one axis of known size",
    writes="Gather",
    cost="a copy of the tensor",
)
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
    return at.new("Gather", x, at.longs(places), axis=axis)


LAYOUTS.by(
    "concat-in-pairs",
    "Concat",
    matches="Concat of three tensors or more",
    writes="Concats of two",
    cost="a copy of what stands together for each further tensor",
)(in_pairs)


@LAYOUTS.by("shape-as-constant", "Shape", matches="Shape of a tensor of known sizes", writes="a constant")
def _(at: Site) -> str:
    dims = at.dims(at.node.input[0])
    return at.longs(dims[at.attribute("start", 0) : at.attribute("end", len(dims))])


@LAYOUTS.by("dropout-as-identity", "Dropout", matches="Dropout in inference", writes="Identity")
def _(at: Site) -> str:
    x, _, training = at.inputs(3)
    at.require(at.is_only_output() and (not training or not bool(at.value(training).any())))
    return at.new("Identity", x)


def _blocks(at: Site) -> tuple[tuple[int, ...], int]:
    """The sizes of what is rearranged, and the size of a block."""
    dims = at.dims(at.node.input[0])
    at.require(len(dims) == 4 and 0 not in dims)
    return dims, int(at.attribute("blocksize", 0))


@LAYOUTS.by(
    "depth-to-space-as-transpose",
    "DepthToSpace",
    matches="DepthToSpace of known sizes",
    writes="Reshape, Transpose and Reshape",
    cost=_KNOWN,
)
def _(at: Site) -> str:
    (batch, depth, height, width), block = _blocks(at)
    channels = depth // block**2
    if at.attribute("mode", "DCR") == "DCR":
        parts, order = [batch, block, block, channels, height, width], [0, 3, 4, 1, 5, 2]
    else:
        parts, order = [batch, channels, block, block, height, width], [0, 1, 4, 2, 5, 3]
    moved = at.transposed(at.reshaped(at.node.input[0], parts), order)
    return at.reshaped(moved, [batch, channels, height * block, width * block])


@LAYOUTS.by(
    "space-to-depth-as-transpose",
    "SpaceToDepth",
    matches="SpaceToDepth of known sizes",
    writes="Reshape, Transpose and Reshape",
    cost=_KNOWN,
)
def _(at: Site) -> str:
    (batch, channels, height, width), block = _blocks(at)
    at.require(at.attribute("mode", "DCR") == "DCR")
    parts = [batch, channels, height // block, block, width // block, block]
    moved = at.transposed(at.reshaped(at.node.input[0], parts), [0, 3, 5, 1, 2, 4])
    return at.reshaped(moved, [batch, channels * block**2, height // block, width // block])


@LAYOUTS.by(
    "pad-as-concat",
    "Pad",
    matches="Pad with a constant, of known sizes",
    writes="Concat with filled tensors",
    cost=f"a copy of the tensor for each axis; {_KNOWN}",
    least_opset=9,
)
def _(at: Site) -> str:
    x, given, constant, axes = at.inputs(4)
    at.require(at.attribute("mode", "constant") == "constant" and not axes)
    if at.opset < 11:
        pads, value = list(at.attribute("pads", [])), at.attribute("value", 0.0)
    else:  # the value in its own type: a float does not hold every int64
        at.require(not constant or at.value(constant).size == 1)
        pads, value = at.numbers(given), at.value(constant).reshape(-1)[0] if constant else 0.0
    padded, dims = x, list(at.dims(x))
    at.require(len(pads) == 2 * len(dims) and min(pads, default=0) >= 0 and any(pads))
    filling = at.scalar(value, x)
    for axis, pair in enumerate(zip(pads, pads[len(dims) :], strict=False)):
        shapes = [[*dims[:axis], size, *dims[axis + 1 :]] if size else [] for size in pair]
        before, after = ([at.new("Expand", filling, at.longs(shape))] if shape else [] for shape in shapes)
        if before or after:
            padded = at.new("Concat", *before, padded, *after, axis=axis)
        dims[axis] += sum(pair)
    return padded


@LAYOUTS.by(
    "nearest-resize-as-expand",
    "Resize",
    matches="Resize to the nearest element by whole factors",
    writes="Reshape, Expand and Reshape",
    cost=_KNOWN,
    least_opset=10,
)
def _(at: Site) -> str:
    x, dims, large = at.node.input[0], at.dims(at.node.input[0]), at.dims(at.node.output[0])
    at.require(at.attribute("mode", "nearest") == "nearest" and 0 not in dims and bool(dims))
    at.require(not at.attribute("axes", None) and at.attribute("antialias", 0) == 0)
    factors = [more // one for one, more in zip(dims, large, strict=True)]
    at.require(all(one * factor == more for one, factor, more in zip(dims, factors, large, strict=True)))
    if at.opset < 11:
        given, way, rounding = at.node.input[1], "asymmetric", "floor"
        at.value(given)
    else:
        given, sizes = at.inputs(4)[2:]
        at.require(bool(sizes) or (bool(given) and at.scope.value_of(given) is not None))
        way = at.attribute("coordinate_transformation_mode", "half_pixel")
        rounding = at.attribute("nearest_mode", "round_prefer_floor")
    scales = at.scope.value_of(given) if given else None
    at.require(scales is None or scales.size == 0 or bool(np.all(scales == np.asarray(factors, scales.dtype))))
    is_floor = way == "asymmetric" and rounding == "floor"
    at.require(is_floor or (way == "half_pixel" and rounding in {"round_prefer_floor", "round_prefer_ceil"}))
    split = [size for dim in dims for size in (dim, 1)]
    spread = [size for dim, factor in zip(dims, factors, strict=True) for size in (dim, factor)]
    return at.reshaped(at.new("Expand", at.reshaped(x, split), at.longs(spread)), large)
