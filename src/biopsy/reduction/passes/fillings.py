"""Values that say nothing of those they stand for: ones, small made-up numbers, and numbered texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from biopsy.model.external import is_external
from biopsy.model.storage import raw_size
from biopsy.model.tensor_type import STRING
from biopsy.reduction.passes.vocabulary import NOT_VALUES

if TYPE_CHECKING:
    import onnx

_ONE = {
    1: b"\x00\x00\x80\x3f", 10: b"\x00\x3c", 11: b"\x00\x00\x00\x00\x00\x00\xf0\x3f", 16: b"\x80\x3f", 17: b"\x38",
    18: b"\x40", 19: b"\x3c", 20: b"\x40", 23: b"\x22", 24: b"\x7f",
}  # fmt: skip
"""The number 1 in each floating type, little-endian; two of them for the type of four bits."""

_SEED = 20
_NEUTRAL_TEXT = re.compile(r"(s\d+)?")
_SIZES = frozenset(
    {"scales", "width_scale", "height_scale"}
)  # floating attributes of Upsample that say how large it is

SCALARS = frozenset({"value_float", "default_float", "replaced_value_float"})
"""Single numbers in attributes that are values, and not the way in which an operator works."""


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


def small_numbers(count: int) -> list[float]:
    """The same as ``small_values`` of a list of that length."""
    import numpy as np

    return (np.random.default_rng(_SEED).integers(-8, 9, count) / 8).tolist()  # type: ignore[no-any-return]


def is_filled(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor holds nothing but values from here, or none at all."""
    if tensor.data_type == STRING:
        return are_neutral(tensor.string_data)
    size = raw_size(tensor.data_type, tensor.dims)
    if size == 0:
        return True
    if tensor.data_type not in _ONE or not size or is_external(tensor):
        return False
    return tensor.raw_data in (ones(tensor), small_values(tensor))


def are_filled(numbers: Sequence[float]) -> bool:
    """Whether a list of numbers in an attribute is one from here."""
    return list(numbers) in ([1.0] * len(numbers), small_numbers(len(numbers)))


def may_fill(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor holds floating numbers or texts, and not those from here."""
    return (tensor.data_type in _ONE or tensor.data_type == STRING) and not is_filled(tensor)


def may_fill_attribute(attribute: onnx.AttributeProto) -> bool:
    """Whether an attribute of an operator of the standard holds values or texts, and not those from here."""
    if attribute.name in NOT_VALUES or attribute.ref_attr_name:
        return False
    numbers = attribute.name not in _SIZES and not are_filled(attribute.floats)
    number = attribute.name in SCALARS and attribute.HasField("f") and attribute.f != 1
    return numbers or number or not are_neutral((attribute.s, *attribute.strings))


def fill_attribute(attribute: onnx.AttributeProto, texts: dict[bytes, bytes], *, with_ones: bool) -> None:
    """Replace what an attribute holds: its numbers by ones or by small ones, its texts as ``texts`` says."""
    count = len(attribute.floats)
    if count:
        attribute.floats[:] = [1.0] * count if with_ones else small_numbers(count)
    if attribute.name in SCALARS and attribute.HasField("f"):
        attribute.f = 1.0
    if attribute.HasField("s"):
        attribute.s = texts.get(attribute.s, attribute.s)
    attribute.strings[:] = [texts.get(text, text) for text in attribute.strings]


def are_neutral(texts: Iterable[bytes]) -> bool:
    """Whether texts are all numbered ones, or empty."""
    return all(_NEUTRAL_TEXT.fullmatch(text.decode("utf-8", "replace")) for text in texts)


def numbered(texts: Iterable[bytes]) -> dict[bytes, bytes]:
    """A numbered text for each text that is not neutral; the same ones get the same, so that they stay equal."""
    listed = list(dict.fromkeys(texts))
    taken = {text for text in listed if are_neutral([text])}
    free = (text for number in range(2 * len(listed)) if (text := b"s%d" % number) not in taken)
    return {text: next(free) for text in listed if text not in taken}
