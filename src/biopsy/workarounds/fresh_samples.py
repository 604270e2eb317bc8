"""Inputs like those of a check that it has not seen: what is right on these too is not right by luck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.engines.feeding import Inputs, feeds_for
from biopsy.model.tensor_type import ValueType
from biopsy.tensors.dtypes import is_extended, is_text, widened
from biopsy.tensors.results import Array, Feed, same_values

_OTHER_SEED = 7919
"""Added to the seed of the check: its own iterations count up from that one."""


def fresh_samples(
    wanted: Mapping[str, ValueType | None], samples: Sequence[Feed], drawn: Inputs, count: int
) -> list[Feed]:
    """At most ``count`` other samples, none of which is among ``samples``.

    Where these were made up, others are drawn in the same way. Given ones are varied within what they hold: numbers of
    a floating type are drawn between the least and the greatest of a tensor, all others change places, so that what
    were indices still are. None for a model whose inputs leave nothing to vary.
    """
    if not wanted or not samples:
        return []
    made = _drawn(wanted, drawn, count) if drawn.given is None else _varied(samples, count)
    return [one for one in made if not any(_is_same(one, known) for known in samples)]


def _drawn(wanted: Mapping[str, ValueType | None], drawn: Inputs, count: int) -> list[Feed]:
    try:
        return list(feeds_for(wanted, replace(drawn, iterations=count, seed=drawn.seed + _OTHER_SEED)).feeds)
    except errors.BiopsyError:
        return []


def _varied(samples: Sequence[Feed], count: int) -> list[Feed]:
    made: list[Feed] = []
    for number in range(count):
        random = np.random.default_rng((_OTHER_SEED, number))
        sample = samples[number % len(samples)]
        made.append({name: _other_values(np.asarray(sample[name]), random) for name in sample})
    return made


def _other_values(value: Array, random: np.random.Generator) -> Array:
    if is_text(value) or value.size < 2 or not _is_float(value):
        flat = value.reshape(-1)
        return random.permutation(flat).reshape(value.shape)
    wide = widened(value) if is_extended(value.dtype) else value
    finite = wide[np.isfinite(wide)].astype(np.float64)
    if not finite.size or finite.min() == finite.max():
        return value
    drawn: Array = random.uniform(finite.min(), finite.max(), value.shape).astype(value.dtype)
    return drawn


def _is_float(value: Array) -> bool:
    dtype: np.dtype[Any] = value.dtype
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _is_same(left: Feed, right: Feed) -> bool:
    return all(name in right and same_values(np.asarray(left[name]), np.asarray(right[name])) for name in left)
