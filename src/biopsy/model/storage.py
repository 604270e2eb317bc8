"""How many elements and bytes a tensor has, by what a model says of it: anybody may have written that."""

from __future__ import annotations

from collections.abc import Iterable

BITS: dict[int, int] = (
    {8: 0, 14: 64, 15: 128}
    | dict.fromkeys((1, 6, 12), 32)
    | dict.fromkeys((7, 11, 13), 64)
    | dict.fromkeys((4, 5, 10, 16), 16)
    | dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8)
    | dict.fromkeys((21, 22, 23), 4)
    | dict.fromkeys((25, 26), 2)
)
"""ONNX element type -> bits of one element in raw form; 0 for strings, which have none."""

SIZED = frozenset(BITS) - {8}
"""Element types of which the number of bytes is known."""

MOST_DIMENSIONS = 64
"""As many as NumPy has; a model that says more is damaged, or made to keep somebody busy."""

MOST_ELEMENTS = 1 << 63
"""No tensor has as many: larger numbers are not told apart."""

_MOST_DIGITS = 19  # of a place in a file, which the system counts in 63 bits


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
    """The offset or length that a model writes as text.

    Raises ValueError if no file has such a place, or if readers would understand it differently, such as ``1_000``.
    """
    if len(text) > _MOST_DIGITS or not (text.isascii() and text.isdigit()):
        raise ValueError(text[:_MOST_DIGITS])
    return int(text)


def raw_size(elem: int, dims: Iterable[int]) -> int | None:
    """Bytes of a tensor in raw form by its ONNX element type and shape; 0 for strings, None if it cannot be told."""
    sizes = list(dims)
    if elem not in BITS or any(size < 0 for size in sizes):
        return None
    return (elements(sizes) * BITS[elem] + 7) // 8
