"""Inputs that are one rounding off: how far an output moves with them is what rounding can do to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from biopsy.tensors.dtypes import is_extended, widened
from biopsy.tensors.results import Array, Feed

_SEED = 20


def one_rounding_off(feeds: Sequence[Feed]) -> list[Feed]:
    """The same feeds, every number of a floating type multiplied by 1 plus or minus one step of its type.

    Whole numbers stay: they may be masks, or indices.
    """
    random = np.random.default_rng(_SEED)
    return [{name: _moved(value, random) for name, value in feed.items()} for feed in feeds]


def differ(feeds: Sequence[Feed], others: Sequence[Feed]) -> bool:
    """Whether any value of two lists of feeds with the same names and shapes is another one."""
    return any(
        not np.array_equal(_plain(value), _plain(other[name]))
        for feed, other in zip(feeds, others, strict=True)
        for name, value in feed.items()
    )


def _moved(value: Array, random: np.random.Generator) -> Array:
    if not _is_float(value.dtype):
        return value
    wide = widened(value).astype(np.float64) if is_extended(value.dtype) else value.astype(np.float64)
    step = _step(value.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        whole = wide == np.rint(wide)
        moved = np.where(whole, wide, wide * (1 + step * random.choice((-1.0, 1.0), wide.shape)))
        found: Array = moved.astype(value.dtype)
    return found


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _step(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next number of a type, but that of float32 at most: what is wider is told by it."""
    return 2.0**-7 if dtype.name == "bfloat16" else max(float(np.finfo(dtype).eps), 2.0**-23)


def _plain(value: Array) -> Array:
    return widened(value) if is_extended(value.dtype) else value
