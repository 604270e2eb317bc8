"""NaN and infinities are counted over all samples."""

import numpy as np

from biopsy.questions.layers.recorded import NonFinite, non_finite
from biopsy.tensors.types import dtype_named


def test_nan_and_infinities_are_counted_apart() -> None:
    values = [np.array([np.nan, 1, np.inf]), np.array([-np.inf, np.nan, np.nan])]
    assert non_finite(values) == NonFinite(nan=3, inf=2)


def test_finite_numbers_integers_and_strings_have_none() -> None:
    assert non_finite([np.array([1.5]), np.array([2]), np.array(["nan"]), np.array([True])]) is None
    assert non_finite([]) is None


def test_narrow_and_complex_numbers_are_looked_at_too() -> None:
    assert non_finite([np.array([np.nan, 1]).astype(dtype_named("bfloat16"))]) == NonFinite(1, 0)
    assert non_finite([np.array([complex(np.inf, 0)])]) == NonFinite(0, 1)
