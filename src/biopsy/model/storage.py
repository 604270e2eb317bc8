"""How many bytes the values of a tensor take."""

from __future__ import annotations

import math
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


def raw_size(elem: int, dims: Iterable[int]) -> int | None:
    """Bytes of a tensor in raw form by its ONNX element type and shape; 0 for strings, None if it cannot be told."""
    sizes = list(dims)
    if elem not in BITS or any(size < 0 for size in sizes):
        return None
    return (math.prod(sizes) * BITS[elem] + 7) // 8
