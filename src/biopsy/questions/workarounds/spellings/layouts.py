"""Operators that move elements and compute nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from biopsy.model.tensor_type import Dim
from biopsy.questions.workarounds.spellings.site import Site, Spelling

_MOST_PARTS = 64
_LAST = (1 << 63) - 1


def _as_reshape(at: Site) -> str:
    # The shape is worked out here: before opset 13 onnx infers a wrong one where axes are not in order.
    shape = {"Squeeze": _squeezed, "Unsqueeze": _unsqueezed, "Flatten": _flattened}[at.node.op_type](at)
    known = [dim for dim in shape if isinstance(dim, int)]
    at.require(0 not in known and len(shape) - len(known) <= 1)
    return at.reshaped(at.node.input[0], [dim if isinstance(dim, int) else -1 for dim in shape])


def _squeezed(at: Site) -> Sequence[Dim]:
    dims = at.shape(at.node.input[0])
    axes = at.axes(len(dims), by_input_since=13)
    if axes is None:
        axes = [axis for axis, dim in enumerate(at.dims(at.node.input[0])) if dim == 1]
    return [dim for axis, dim in enumerate(dims) if axis not in axes]


def _unsqueezed(at: Site) -> Sequence[Dim]:
    dims = at.shape(at.node.input[0])
    given = at.numbers(at.inputs(2)[1]) if at.opset >= 13 else at.attribute("axes", [])
    axes = at.axes(len(dims) + len(given), by_input_since=13) or []
    rest = iter(dims)
    return [1 if axis in axes else next(rest) for axis in range(len(dims) + len(given))]


def _flattened(at: Site) -> Sequence[Dim]:
    dims = at.shape(at.node.input[0])
    axis: int = at.attribute("axis", 1)
    at.require(-len(dims) <= axis <= len(dims))
    axis += len(dims) if axis < 0 else 0
    return [_product(dims[:axis]), _product(dims[axis:])]


def _product(dims: Sequence[Dim]) -> Dim:
    known = [dim for dim in dims if isinstance(dim, int)]
    return math.prod(known) if len(known) == len(dims) else None


def _transpose_as_reshape(at: Site) -> str:
    dims = at.dims(at.node.input[0])
    order = at.attribute("perm", list(reversed(range(len(dims)))))
    moved = [axis for axis in order if dims[axis] != 1]
    at.require(0 not in dims and moved == sorted(moved) and bool(dims))
    return at.reshaped(at.node.input[0], [dims[axis] for axis in order])


def _expand_as_tile(at: Site) -> str:
    x, _ = at.inputs(2)
    small, large = at.dims(x), at.dims(at.node.output[0])
    at.require(bool(large))
    padded = [*[1] * (len(large) - len(small)), *small]
    added = list(range(len(large) - len(small)))
    times = [more if one == 1 else 1 for one, more in zip(padded, large, strict=True)]
    return at.new("Tile", at.unsqueezed(x, added), at.longs(times))


def _split_sizes(at: Site) -> tuple[int, list[int]]:
    """The axis of a Split, and the size of each part."""
    x, count = at.node.input[0], len(at.node.output)
    axis = at.attribute("axis", 0) % at.rank(x)
    given = at.attribute("split", None) if at.opset < 13 else None
    if at.opset >= 13 and at.inputs(2)[1]:
        given = at.numbers(at.inputs(2)[1])
    if given is not None:
        return axis, list(given)
    size = at.shape(x)[axis]
    at.require(isinstance(size, int))
    assert isinstance(size, int)
    each = -(-size // count)
    at.require(at.opset >= 18 or size % count == 0)
    return axis, [min(each, max(0, size - each * part)) for part in range(count)]


def _split_as_slices(at: Site) -> list[str]:
    axis, sizes = _split_sizes(at)
    at.require(len(sizes) == len(at.node.output) <= _MOST_PARTS and bool(sizes))
    ends = list(accumulate(sizes))
    slices = zip(at.node.output, sizes, ends, strict=True)
    return [at.sliced(at.node.input[0], end - size, end, axis) if name else "" for name, size, end in slices]


def _gather_as_slice(at: Site) -> str:
    x, index = at.inputs(2)
    axis = at.attribute("axis", 0) % at.rank(x)
    found = at.value(index)
    at.require(found.ndim == 0)
    start, size = int(found), at.shape(x)[axis]
    at.require(isinstance(size, int) and -size <= start < size)
    return at.squeezed(at.sliced(x, start, start + 1 if start != -1 else _LAST, axis), [axis])


def _slice_as_gather(at: Site) -> str:
    x = at.node.input[0]
    starts, ends, axes, steps = _bounds_of_slice(at)
    at.require(len(starts) == len(ends) == len(axes) == len(steps) == 1)
    rank = at.rank(x)
    axis = axes[0] % rank
    size = at.shape(x)[axis]
    at.require(isinstance(size, int) and steps[0] > 0)
    assert isinstance(size, int)
    places = range(size)[starts[0] : ends[0] : steps[0]]
    at.require(0 < len(places) <= 1024)
    return at.new("Gather", x, at.longs(places), axis=axis)


def _bounds_of_slice(at: Site) -> list[list[int]]:
    """Starts, ends, axes and steps of a Slice."""
    if at.opset < 10:
        starts = list(at.attribute("starts", []))
        return [
            starts,
            list(at.attribute("ends", [])),
            list(at.attribute("axes", range(len(starts)))),
            [1] * len(starts),
        ]
    _, start, end, axis, step = at.inputs(5)
    first = at.numbers(start)
    return [
        first,
        at.numbers(end),
        at.numbers(axis) if axis else list(range(len(first))),
        at.numbers(step) if step else [1] * len(first),
    ]


def _concat_in_pairs(at: Site) -> str:
    at.require(2 < len(at.node.input) <= _MOST_PARTS)
    found = at.node.input[0]
    for other in at.node.input[1:]:
        found = at.copy([found, other])
    return found


def _shape_as_constant(at: Site) -> str:
    dims = at.dims(at.node.input[0])
    return at.longs(dims[at.attribute("start", 0) : at.attribute("end", len(dims))])


def _dropout_as_identity(at: Site) -> str:
    x, _, training = at.inputs(3)
    at.require(at.is_only_output() and (not training or not bool(at.value(training).any())))
    return at.new("Identity", x)


def _blocks(at: Site) -> tuple[str, list[int], int]:
    x = at.node.input[0]
    dims = list(at.dims(x))
    at.require(len(dims) == 4 and 0 not in dims)
    return x, dims, int(at.attribute("blocksize", 0))


def _depth_to_space(at: Site) -> str:
    x, (batch, depth, height, width), block = _blocks(at)
    channels = depth // block**2
    if at.attribute("mode", "DCR") == "DCR":
        parts, order = [batch, block, block, channels, height, width], [0, 3, 4, 1, 5, 2]
    else:
        parts, order = [batch, channels, block, block, height, width], [0, 1, 4, 2, 5, 3]
    moved = at.transposed(at.reshaped(x, parts), order)
    return at.reshaped(moved, [batch, channels, height * block, width * block])


def _space_to_depth(at: Site) -> str:
    x, (batch, channels, height, width), block = _blocks(at)
    at.require(at.attribute("mode", "DCR") == "DCR")
    parts = [batch, channels, height // block, block, width // block, block]
    moved = at.transposed(at.reshaped(x, parts), [0, 3, 5, 1, 2, 4])
    return at.reshaped(moved, [batch, channels * block**2, height // block, width // block])


def _pad_as_concat(at: Site) -> str:
    x, pads, value = _constant_pad(at)
    dims, found = list(at.dims(x)), x
    at.require(len(pads) == 2 * len(dims) and min(pads, default=0) >= 0 and any(pads))
    for axis in range(len(dims)):
        parts = [
            _filled(at, dims, axis, pads[axis], value, x),
            found,
            _filled(at, dims, axis, pads[axis + len(dims)], value, x),
        ]
        given = [part for part in parts if part]
        found = at.new("Concat", *given, axis=axis) if len(given) > 1 else found
        dims[axis] += pads[axis] + pads[axis + len(pads) // 2]
    return found


def _constant_pad(at: Site) -> tuple[str, list[int], Any]:
    """What is padded, the pads, and the number there, in its own type: a float does not hold every int64."""
    x, given, value, axes = at.inputs(4)
    at.require(at.attribute("mode", "constant") == "constant" and not axes)
    if at.opset < 11:
        return x, list(at.attribute("pads", [])), at.attribute("value", 0.0)
    at.require(not value or at.value(value).size == 1)
    return x, at.numbers(given), at.value(value).reshape(-1)[0] if value else 0.0


def _filled(at: Site, dims: Sequence[int], axis: int, size: int, value: Any, like: str) -> str:
    if not size:
        return ""
    shape = [size if at_ == axis else dim for at_, dim in enumerate(dims)]
    at.require(at.opset >= 9)
    kind = at.elem(like)
    return at.new("Expand", at.scalar(value, like), at.longs(shape)) if kind else ""


def _nearest_as_expand(at: Site) -> str:
    x, dims, large = at.node.input[0], at.dims(at.node.input[0]), at.dims(at.node.output[0])
    at.require(at.attribute("mode", "nearest") == "nearest" and 0 not in dims and bool(dims))
    at.require(not at.attribute("axes", None) and at.attribute("antialias", 0) == 0)
    factors = [more // one for one, more in zip(dims, large, strict=True)]
    at.require(all(one * factor == more for one, factor, more in zip(dims, factors, large, strict=True)))
    scales = at.scope.value_of(at.inputs(3)[2]) if at.opset >= 11 and at.inputs(3)[2] else None
    if at.opset < 11:
        scales = at.value(at.inputs(2)[1])
    at.require(scales is None or scales.size == 0 or bool(np.all(scales == np.asarray(factors, scales.dtype))))
    at.require(scales is not None or (at.opset >= 11 and bool(at.inputs(4)[3])))
    way = at.attribute("coordinate_transformation_mode", "half_pixel") if at.opset >= 11 else "asymmetric"
    rounding = at.attribute("nearest_mode", "round_prefer_floor") if at.opset >= 11 else "floor"
    is_floor = way == "asymmetric" and rounding == "floor"
    at.require(is_floor or (way == "half_pixel" and rounding in {"round_prefer_floor", "round_prefer_ceil"}))
    split = [size for dim in dims for size in (dim, 1)]
    spread = [size for dim, factor in zip(dims, factors, strict=True) for size in (dim, factor)]
    return at.reshaped(at.new("Expand", at.reshaped(x, split), at.longs(spread)), large)


_FREE = "nothing"
_COPY = "a copy of the tensor"
_KNOWN = "the sizes are fixed, as they are in the model"

SPELLINGS = (
    Spelling(
        name="as-reshape",
        operators=("Squeeze", "Unsqueeze", "Flatten"),
        matches="Squeeze, Unsqueeze or Flatten",
        writes="Reshape",
        draft=_as_reshape,
        cost=f"nothing; {_KNOWN}",
        exact=True,
        holds="tensors that are not empty, with at most one unknown size",
    ),
    Spelling(
        name="transpose-as-reshape",
        operators=("Transpose",),
        matches="Transpose that moves only axes of one element",
        writes="Reshape",
        draft=_transpose_as_reshape,
        cost=f"nothing; {_KNOWN}",
        exact=True,
    ),
    Spelling(
        name="expand-as-tile",
        operators=("Expand",),
        matches="Expand to known sizes",
        writes="Unsqueeze and Tile",
        draft=_expand_as_tile,
        cost=_FREE,
        exact=True,
        least_opset=8,
    ),
    Spelling(
        name="split-as-slices",
        operators=("Split",),
        matches="Split into known sizes",
        writes="a Slice for each part",
        draft=_split_as_slices,
        cost=_FREE,
        exact=True,
    ),
    Spelling(
        name="gather-as-slice",
        operators=("Gather",),
        matches="Gather of one constant index",
        writes="Slice and Squeeze",
        draft=_gather_as_slice,
        cost=_FREE,
        exact=True,
    ),
    Spelling(
        name="slice-as-gather",
        operators=("Slice",),
        matches="Slice along one axis of known size",
        writes="Gather",
        draft=_slice_as_gather,
        cost=_COPY,
        exact=True,
    ),
    Spelling(
        name="concat-in-pairs",
        operators=("Concat",),
        matches="Concat of three tensors or more",
        writes="Concats of two",
        draft=_concat_in_pairs,
        cost="a copy of what stands together for each further tensor",
        exact=True,
    ),
    Spelling(
        name="shape-as-constant",
        operators=("Shape",),
        matches="Shape of a tensor of known sizes",
        writes="a constant",
        draft=_shape_as_constant,
        cost=_FREE,
        exact=True,
    ),
    Spelling(
        name="dropout-as-identity",
        operators=("Dropout",),
        matches="Dropout in inference",
        writes="Identity",
        draft=_dropout_as_identity,
        cost=_FREE,
        exact=True,
    ),
    Spelling(
        name="depth-to-space-as-transpose",
        operators=("DepthToSpace",),
        matches="DepthToSpace of known sizes",
        writes="Reshape, Transpose and Reshape",
        draft=_depth_to_space,
        cost=_KNOWN,
        exact=True,
    ),
    Spelling(
        name="space-to-depth-as-transpose",
        operators=("SpaceToDepth",),
        matches="SpaceToDepth of known sizes",
        writes="Reshape, Transpose and Reshape",
        draft=_space_to_depth,
        cost=_KNOWN,
        exact=True,
    ),
    Spelling(
        name="pad-as-concat",
        operators=("Pad",),
        matches="Pad with a constant, of known sizes",
        writes="Concat with filled tensors",
        draft=_pad_as_concat,
        cost=f"a copy of the tensor for each axis; {_KNOWN}",
        exact=True,
        least_opset=9,
    ),
    Spelling(
        name="nearest-resize-as-expand",
        operators=("Resize",),
        matches="Resize to the nearest element by whole factors",
        writes="Reshape, Expand and Reshape",
        draft=_nearest_as_expand,
        cost=_KNOWN,
        exact=True,
        least_opset=10,
    ),
)
