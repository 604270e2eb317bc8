"""Types of ONNX values, and the numbers of elements and bytes that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Dim: TypeAlias = int | str | None
"""A dimension: its size, the name of a symbol, or None if unknown."""

Shape: TypeAlias = tuple[Dim, ...]

DTYPE_OF_ELEM: dict[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
}  # fmt: skip
"""ONNX element type -> its name in NumPy or ml_dtypes ("string" for strings)."""

ELEM_OF_DTYPE: dict[str, int] = {name: elem for elem, name in DTYPE_OF_ELEM.items()}

FLOATS = frozenset({1, 10, 11, 16, 17, 18, 19, 20, 23, 24})
INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13, 21, 22, 25, 26})
BOOL = 9
STRING = 8


@dataclass(frozen=True)
class TensorType:
    """The type of a tensor. ``elem`` is an ONNX element type; ``shape`` is None if even the rank is unknown."""

    elem: int
    shape: Shape | None

    @property
    def dtype(self) -> str:
        """The element type by name, such as "float32" or "bfloat16"."""
        return DTYPE_OF_ELEM.get(self.elem, f"type {self.elem}")

    @property
    def is_static(self) -> bool:
        """Whether every dimension has a known size."""
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a value of this shape has every declared size."""
        declared = self.shape
        return declared is None or (
            len(shape) == len(declared)
            and all(not isinstance(dim, int) or dim == size for dim, size in zip(declared, shape, strict=True))
        )

    def __str__(self) -> str:
        """Text such as ``float32[1,N,?]``."""
        if self.shape is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{','.join('?' if dim is None else str(dim) for dim in self.shape)}]"


@dataclass(frozen=True)
class SequenceType:
    """The type of a sequence; ``item`` is the type of each item."""

    item: ValueType

    def __str__(self) -> str:
        """Text such as ``sequence of float32[...]``."""
        return f"sequence of {self.item}"


@dataclass(frozen=True)
class OptionalType:
    """The type of an optional value; ``item`` is the type of the value, if there is one."""

    item: ValueType

    def __str__(self) -> str:
        """Text such as ``optional float32[2]``."""
        return f"optional {self.item}"


@dataclass(frozen=True)
class MapType:
    """The type of a map. ``key`` is an ONNX element type; ``value`` is a tensor type even for single numbers."""

    key: int
    value: ValueType

    def __str__(self) -> str:
        """Text such as ``map of int64 to float32[...]``."""
        return f"map of {DTYPE_OF_ELEM.get(self.key, self.key)} to {self.value}"


def spaced(kind: ValueType) -> str:
    """A type as ``float32 [1, N, ?]``; as ``float32`` if not even the number of dimensions is known."""
    return str(kind).replace("[...]", "").replace("[", " [", 1).replace(",", ", ")


ValueType: TypeAlias = TensorType | SequenceType | OptionalType | MapType
"""The type of an input or output of a model."""

BITS: dict[int, int] = (
    {8: 0, 14: 64, 15: 128}
    | dict.fromkeys((1, 6, 12), 32)
    | dict.fromkeys((7, 11, 13), 64)
    | dict.fromkeys((4, 5, 10, 16), 16)
    | dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8)
    | dict.fromkeys((21, 22, 23), 4)
    | dict.fromkeys((25, 26), 2)
)
"""ONNX element type -> bits of one element in raw form; 0 for strings, which have no raw form."""

SIZED = frozenset(BITS) - {8}
"""Element types with a known number of bytes."""

MOST_DIMENSIONS = 64
"""NumPy's limit. A model that declares more is damaged or malicious."""

MOST_ELEMENTS = 1 << 63
"""No tensor has as many; ``elements`` stops counting here."""

_MOST_DIGITS = 19
"""Digits of an offset in a file, which the system stores in 63 bits."""


def elements(dims: Iterable[int]) -> int:
    """The product of sizes, at most MOST_ELEMENTS; 0 if one of them is 0 or negative."""
    sizes = list(dims)
    if any(size <= 0 for size in sizes):
        return 0
    total = 1
    for size in sizes:
        total *= size
        if total >= MOST_ELEMENTS:  # the product of a million sizes would take minutes
            return MOST_ELEMENTS
    return total


def place_in_file(text: str) -> int:
    """The offset or length that a model gives as text.

    Raises ValueError if it is too large for a file, or if other readers may read it differently, such as ``1_000``.
    """
    if len(text) > _MOST_DIGITS or not (text.isascii() and text.isdigit()):
        raise ValueError(text[:_MOST_DIGITS])
    return int(text)


def raw_size(elem: int, dims: Iterable[int]) -> int | None:
    """Bytes of a tensor in raw form, by its ONNX element type and shape; 0 for strings, None if unknown."""
    sizes = list(dims)
    if elem not in BITS or any(size < 0 for size in sizes):
        return None
    return (elements(sizes) * BITS[elem] + 7) // 8
