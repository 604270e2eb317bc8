"""Inputs like those of a check that it has not seen: what is right on these too is not right by luck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.engines.feeding import Inputs, feeds_for
from biopsy.model.index import ModelIndex
from biopsy.model.tensor_type import BOOL, FLOATS, TensorType, ValueType
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


_WIDE = (-4.0, 4.0)
"""Where fresh numbers lie that are to reach what the usual range of made-up inputs does not: below 0, above 1."""

_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Relu", "Clip", "Max", "Min", "Abs", "Neg", "Sign", "Sum"})
"""Operators that take any whole number; for others it may be an index, a size or an axis."""


def wider_sample(index: ModelIndex, wanted: Mapping[str, ValueType | None], drawn: Inputs) -> Feed | None:
    """One sample of numbers in a wider range than the usual one; None where inputs or their range were given.

    A model need not be defined there: whoever uses it looks what the trusted engine makes of it.
    """
    if drawn.given is not None or drawn.val_range or not wanted:
        return None
    ranges = {name: _WIDE for name, kind in wanted.items() if isinstance(kind, TensorType) and _may_widen(index, name)}
    if not ranges:
        return None
    made = _drawn(wanted, replace(drawn, val_range=ranges, seed=drawn.seed + 1), 1)
    return made[0] if made else None


def _may_widen(index: ModelIndex, name: str) -> bool:
    kind = index.tensor_type(index.ids[name])
    if kind is None or kind.elem == BOOL:
        return False
    readers = {index.nodes[node].op_type for node in index.consumers.get(index.ids[name], ())}
    return kind.elem in FLOATS or readers <= _ARITHMETIC


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
