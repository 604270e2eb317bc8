"""NaN and infinities in the values of a tensor, counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from biopsy.comparison import metrics
from biopsy.tensors.dtypes import is_text
from biopsy.tensors.results import Array


@dataclass(frozen=True)
class NonFinite:
    """How many elements of a tensor are NaN and infinite, over all samples."""

    nan: int
    inf: int


def non_finite(values: Sequence[Array]) -> NonFinite | None:
    """The NaN and infinities of a tensor, one value per sample; None if there are none."""
    nan = inf = 0
    for value in values:
        if is_text(value):
            continue
        numbers = metrics.numeric(value)
        if numbers.dtype.kind not in "fc" or np.isfinite(numbers).all():
            continue
        nans = int(np.isnan(numbers).sum())
        nan += nans
        inf += int((~np.isfinite(numbers)).sum()) - nans
    return NonFinite(nan, inf) if nan or inf else None
