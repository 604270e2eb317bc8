"""From two tensors to one error, by what was asked of outputs."""

import math

import numpy as np
import pytest

from biopsy.comparison.tolerance import Tolerances
from biopsy.model.tensor_type import ELEM_OF_DTYPE, TensorType
from biopsy.questions.layers.question import Judge, worst

JUDGE = Judge(Tolerances({"": 0.5}, {"": 0.0}))


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_the_sample_counts_in_which_the_tensor_is_farthest_off() -> None:
    error = JUDGE.error("t", [array(1, 2), array(1, 9)], [array(1, 3), array(1, 2)])
    assert (error.sample, error.absolute, error.passed) == (1, 7.0, False)
    assert error.worst is not None and error.worst.index == (1,)


def test_the_tolerance_ratio_is_the_greatest_error_by_what_is_allowed_there() -> None:
    judge = Judge(Tolerances({"": 0.5}, {"": 0.25}))
    assert judge.error("t", [array(4, 10)], [array(2, 8)]).tolerance_ratio == pytest.approx(2 / (0.5 + 0.25 * 2))


def test_what_is_within_the_tolerances_has_no_ratio() -> None:
    error = JUDGE.error("t", [array(1.25)], [array(1)])
    assert (error.passed, error.absolute, error.tolerance_ratio, error.reason) == (True, 0.25, 0.0, None)


def test_tolerances_may_differ_by_the_name_of_the_tensor() -> None:
    judge = Judge(Tolerances({"": 0.0, "loose": 1.0}, {"": 0.0}))
    assert judge.error("loose", [array(1.5)], [array(1)]).passed
    assert not judge.error("tight", [array(1.5)], [array(1)]).passed


def test_shapes_that_differ_are_infinitely_far_apart() -> None:
    error = JUDGE.error("t", [array(1, 2)], [array(1)])
    assert not error.passed and error.reason
    assert (error.absolute, error.relative, error.tolerance_ratio) == (math.inf, math.inf, math.inf)


def test_nan_on_both_sides_is_no_error_and_on_one_side_is() -> None:
    assert JUDGE.error("t", [array(math.nan)], [array(math.nan)]).passed
    assert not JUDGE.error("t", [array(math.nan)], [array(1)]).passed


def test_of_errors_that_are_alike_the_first_is_the_worst() -> None:
    errors = [JUDGE.error(name, [array(3)], [array(1)]) for name in ("first", "second")]
    assert worst(errors).tensor == "first"


def test_every_error_says_its_kind() -> None:
    inf, nan = math.inf, math.nan
    kinds = {"mismatch": [5], "nan-mismatch": [nan], "+inf-mismatch": [inf], "-inf-mismatch": [-inf]}
    for kind, given in kinds.items():
        assert JUDGE.error("t", [array(*given)], [array(1)]).kind == kind
    assert JUDGE.error("t", [array(1)], [array(nan)]).kind == "nan-expected"
    assert JUDGE.error("t", [array(1)], [array(1)]).kind == ""


def test_a_wrong_type_and_a_wrong_shape_are_told_with_what_is_right() -> None:
    declared = TensorType(ELEM_OF_DTYPE["float32"], (2,))
    wide = JUDGE.error("t", [array(1, 2).astype(np.float64)], [array(1, 2)], declared)
    assert (wide.kind, wide.form) == ("type-mismatch", "'t' of type float64 where the model declares float32")
    assert (wide.passed, wide.tolerance_ratio) == (False, math.inf)
    long = JUDGE.error("t", [array(1, 2, 3)], [array(1, 2)], declared)
    assert (long.kind, long.form) == ("shape-mismatch", "'t' of shape [3] where the model declares [2]")
    assert JUDGE.error("t", [array(1, 2)], [array(1, 2).astype(np.float64)], declared).passed, "a wide reference"
