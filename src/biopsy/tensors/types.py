"""Types of values: the element types of NumPy and ml_dtypes, and sequences, optionals and maps as tensors.

To save, feed and compare sequences, optionals and maps, they are split into the tensors that they hold, with names like
these:

    s[#]       the number of items of the sequence s, int64; its items are s[0], s[1], ...
    o[?]       whether the optional o has a value; a tensor value is o itself
    m[keys]    the keys of the map m in ascending order; m[values] is a tensor of their values

Names of nested ones are combined: ``o[?]``, ``o[#]``, ``o[0]`` are an optional sequence.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.model.tensor_type import STRING, MapType, OptionalType, SequenceType, TensorType, ValueType
from biopsy.tensors.results import Array, Feed

KINDS = "biufcUS"
"""Kinds of NumPy types that are saved and read: numbers, bool, text and bytes, never objects."""

_NUMPYS_OWN = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
"""Types that need no import of ml_dtypes, which takes time."""


def may_stand_for(given: str, right: str) -> bool:
    """Whether a value of element type ``given`` may stand for one of type ``right``, by name.

    For a type that NumPy lacks, such as bfloat16 or int4, an engine may give another one that holds its values.
    """
    return given == right or (right not in _NUMPYS_OWN and right != "string")


def is_extended(dtype: np.dtype[Any]) -> bool:
    """Whether a type comes from ml_dtypes; NumPy's file formats cannot name it."""
    return dtype.isbuiltin == 2


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a type of NumPy or ml_dtypes is a real floating-point type."""
    return dtype.kind == "f" or (is_extended(dtype) and "float" in dtype.name)


def number_info(dtype: np.dtype[Any]) -> Any:
    """``finfo`` or ``iinfo`` of a type of NumPy or ml_dtypes."""
    is_integer = dtype.kind in "iu" or (is_extended(dtype) and "int" in dtype.name)
    if not is_extended(dtype):
        return np.iinfo(dtype) if is_integer else np.finfo(dtype)
    import ml_dtypes

    untyped: Any = ml_dtypes
    return untyped.iinfo(dtype) if is_integer else untyped.finfo(dtype)


@lru_cache(maxsize=64)
def dtype_named(name: str) -> np.dtype[Any]:
    """The type with a name such as "float32", "bfloat16", "int4" or "<U7".

    Raises DataError for an unknown type, and for objects and records.
    """
    if name.isidentifier() and name not in _NUMPYS_OWN:
        import ml_dtypes

        extended = getattr(ml_dtypes, name, None)
        # Not all of its classes are types of numbers, and NumPy takes any other class for objects.
        if isinstance(extended, type) and is_extended(np.dtype(extended)):
            return np.dtype(extended)
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError, OverflowError, MemoryError, RecursionError) as error:
        raise errors.DataError(f"{name!r} is not an element type known here") from error
    if dtype.kind not in KINDS:
        raise errors.DataError(f"elements of type {name!r} cannot be read")
    return dtype


_MOST_DIMENSIONS_OF_NUMPY = 64 if int(np.__version__.partition(".")[0]) >= 2 else 32
"""NumPy's limit."""

_MOST_EMPTY = 1 << 20
"""The most elements of 0 bytes (empty strings) that a tensor may have: a tiny file can claim any number of them."""


def require_possible(dtype: np.dtype[Any], shape: Sequence[int]) -> None:
    """Raise DataError if no array can have this type and shape, or if it would have too many elements of 0 bytes."""
    if len(shape) > _MOST_DIMENSIONS_OF_NUMPY:
        raise errors.DataError(f"it has {len(shape)} dimensions: at most {_MOST_DIMENSIONS_OF_NUMPY} are read")
    # Without the sizes that are 0, since NumPy computes strides from the others.
    spread = math.prod(size for size in shape if size > 0) * max(dtype.itemsize, 1)
    if any(size < 0 for size in shape) or spread >= 1 << 63:
        raise errors.DataError(f"its shape {list(shape)!s:.80} is impossible")
    if dtype.itemsize == 0 and math.prod(shape) > _MOST_EMPTY:
        raise errors.DataError(f"its header claims {math.prod(shape)} elements of no byte")


def with_characters(array: Array) -> Array:
    """The array itself. Raises DataError if it is text with invalid characters, for which NumPy would raise later."""
    if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
        codes = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        if int(codes.max()) > sys.maxunicode:
            raise errors.DataError("its text holds numbers that are not characters")
    return array


def storable(name: str, value: Any) -> Array:
    """A tensor that can be written to a file: in C order, little-endian, with strings as by ``text``.

    It is copied only if needed. Raises DataError with its name if it has no type of ONNX.
    """
    array = np.asarray(value)
    if array.dtype.kind in "OT":
        if not all(isinstance(element, str | bytes) for element in array.flat):
            raise errors.DataError(f"tensor {name!r} holds Python objects that are not strings: it cannot be saved")
        array = text(array)
        if array.dtype.kind == "O":
            return np.asarray(array, order="C")
    dtype = array.dtype
    if dtype.kind not in KINDS and not is_extended(dtype):
        raise errors.DataError(f"tensor {name!r} of type {dtype} cannot be saved: no ONNX tensor has that type")
    if dtype.kind in "US" and dtype.itemsize == 0:
        array = array.astype(f"{dtype.kind}1")
    if dtype.byteorder == ">" or (dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.astype(dtype.newbyteorder("<"))
    return np.asarray(array, order="C")


TERMINATED = "text"
"""Prefix of the name of a type, such as "text<U8", whose strings have one more character at the end: in files, strings
are NumPy's text of a fixed width, which loses zeros at the end."""

_END = "."


def is_text(array: Array) -> bool:
    """Whether a tensor holds strings."""
    return array.dtype.kind in "USOT"


def text(array: Array) -> Array:
    """Strings (objects of str or bytes) as NumPy's text, or as objects of str if text would lose zeros at the end.

    Bytes that are not UTF-8 are escaped as in PEP 383.
    """
    strings = np.empty(array.shape, object)
    strings.reshape(-1)[:] = [
        (element.decode("utf-8", "surrogateescape") if isinstance(element, bytes) else str(element))
        for element in array.reshape(-1).tolist()
    ]
    has_zero_at_end = any(string.endswith("\0") for string in strings.flat)
    return strings if has_zero_at_end else strings.astype(np.str_)


def text_bytes(array: Array) -> Array:
    """The bytes of strings, in UTF-8, as objects."""
    encoded = np.empty(array.shape, object)
    flat = encoded.reshape(-1)
    for place, element in enumerate(array.reshape(-1).tolist()):
        try:
            flat[place] = element if isinstance(element, bytes) else str(element).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # a surrogate that is not an escaped byte
            flat[place] = str(element).encode("utf-8", "surrogatepass")
    return encoded


def stored_form(array: Array) -> tuple[Array, str]:
    """An array from ``storable`` in the form of a file, and the name of its type, for ``true_form``."""
    if array.dtype.kind == "O":
        ended = np.asarray([string + _END for string in array.reshape(-1).tolist()], np.str_).reshape(array.shape)
        return ended, TERMINATED + ended.dtype.str
    return array, array.dtype.name if is_extended(array.dtype) else array.dtype.str


def stored_type(name: str) -> np.dtype[Any]:
    """The type of elements in a file, from the name that ``stored_form`` gave. Raises as ``dtype_named``."""
    return dtype_named(name.removeprefix(TERMINATED))


def true_form(array: Array, name: str | None) -> Array:
    """The tensor of an array in a file, with the name that ``stored_form`` gave. Raises DataError if it is damaged."""
    if name is None or not name.startswith(TERMINATED):
        return array
    strings = array.reshape(-1).tolist()
    if array.dtype.kind != "U" or not all(string.endswith(_END) for string in strings):
        raise errors.DataError("its strings are damaged")
    result = np.empty(array.shape, object)
    result.reshape(-1)[:] = [string[: -len(_END)] for string in strings]
    return result


def widened(array: Array) -> Array:
    """The same values in a type of NumPy, without loss: float32, complex64, int8 or uint8 for types of ml_dtypes.

    An array of another type is returned unchanged.
    """
    if not is_extended(array.dtype):
        return array
    name = array.dtype.name
    if "complex" in name:
        return array.astype(np.complex64)
    if name.startswith("uint"):
        return array.astype(np.uint8)
    return array.astype(np.int8 if name.startswith("int") else np.float32)


def as_bytes(array: Array) -> memoryview:
    """The bytes of an array in C order, without copying."""
    return array.reshape(-1).view(np.uint8).data


_GENERATED = 2
"""The number of items of a generated sequence, and of entries of a generated map."""


def item_of(name: str, values: Collection[str]) -> str | None:
    """The value of which a tensor is a part, by its name; None if there is none."""
    return next((value for value in values if name == value or name.startswith(f"{value}[")), None)


def flattened(name: str, value: Any, kind: ValueType | None) -> dict[str, Array]:
    """The tensors of an engine's value, by name.

    ``value`` is an array, a list, a dictionary, or None for an optional without a value. ``kind`` is None if no type is
    declared.
    """
    tensors: dict[str, Array] = {}
    if isinstance(kind, OptionalType):
        tensors[f"{name}[?]"] = np.asarray(value is not None)
        kind = kind.item
    if isinstance(value, list | tuple):
        tensors[f"{name}[#]"] = np.asarray(len(value), np.int64)
        item = kind.item if isinstance(kind, SequenceType) else None
        for number, item_value in enumerate(value):
            tensors |= flattened(f"{name}[{number}]", item_value, item)
    elif isinstance(value, Mapping):
        keys = sorted(value)
        tensors[f"{name}[keys]"] = np.asarray(keys, np.str_ if keys and isinstance(keys[0], str) else np.int64)
        tensors[f"{name}[values]"] = np.asarray([value[key] for key in keys])
    elif isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        tensors[name] = text(array) if array.dtype == object else array
    return tensors


def all_flattened(kinds: Mapping[str, ValueType | None], values: Iterable[Any]) -> dict[str, Array]:
    """The tensors of all outputs, in their order. Raises CannotCompare if two tensors have the same name."""
    all_tensors: dict[str, Array] = {}
    for (name, kind), value in zip(kinds.items(), values, strict=True):
        tensors = flattened(name, value, kind)
        for part in tensors:
            if part in all_tensors or (part != name and part in kinds):
                raise errors.CannotCompare(f"two outputs are called {part!r}: one is a tensor, one a part of {name!r}")
        all_tensors |= tensors
    return all_tensors


def has_value(feed: Feed, name: str, kind: ValueType | None) -> bool:
    """Whether a feed has the tensors of an input."""
    if isinstance(kind, OptionalType):
        return f"{name}[?]" in feed or has_value(feed, name, kind.item)
    if isinstance(kind, SequenceType):
        return f"{name}[#]" in feed or has_value(feed, f"{name}[0]", kind.item)
    if isinstance(kind, MapType):
        return f"{name}[keys]" in feed and f"{name}[values]" in feed
    return name in feed


def parts(feed: Feed, name: str, kind: ValueType) -> dict[str, TensorType]:
    """The names and required types of the tensors in a feed that an input is made of.

    Raises CannotCompare if one is missing or a number of items is invalid.
    """
    if isinstance(kind, TensorType):
        if name not in feed:
            raise errors.CannotCompare(f"there is no value for {name!r}")
        return {name: kind}
    if isinstance(kind, OptionalType):
        return parts(feed, name, kind.item) if _is_present(feed, name, kind) else {}
    if isinstance(kind, MapType):
        return {f"{name}[keys]": TensorType(kind.key, (None,)), f"{name}[values]": _values_of(name, kind)}
    types: dict[str, TensorType] = {}
    for number in range(_length(feed, name, kind)):
        types |= parts(feed, f"{name}[{number}]", kind.item)
    return types


def marks(feed: Feed, name: str, kind: ValueType) -> dict[str, Array]:
    """The tensors ``[#]`` and ``[?]`` of an input and its items."""
    if isinstance(kind, OptionalType):
        present = _is_present(feed, name, kind)
        return {f"{name}[?]": np.asarray(present)} | (marks(feed, name, kind.item) if present else {})
    if not isinstance(kind, SequenceType):
        return {}
    length = _length(feed, name, kind)
    tensors: dict[str, Array] = {f"{name}[#]": np.asarray(length, np.int64)}
    for number in range(length):
        tensors |= marks(feed, f"{name}[{number}]", kind.item)
    return tensors


def structured(feed: Feed, name: str, kind: ValueType | None) -> Any:
    """The value of an input for an engine: an array, a list, a dictionary or None."""
    if isinstance(kind, OptionalType):
        return structured(feed, name, kind.item) if _is_present(feed, name, kind) else None
    if isinstance(kind, SequenceType):
        return [structured(feed, f"{name}[{number}]", kind.item) for number in range(_length(feed, name, kind))]
    if isinstance(kind, MapType):
        return dict(zip(feed[f"{name}[keys]"].tolist(), feed[f"{name}[values]"].tolist(), strict=True))
    return feed[name]


def _is_present(feed: Feed, name: str, kind: OptionalType) -> bool:
    mark = feed.get(f"{name}[?]")
    return bool(np.asarray(mark).any()) if mark is not None else has_value(feed, name, kind.item)


def _length(feed: Feed, name: str, kind: SequenceType) -> int:
    mark = feed.get(f"{name}[#]")
    if mark is None:
        number = 0
        while has_value(feed, f"{name}[{number}]", kind.item):
            number += 1
        return number
    if np.asarray(mark).size != 1 or np.asarray(mark).dtype.kind not in "iu" or int(np.asarray(mark).item()) < 0:
        raise errors.CannotCompare(f"'{name}[#]' must be the number of items of {name!r}, and not {mark!r:.80}")
    return int(np.asarray(mark).item())


def _values_of(name: str, kind: MapType) -> TensorType:
    if not isinstance(kind.value, TensorType):
        raise errors.CannotCompare(f"{name!r} is a map of other values than numbers and strings: it cannot be fed")
    return TensorType(kind.value.elem, (None,))


def drawn(name: str, kind: ValueType) -> dict[str, TensorType]:
    """The tensors to generate for an input: two items of a sequence, two entries of a map, a value of an optional."""
    if isinstance(kind, OptionalType):
        return drawn(name, kind.item)
    if isinstance(kind, SequenceType):
        types: dict[str, TensorType] = {}
        for number in range(_GENERATED):
            types |= drawn(f"{name}[{number}]", kind.item)
        return types
    if isinstance(kind, MapType):
        return {f"{name}[values]": TensorType(_values_of(name, kind).elem, (_GENERATED,))}
    return {name: kind}


def completed(feed: Feed, name: str, kind: ValueType) -> dict[str, Array]:
    """The other tensors of an input whose ``drawn`` tensors were generated: marks and keys."""
    if isinstance(kind, MapType):
        keys = ["a", "b"] if kind.key == STRING else list(range(_GENERATED))
        return {f"{name}[keys]": np.asarray(keys)}
    tensors = marks(feed, name, kind)
    inner = kind.item if isinstance(kind, OptionalType) else kind
    if isinstance(inner, SequenceType):
        for number in range(_GENERATED):
            tensors |= completed(feed, f"{name}[{number}]", inner.item)
    return tensors


def fixed_names(name: str, kind: ValueType | None) -> list[str]:
    """The names of a value's tensors without those of the items of sequences."""
    if isinstance(kind, OptionalType):
        return [f"{name}[?]", *fixed_names(name, kind.item)]
    if isinstance(kind, SequenceType):
        return [f"{name}[#]"]
    return [f"{name}[keys]", f"{name}[values]"] if isinstance(kind, MapType) else [name]
