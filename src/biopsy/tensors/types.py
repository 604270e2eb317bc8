"""Types of values: element types of tensors, numpy's and those of ml_dtypes, and sequences, optional values and maps
as the tensors that they hold.
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
"""Kinds of numpy types that may stand in a file: numbers, bool, text and bytes. Never objects."""

_NUMPYS_OWN = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
"""Types that are never looked for in ml_dtypes, whose import costs time."""


def is_extended(dtype: np.dtype[Any]) -> bool:
    """Whether a type comes from ml_dtypes: numpy's file formats lose its name."""
    return dtype.isbuiltin == 2


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a type is one of real floating-point numbers, of ml_dtypes too."""
    return dtype.kind == "f" or (is_extended(dtype) and "float" in dtype.name)


def number_info(dtype: np.dtype[Any]) -> Any:
    """What ``np.finfo`` or ``np.iinfo`` tells of a type of numbers, of ml_dtypes too."""
    is_whole = dtype.kind in "iu" or (is_extended(dtype) and "int" in dtype.name)
    if not is_extended(dtype):
        return np.iinfo(dtype) if is_whole else np.finfo(dtype)
    import ml_dtypes

    untyped: Any = ml_dtypes
    return untyped.iinfo(dtype) if is_whole else untyped.finfo(dtype)


@lru_cache(maxsize=64)
def dtype_named(name: str) -> np.dtype[Any]:
    """The type of a name such as "float32", "bfloat16", "int4" or "<U7".

    Raises DataError if there is no such type, or if it may not stand in a file (objects, records).
    """
    if name.isidentifier() and name not in _NUMPYS_OWN:
        import ml_dtypes

        extended = getattr(ml_dtypes, name, None)
        # Not all classes there are types of numbers, and numpy takes any other class for Python objects.
        if isinstance(extended, type) and is_extended(np.dtype(extended)):
            return np.dtype(extended)
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError, OverflowError, MemoryError, RecursionError) as error:
        raise errors.DataError(f"{name!r} is no element type known here") from error
    if dtype.kind not in KINDS:
        raise errors.DataError(f"elements of type {name!r} cannot be read")
    return dtype


_MOST_DIMENSIONS_OF_NUMPY = 64 if int(np.__version__.partition(".")[0]) >= 2 else 32
"""Its own limit."""

_MOST_EMPTY = 1 << 20
"""Elements of no byte that a tensor may have: texts without a character, which no file need back by anything."""


def require_possible(dtype: np.dtype[Any], shape: Sequence[int]) -> None:
    """Raise DataError if no array can have this type and shape, or if it would be large and have nothing behind it."""
    if len(shape) > _MOST_DIMENSIONS_OF_NUMPY:
        raise errors.DataError(f"it has {len(shape)} dimensions: at most {_MOST_DIMENSIONS_OF_NUMPY} are read")
    # An array without elements has strides, which numpy computes from its other sizes.
    spread = math.prod(size for size in shape if size > 0) * max(dtype.itemsize, 1)
    if any(size < 0 for size in shape) or spread >= 1 << 63:
        raise errors.DataError(f"its shape {list(shape)!s:.80} is impossible")
    if dtype.itemsize == 0 and math.prod(shape) > _MOST_EMPTY:
        raise errors.DataError(f"its header claims {math.prod(shape)} elements of no byte")


def with_characters(array: Array) -> Array:
    """The array. Raises DataError if it is text with numbers that are no characters: numpy would raise, but later."""
    if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
        codes = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        if int(codes.max()) > sys.maxunicode:
            raise errors.DataError("its text holds numbers that are no characters")
    return array


def storable(name: str, value: Any) -> Array:
    """A tensor as it goes into a file: in C order, little-endian, strings as ``text`` gives them.

    Copies only what is not in that form yet. Raises DataError naming the tensor if it holds anything else.
    """
    array = np.asarray(value)
    if array.dtype.kind in "OT":
        if not all(isinstance(element, str | bytes) for element in array.flat):
            raise errors.DataError(f"tensor {name!r} holds Python objects that are no strings: it cannot be saved")
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


# Strings


TERMINATED = "text"
"""What the name of a type begins with, such as "text<U8", where every string has one more character behind it: in files
strings are NumPy's text of a fixed width, and that loses zeros at the end."""

_END = "."


def is_text(array: Array) -> bool:
    """Whether a tensor holds strings."""
    return array.dtype.kind in "USOT"


def text(array: Array) -> Array:
    """Strings, given as objects of str or bytes, in NumPy's type for text; as objects of str where that would lose
    zeros at the end. Bytes that are no UTF-8 are escaped as PEP 383 has it.
    """
    strings = np.empty(array.shape, object)
    strings.reshape(-1)[:] = [
        (one.decode("utf-8", "surrogateescape") if isinstance(one, bytes) else str(one))
        for one in array.reshape(-1).tolist()
    ]
    ends = any(one.endswith("\0") for one in strings.flat)
    return strings if ends else strings.astype(np.str_)


def text_bytes(array: Array) -> Array:
    """The bytes of strings, in UTF-8, as objects; bytes as they are."""
    found = np.empty(array.shape, object)
    flat = found.reshape(-1)
    for place, one in enumerate(array.reshape(-1).tolist()):
        try:
            flat[place] = one if isinstance(one, bytes) else str(one).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # half a surrogate pair, which no escaped byte is
            flat[place] = str(one).encode("utf-8", "surrogatepass")
    return found


def stored_form(array: Array) -> tuple[Array, str]:
    """An array that ``storable`` gave as its bytes go into a file, and the name of its type (see ``true_form``)."""
    if array.dtype.kind == "O":
        ended = np.asarray([one + _END for one in array.reshape(-1).tolist()], np.str_).reshape(array.shape)
        return ended, TERMINATED + ended.dtype.str
    return array, array.dtype.name if is_extended(array.dtype) else array.dtype.str


def stored_type(name: str) -> np.dtype[Any]:
    """The type that elements have in a file, from the name that ``stored_form`` gave. Raises as ``dtype_named``."""
    return dtype_named(name.removeprefix(TERMINATED))


def true_form(array: Array, name: str | None) -> Array:
    """What an array of a file stands for; ``name`` as ``stored_form`` gave it. Raises DataError if it is damaged."""
    if name is None or not name.startswith(TERMINATED):
        return array
    strings = array.reshape(-1).tolist()
    if array.dtype.kind != "U" or not all(one.endswith(_END) for one in strings):
        raise errors.DataError("its strings are damaged")
    found = np.empty(array.shape, object)
    found.reshape(-1)[:] = [one[: -len(_END)] for one in strings]
    return found


def widened(array: Array) -> Array:
    """The same values in a type that every numpy knows: float32 for extended floats, int8 or uint8 for small integers.

    Without loss. What is no extended type is returned as it is.
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


# Sequences, optional values and maps, as the tensors that they hold: one way to save, feed and compare all of them.
#
#     s[#]       how many items the sequence s has, int64; its items are s[0], s[1], ...
#     o[?]       whether the optional o has a value; the value itself is o, if it is a tensor
#     m[keys]    the keys of the map m in ascending order; m[values], a tensor, are theirs
#
# Where one holds another, names go on: ``o[?]``, ``o[#]``, ``o[0]`` is an optional sequence.

_MADE_UP = 2
"""Items of a sequence, and entries of a map, that are made up."""


def item_of(name: str, containers: Collection[str]) -> str | None:
    """Which of the containers a tensor is a part of, by its name; None if it is of none."""
    return next((one for one in containers if name == one or name.startswith(f"{one}[")), None)


# Values as an engine has them -> tensors


def flattened(name: str, value: Any, kind: ValueType | None) -> dict[str, Array]:
    """The tensors that a value holds, by name; of what no type is declared, by what it is.

    ``value`` is an array, a list, a dictionary, or None for an optional without a value. Empty where nothing is known.
    """
    tensors: dict[str, Array] = {}
    if isinstance(kind, OptionalType):
        tensors[f"{name}[?]"] = np.asarray(value is not None)
        kind = kind.item
    if isinstance(value, list | tuple):
        tensors[f"{name}[#]"] = np.asarray(len(value), np.int64)
        item = kind.item if isinstance(kind, SequenceType) else None
        for number, held in enumerate(value):
            tensors |= flattened(f"{name}[{number}]", held, item)
    elif isinstance(value, Mapping):
        keys = sorted(value)
        tensors[f"{name}[keys]"] = np.asarray(keys, np.str_ if keys and isinstance(keys[0], str) else np.int64)
        tensors[f"{name}[values]"] = np.asarray([value[key] for key in keys])
    elif isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        # Strings come as objects, which no store takes: they get NumPy's type for text.
        tensors[name] = text(array) if array.dtype == object else array
    return tensors


def all_flattened(kinds: Mapping[str, ValueType | None], values: Iterable[Any]) -> dict[str, Array]:
    """The tensors of all outputs, in their order. Raises CannotCompare if two of them would have one name."""
    found: dict[str, Array] = {}
    for (name, kind), value in zip(kinds.items(), values, strict=True):
        tensors = flattened(name, value, kind)
        for part in tensors:
            if part in found or (part != name and part in kinds):
                raise errors.CannotCompare(f"two outputs are called {part!r}: one is a tensor, one a part of {name!r}")
        found |= tensors
    return found


# Tensors -> values as an engine takes them


def has_value(feed: Feed, name: str, kind: ValueType | None) -> bool:
    """Whether a feed says what an input is."""
    if isinstance(kind, OptionalType):
        return f"{name}[?]" in feed or has_value(feed, name, kind.item)
    if isinstance(kind, SequenceType):
        return f"{name}[#]" in feed or has_value(feed, f"{name}[0]", kind.item)
    if isinstance(kind, MapType):
        return f"{name}[keys]" in feed and f"{name}[values]" in feed
    return name in feed


def parts(feed: Feed, name: str, kind: ValueType) -> dict[str, TensorType]:
    """The tensors of a feed that an input is made of, with the types that they must have.

    Raises CannotCompare for one that is missing, or a number of items that is none.
    """
    if isinstance(kind, TensorType):
        if name not in feed:
            raise errors.CannotCompare(f"there is no value for {name!r}")
        return {name: kind}
    if isinstance(kind, OptionalType):
        return parts(feed, name, kind.item) if _is_present(feed, name, kind) else {}
    if isinstance(kind, MapType):
        return {f"{name}[keys]": TensorType(kind.key, (None,)), f"{name}[values]": _values_of(name, kind)}
    found: dict[str, TensorType] = {}
    for number in range(_length(feed, name, kind)):
        found |= parts(feed, f"{name}[{number}]", kind.item)
    return found


def marks(feed: Feed, name: str, kind: ValueType) -> dict[str, Array]:
    """What says how many items there are, and whether there is a value, of an input and all that it holds."""
    if isinstance(kind, OptionalType):
        present = _is_present(feed, name, kind)
        return {f"{name}[?]": np.asarray(present)} | (marks(feed, name, kind.item) if present else {})
    if not isinstance(kind, SequenceType):
        return {}
    length = _length(feed, name, kind)
    found: dict[str, Array] = {f"{name}[#]": np.asarray(length, np.int64)}
    for number in range(length):
        found |= marks(feed, f"{name}[{number}]", kind.item)
    return found


def structured(feed: Feed, name: str, kind: ValueType | None) -> Any:
    """The value of an input as engines take it: an array, a list, a dictionary or None."""
    if isinstance(kind, OptionalType):
        return structured(feed, name, kind.item) if _is_present(feed, name, kind) else None
    if isinstance(kind, SequenceType):
        return [structured(feed, f"{name}[{number}]", kind.item) for number in range(_length(feed, name, kind))]
    if isinstance(kind, MapType):
        return dict(zip(feed[f"{name}[keys]"].tolist(), feed[f"{name}[values]"].tolist(), strict=True))
    return feed[name]


def _is_present(feed: Feed, name: str, kind: OptionalType) -> bool:
    said = feed.get(f"{name}[?]")
    return bool(np.asarray(said).any()) if said is not None else has_value(feed, name, kind.item)


def _length(feed: Feed, name: str, kind: SequenceType) -> int:
    said = feed.get(f"{name}[#]")
    if said is None:
        number = 0
        while has_value(feed, f"{name}[{number}]", kind.item):
            number += 1
        return number
    if np.asarray(said).size != 1 or np.asarray(said).dtype.kind not in "iu" or int(np.asarray(said).item()) < 0:
        raise errors.CannotCompare(f"'{name}[#]' must be the number of items of {name!r}, and not {said!r:.80}")
    return int(np.asarray(said).item())


def _values_of(name: str, kind: MapType) -> TensorType:
    if not isinstance(kind.value, TensorType):
        raise errors.CannotCompare(f"{name!r} is a map of other values than numbers and strings: it cannot be fed")
    return TensorType(kind.value.elem, (None,))


# Made-up values


def drawn(name: str, kind: ValueType) -> dict[str, TensorType]:
    """The tensors to make up for an input: of a sequence two items, of a map two entries; an optional has a value."""
    if isinstance(kind, OptionalType):
        return drawn(name, kind.item)
    if isinstance(kind, SequenceType):
        found: dict[str, TensorType] = {}
        for number in range(_MADE_UP):
            found |= drawn(f"{name}[{number}]", kind.item)
        return found
    if isinstance(kind, MapType):
        return {f"{name}[values]": TensorType(_values_of(name, kind).elem, (_MADE_UP,))}
    return {name: kind}


def completed(feed: Feed, name: str, kind: ValueType) -> dict[str, Array]:
    """What else belongs to tensors that were made up: how many there are, and keys."""
    if isinstance(kind, MapType):
        keys = ["a", "b"] if kind.key == STRING else list(range(_MADE_UP))
        return {f"{name}[keys]": np.asarray(keys)}
    found = marks(feed, name, kind)
    inner = kind.item if isinstance(kind, OptionalType) else kind
    if isinstance(inner, SequenceType):
        for number in range(_MADE_UP):
            found |= completed(feed, f"{name}[{number}]", inner.item)
    return found


def fixed_names(name: str, kind: ValueType | None) -> list[str]:
    """The names of tensors that a value has whatever it holds; those of items begin alike."""
    if isinstance(kind, OptionalType):
        return [f"{name}[?]", *fixed_names(name, kind.item)]
    if isinstance(kind, SequenceType):
        return [f"{name}[#]"]
    return [f"{name}[keys]", f"{name}[values]"] if isinstance(kind, MapType) else [name]
