"""What the formats of numbers can hold."""

import ml_dtypes
import numpy as np
import pytest

from biopsy.model.tensor_type import DTYPE_OF_ELEM
from biopsy.questions.precision.formats import (
    BF16,
    FORMATS,
    FP8_E4M3FN,
    FP8_E5M2,
    FP16,
    FP32,
    OF_ELEM,
    Format,
    formats_holding,
)
from biopsy.tensors.types import dtype_named


@pytest.mark.parametrize("each", FORMATS, ids=str)
def test_limits_and_roundings_are_those_of_the_type(each: Format) -> None:
    limits = ml_dtypes.finfo(dtype_named(DTYPE_OF_ELEM[each.elem]))
    assert each.largest == float(limits.max)
    assert each.smallest == float(limits.smallest_subnormal)
    assert each.normal == float(limits.smallest_normal)
    assert each.rounding == float(limits.eps) / 2


@pytest.mark.parametrize("low", FORMATS, ids=str)
def test_a_format_is_held_by_those_that_keep_all_of_its_values(low: Format) -> None:
    narrow = dtype_named(DTYPE_OF_ELEM[low.elem])
    bits = np.arange(1 << min(8 * narrow.itemsize, 16), dtype=f"u{min(narrow.itemsize, 2)}")
    values = bits.view(narrow) if low is not FP32 else np.float32([1 / 3, 1e38, 1e-38])
    wide = values.astype(np.float32)
    for high in FORMATS:
        with np.errstate(over="ignore", invalid="ignore"):
            back = wide.astype(dtype_named(DTYPE_OF_ELEM[high.elem])).astype(np.float32)
        assert (high in formats_holding(low)) is np.array_equal(back, wide, equal_nan=True), high


def test_each_has_its_own_element_type_and_name() -> None:
    assert len(OF_ELEM) == len(FORMATS) + 1  # and float64, which nothing is lowered to
    assert [str(each) for each in (FP32, FP16, BF16, FP8_E4M3FN, FP8_E5M2)] == [
        "float32", "fp16", "bf16", "fp8 e4m3fn", "fp8 e5m2",
    ]  # fmt: skip
