"""Whether an engine's error is that of computing in a narrower type, judged by a simulation of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from biopsy.comparison.metrics import numeric
from biopsy.tensors.results import Array
from biopsy.tensors.types import is_text

NARROWER_TYPES: Mapping[str, tuple[str, ...]] = {
    "float64": ("float32", "float16", "tf32", "bfloat16"),
    "float32": ("float16", "tf32", "bfloat16"),
    "float16": ("bfloat16",),
}
"""The types to simulate for results of a type."""

MOST_LEFT = 0.1
"""The greatest share of an error that may be left beside the simulation.

An engine that sums in another order rounds a few results to the other neighbour, which leaves less; an error that is
no rounding leaves more than half.
"""

_FEWEST_VALUES = 8
_CHANGED = 2.0**-30
"""What rounding changes by less than this, relatively, is no evidence."""


def share_left(
    actual: Sequence[Mapping[str, Array]], exact: Sequence[Mapping[str, Array]], rounded: Sequence[Mapping[str, Array]]
) -> float | None:
    """The share of an engine's error that is left if it is measured from ``rounded`` instead of ``exact`` outputs.

    Each has the outputs of every sample by name: of the engine, of float64, and of float64 with values rounded to a
    narrower type. Errors are summed per output; the greatest share counts. None if that says nothing: rounding changes
    fewer than eight different values of an output that is wrong, or other elements are finite.
    """
    shares = []
    for name in actual[0]:
        sides = [[sample.get(name) for sample in samples] for samples in (actual, exact, rounded)]
        if any(value is None or is_text(value) for side in sides for value in side):
            return None
        of_engine, right, simulated = (_joined([value for value in side if value is not None]) for side in sides)
        if not of_engine.size == right.size == simulated.size:
            return None
        finite = np.isfinite(right)
        if any(not np.array_equal(np.isfinite(side), finite) for side in (of_engine, simulated)):
            return None
        of_engine, right, simulated = of_engine[finite], right[finite], simulated[finite]
        error, left = float(np.abs(of_engine - right).sum()), float(np.abs(of_engine - simulated).sum())
        changed = right[np.abs(simulated - right) > _CHANGED * np.abs(right)]
        if error == 0 and not changed.size:
            continue  # no rounding in either, such as indices
        if error == 0 or np.unique(changed).size < _FEWEST_VALUES:
            return None
        shares.append(left / error)
    return max(shares, default=None)


def _joined(values: Sequence[Array]) -> Array:
    return np.concatenate([numeric(value).astype(np.float64).reshape(-1) for value in values])
