"""Weights filled with values that say nothing of the original ones.

A filled weight stays an initializer of the same type and shape, with its values inside the model. ONNX has no short
form for a tensor of equal values that every engine reads: a sparse initializer is one for ONNX Runtime alone, and a
ConstantOfShape would be another graph. So this makes a file that holds no secret and that compresses to almost
nothing; it is ``sizes`` that makes it small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from biopsy.model import walk
from biopsy.model.external import MOST_INLINE, is_external
from biopsy.model.storage import raw_size
from biopsy.model.tensor_type import BOOL, INTEGERS
from biopsy.reduction.change import Change, ChangeSearch
from biopsy.reduction.passes.editing import copied
from biopsy.reduction.passes.fewest import fewest

if TYPE_CHECKING:
    import onnx

_ONE = {
    1: b"\x00\x00\x80\x3f", 10: b"\x00\x3c", 11: b"\x00\x00\x00\x00\x00\x00\xf0\x3f", 16: b"\x80\x3f", 17: b"\x38",
    18: b"\x40", 19: b"\x3c", 20: b"\x40", 23: b"\x22", 24: b"\x7f",
}  # fmt: skip
"""The number 1 in each floating type, little-endian; two of them for the type of four bits."""

_SEED = 20
_MOST_NAMED = 8
_MOST_OF_A_SHAPE = 16  # elements

Fill = Callable[["onnx.TensorProto"], "bytes | None"]


def weights(model: onnx.ModelProto) -> ChangeSearch:
    """Fill all floating weights with ones; those that must vary with small seeded values; integers are left alone.

    Integers are shapes, axes and indices more often than not.
    """
    places = _fillable(model)

    def filling(by: Fill, start: onnx.ModelProto, items: Sequence[int], what: str) -> Callable[[Sequence[int]], Change]:
        def propose(kept: Sequence[int]) -> Change:
            gone = [place for place in items if place not in kept]
            return Change(_filled(start, gone, by), f"{len(gone)} of {len(items)} weights filled with {what}")

        return propose

    propose = filling(ones, model, places, "ones")
    kept = yield from fewest(places, propose)
    start = propose(kept).model if len(kept) < len(places) else model
    yield from fewest(kept, filling(small_values, start, kept, "small values"))


def weights_left(model: onnx.ModelProto) -> Sequence[str]:
    """Which weights still have values of their own: floating ones that could not be filled, integers of some size."""
    floating = [tensor.name or "a constant" for tensor in walk.tensors(model) if _may_fill(tensor)]
    integers = [tensor.name or "a constant" for tensor in walk.tensors(model) if _is_table(tensor)]
    return (
        *_left("weights    not replaced, since the failure or its check needs their values", floating),
        *_left("weights    integers are never replaced", integers),
    )


def _left(what: str, names: list[str]) -> list[str]:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return [f"{what}: {', '.join(names[:_MOST_NAMED])}{more}"] if names else []


def _is_table(tensor: onnx.TensorProto) -> bool:
    """Whether it holds integers or booleans, and more of them than a shape or a list of axes does."""
    return tensor.data_type in INTEGERS | {BOOL} and math.prod(tensor.dims) > _MOST_OF_A_SHAPE


def _fillable(model: onnx.ModelProto) -> list[int]:
    """Places, among all tensors, of what can be filled, largest first; no more than one file can hold."""
    sizes = {
        place: raw_size(tensor.data_type, tensor.dims) or 0
        for place, tensor in enumerate(walk.tensors(model))
        if _may_fill(tensor)
    }
    outside = {place for place, tensor in enumerate(walk.tensors(model)) if is_external(tensor)}
    left = MOST_INLINE - model.ByteSize()
    found = []
    for place in sorted(sizes, key=lambda place: (-sizes[place], place)):
        if place not in outside or sizes[place] <= left:
            found.append(place)
            left -= sizes[place] if place in outside else 0
    return found


def _may_fill(tensor: onnx.TensorProto) -> bool:
    size = raw_size(tensor.data_type, tensor.dims)
    if tensor.data_type not in _ONE or not size:
        return False
    return is_external(tensor) or tensor.raw_data not in (ones(tensor), small_values(tensor))


def _filled(model: onnx.ModelProto, places: Sequence[int], by: Fill) -> onnx.ModelProto:
    made = copied(model)
    tensors = list(walk.tensors(made))
    for place in places:
        data = by(tensors[place])
        if data is not None:
            set_values(tensors[place], tensors[place].dims, data)
    return made


def set_values(tensor: onnx.TensorProto, dims: Sequence[int], data: bytes) -> None:
    """Give a tensor another shape and other values, inside the model; its name and type stay."""
    kept = type(tensor)(name=tensor.name, data_type=tensor.data_type, dims=list(dims), raw_data=data)
    tensor.CopyFrom(kept)


def ones(tensor: onnx.TensorProto) -> bytes:
    """As many ones as a floating tensor has elements."""
    size = raw_size(tensor.data_type, tensor.dims) or 0
    one = _ONE[tensor.data_type]
    return one * (size // len(one))


def small_values(tensor: onnx.TensorProto) -> bytes | None:
    """Multiples of 1/8 from -1 to 1, the same for every tensor of a size; None for types narrower than 16 bits."""
    import numpy as np

    dtype = {1: "<f4", 10: "<f2", 11: "<f8", 16: "<f4"}.get(tensor.data_type)
    if dtype is None:
        return None
    count = int(np.prod(tensor.dims))
    values = (np.random.default_rng(_SEED).integers(-8, 9, count) / 8).astype(dtype)
    if tensor.data_type == 16:  # the upper half of a float32 that needs no lower half
        return (values.view("<u4") >> 16).astype("<u2").tobytes()
    return values.tobytes()
