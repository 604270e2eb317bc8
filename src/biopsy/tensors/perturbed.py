"""Inputs that are some roundings off: how far an output moves with them is what rounding can do to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from biopsy.tensors.dtypes import is_extended, widened
from biopsy.tensors.results import Array, Feed


def roundings_off(feeds: Sequence[Feed], roundings: int = 1, seed: int = 0) -> list[Feed]:
    """The same feeds, every number of a floating type multiplied by 1 plus or minus so many steps of its type.

    What such a change flips, as the index of the greatest of two nearly equal numbers, a rounding may flip.
    Another ``seed`` gives other signs.

    Whole numbers move away from 0, or stay: they may be indices, and a Cast cuts off what they are too great by.
    """
    random = np.random.default_rng((roundings, seed))
    return [{name: _moved(value, random, roundings) for name, value in feed.items()} for feed in feeds]


def differ(feeds: Sequence[Feed], others: Sequence[Feed]) -> bool:
    """Whether any value of two lists of feeds with the same names and shapes is another one."""
    return any(
        not np.array_equal(_plain(value), _plain(other[name]))
        for feed, other in zip(feeds, others, strict=True)
        for name, value in feed.items()
    )


def _moved(value: Array, random: np.random.Generator, roundings: int) -> Array:
    if not _is_float(value.dtype):
        return value
    wide = widened(value).astype(np.float64) if is_extended(value.dtype) else value.astype(np.float64)
    step = roundings * _step(value.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        signs = random.choice((-1.0, 1.0), wide.shape)
        signs = np.where(wide == np.rint(wide), np.maximum(signs, 0), signs)
        found: Array = (wide * (1 + step * signs)).astype(value.dtype)
    return found


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.name in {"float16", "bfloat16", "float32", "float64"}


def _step(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next number of a type, but that of float32 at most: what is wider is told by it."""
    return 2.0**-7 if dtype.name == "bfloat16" else max(float(np.finfo(dtype).eps), 2.0**-23)


def _plain(value: Array) -> Array:
    return widened(value) if is_extended(value.dtype) else value
