"""The outputs of a runner that hold NaN or infinities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from biopsy.comparison import metrics
from biopsy.comparison.metrics import Index, Scalar
from biopsy.tensors.dtypes import is_text
from biopsy.tensors.results import RunnerResult, release


@dataclass(frozen=True, kw_only=True)
class NotFinite:
    """An output that holds NaN or infinities: how many of each, where the first one is, and its value."""

    iteration: int
    name: str
    elements: int
    nan: int
    inf: int
    first: Index
    value: Scalar


def not_finite(result: RunnerResult) -> list[NotFinite]:
    """The outputs of a runner that hold NaN or infinities, in order."""
    return list(_not_finite(result))


def _not_finite(result: RunnerResult) -> Iterator[NotFinite]:
    for number, iteration in enumerate(result.iterations):
        for name, array in iteration.outputs.items():
            values = array if is_text(array) else metrics.numeric(array)
            if values.dtype.kind not in "fc":
                continue
            non_finite = ~np.isfinite(values)
            if non_finite.any():
                nan = int(np.isnan(values).sum())
                first = metrics.at(values, int(non_finite.reshape(-1).argmax()))
                inf = int(non_finite.sum()) - nan
                yield NotFinite(
                    iteration=number,
                    name=name,
                    elements=values.size,
                    nan=nan,
                    inf=inf,
                    first=first,
                    value=metrics.element(array, first),
                )
            release(array)
