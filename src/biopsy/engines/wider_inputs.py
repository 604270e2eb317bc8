"""Made-up inputs that reach what the usual range does not: much of what is wrong shows below 0 and above 1 only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from biopsy import errors
from biopsy.engines.feeding import Inputs, feeds_for
from biopsy.model.index import ModelIndex
from biopsy.model.tensor_type import BOOL, FLOATS, TensorType, ValueType
from biopsy.tensors.results import Feed

_OTHER_SEED = 7920
"""Added to the seed: the usual iterations count up from that one."""

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
    other = replace(drawn, val_range=ranges, seed=drawn.seed + _OTHER_SEED, iterations=1)
    try:
        return feeds_for(wanted, other).feeds[0]
    except errors.BiopsyError:
        return None


def _may_widen(index: ModelIndex, name: str) -> bool:
    kind = index.tensor_type(index.ids[name])
    if kind is None or kind.elem == BOOL:
        return False
    readers = {index.nodes[node].op_type for node in index.consumers.get(index.ids[name], ())}
    return kind.elem in FLOATS or readers <= _ARITHMETIC
