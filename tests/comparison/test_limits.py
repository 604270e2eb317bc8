"""What is asked of an output by name counts more than what is asked of all; every limit that is asked for must hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from biopsy import errors
from biopsy.comparison.compare import OutputComparison, compare_output
from biopsy.comparison.describe import report_lines
from biopsy.comparison.runs import compare_runs
from biopsy.comparison.tolerance import (
    DEFAULT_LIMITS,
    METRICS,
    Criteria,
    Limit,
    MetricLimits,
    Stats,
    Tolerance,
    Tolerances,
    TopK,
    criteria_for,
)
from biopsy.tensors.results import Array, Iteration, RunnerResult

LOOSE = Tolerances({"": 9.0})


def asked(
    name: str = "y", limits: MetricLimits | None = None, atol: dict[str, float] | None = None
) -> tuple[list[str], bool]:
    """The metrics that hold for an output, and whether the tolerances do."""
    found = criteria_for(name, Tolerances(atol or {}), Stats(), limits or MetricLimits())
    return [limit.metric for limit in found.limits], found.tolerances_decide


def test_tolerances_hold_where_nothing_else_is_asked() -> None:
    assert asked() == ([], True)
    assert asked(limits=MetricLimits({"cosine": {"z": 0.9}})) == ([], True)


def test_a_limit_holds_instead_of_the_default_tolerances() -> None:
    assert asked(limits=MetricLimits({"cosine": {"": 0.9}})) == (["cosine"], False)


def test_what_is_asked_of_all_outputs_holds_together() -> None:
    assert asked(limits=MetricLimits({"cosine": {"": 0.9}, "psnr": {"": 30}}), atol={"": 1}) == (
        ["cosine", "psnr"],
        True,
    )


def test_what_is_asked_of_one_output_holds_alone() -> None:
    limits = MetricLimits({"cosine": {"y": 0.9}, "psnr": {"": 30}})
    assert asked("y", limits, {"": 1}) == (["cosine"], False)
    assert asked("z", limits, {"": 1}) == (["psnr"], True)
    assert asked("z", limits, {"z": 1}) == ([], True)


def test_what_is_chosen_holds_for_every_output_and_limits_by_name_only_replace_others() -> None:
    limits = MetricLimits({"psnr": {"y": 40}, "l2": {"": 1}}, chosen=frozenset({"psnr", "cosine"}))
    for name, psnr in (("y", 40.0), ("z", 30.0)):
        found = criteria_for(name, LOOSE, Stats(), limits)
        assert found.limits == (Limit("cosine", 0.997), Limit("psnr", psnr))
        assert not found.tolerances_decide
    assert criteria_for("y", LOOSE, Stats(), MetricLimits(chosen=frozenset({"simple"}))).tolerances_decide


def test_a_statistic_is_a_word_about_tolerances_too() -> None:
    found = criteria_for("y", Tolerances(), Stats({"y": "max"}), MetricLimits({"cosine": {"": 0.9}}))
    assert (found.limits, found.tolerances_decide) == ((), True)


def test_ranks_are_asked_for_by_their_number_or_by_their_tolerance() -> None:
    limits = MetricLimits({"indices": {"": 2}}, {"y": TopK(3)})
    assert criteria_for("y", Tolerances(), Stats(), limits).limits == (Limit("indices", 2, TopK(3)),)
    assert criteria_for("z", Tolerances(), Stats(), limits).limits == (Limit("indices", 2, None),)


def test_every_metric_has_a_default() -> None:
    assert set(DEFAULT_LIMITS) == set(METRICS)


# Verdicts

EXPECTED = np.array([1.0, 2.0, 4.0, 8.0])
ACTUAL = np.array([1.0, 2.0, 4.0, 8.5])


def compare(actual: Any, expected: Any, *limits: Limit, tolerances: bool = False) -> OutputComparison:
    return compare_output(
        "y", np.asarray(actual), np.asarray(expected), Criteria(limits=limits, tolerances_decide=tolerances)
    )


@pytest.mark.parametrize(
    ("metric", "keeps", "breaks"),
    [
        ("l2", 0.5, 0.49),
        ("cosine", 0.9995, 0.9999),
        ("psnr", 30, 31),
        ("snr", 25, 26),
        ("ulp", 2**48, 2**48 - 1),
    ],
)
def test_a_limit_may_be_reached_and_not_passed(metric: Any, keeps: float, breaks: float) -> None:
    assert compare(ACTUAL, EXPECTED, Limit(metric, keeps)).passed
    broken = compare(ACTUAL, EXPECTED, Limit(metric, breaks))
    assert broken.reason == f"{metric} is outside its limit"


def test_a_cosine_above_1_is_kept_by_nothing_equal_tensors_neither() -> None:
    assert not compare(EXPECTED, EXPECTED, Limit("cosine", 2)).passed


def test_all_limits_and_the_tolerances_must_hold_where_they_are_asked_for() -> None:
    near = Limit("cosine", 0.99)
    assert compare(ACTUAL, EXPECTED, near).passed
    assert not compare(ACTUAL, EXPECTED, near, Limit("l2", 0.1)).passed
    both = compare(ACTUAL, EXPECTED, near, Limit("l2", 0.1), tolerances=True)
    assert both.reason == "1 of 4 elements is outside the tolerances; l2 is outside its limit"


@pytest.mark.parametrize("metric", METRICS)
def test_nan_on_one_side_only_fails_whatever_is_asked(metric: Any) -> None:
    limit = Limit(metric, -1 if metric in ("cosine", "psnr", "snr") else 1e300 if metric != "indices" else 1)
    assert not compare([1.0, math.nan], [1.0, 2.0], limit).passed
    assert compare([1.0, math.nan], [1.0, math.nan], limit).passed


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64", "bfloat16"])
def test_equal_tensors_of_any_type_keep_every_limit(metric: Any, dtype: str) -> None:
    import ml_dtypes

    same: Array = np.array([[1, 0, 3]]).astype(getattr(ml_dtypes, dtype, dtype))
    best = math.inf if metric in ("psnr", "snr") else 0.999999 if metric == "cosine" else 0
    assert compare(same, same, Limit(metric, best)).passed
    assert compare(same[:0], same[:0], Limit(metric, 1 if metric == "cosine" else best)).passed


def test_the_top_classes_may_have_other_scores_in_the_same_order() -> None:
    scores, other = [0.1, 0.7, 0.2], [0.2, 0.5, 0.3]
    assert compare(scores, other, Limit("indices", 0, TopK(3))).passed
    swapped = compare([0.3, 0.7, 0.2], scores, Limit("indices", 0, TopK(3)))
    assert swapped.reason == "2 of 3 indices of the top 3 are out of place"
    assert compare([0.3, 0.7, 0.2], scores, Limit("indices", 1, TopK(3))).passed


def test_an_axis_that_is_not_there_is_no_verdict() -> None:
    with pytest.raises(errors.DoesNotFit, match="output 'y' of shape \\[2\\] has no axis 3"):
        compare([1.0, 2.0], [1.0, 2.0], Limit("indices", 0, TopK(1, axis=3)))


def test_runs_are_compared_by_limits_per_output() -> None:
    def result(value: float) -> RunnerResult:
        return RunnerResult("r", (Iteration({"a": EXPECTED * value, "b": EXPECTED * value}),))

    compared = compare_runs(result(2), result(1), limits=MetricLimits({"cosine": {"a": 0.9}}))
    assert [output.name for _, output in compared.failures] == ["b"]


def test_every_figure_is_given_when_a_report_wants_them() -> None:
    found = compare_output("y", ACTUAL, EXPECTED, Criteria(), detail="full").figures
    assert found is not None
    assert (found.l2, found.ulp) == (0.5, 2**48)


def test_statistics_may_be_left_to_what_fails() -> None:
    passing, failing = (compare_output("y", EXPECTED * by, EXPECTED, Criteria(), "brief") for by in (1, 2))
    assert passing.actual_statistics is None
    assert failing.actual_statistics is not None


# In words


def test_limits_are_told_with_what_was_measured() -> None:
    limits = (Limit("cosine", 0.99), Limit("ulp", 3), Limit("indices", 0, TopK(2)))
    lines = report_lines(compare(ACTUAL, EXPECTED, *limits))
    assert any(line.startswith("  limit     cosine 0.999") and line.endswith("(at least 0.99)") for line in lines)
    assert "  LIMIT     ulp 2.81475e+14 (at most 3), worst at [3]: 8.5, expected 8" in lines
    assert "  limit     top 2: 0 of 2 moved by more than 0" in lines
    assert not any("passes    with --atol" in line for line in lines)
    passing = report_lines(compare(ACTUAL, EXPECTED, Limit("psnr", 30)))
    assert passing[0].endswith(", psnr 30.103 dB (at least 30)")


def test_tolerances_that_would_pass_are_told_where_they_decide() -> None:
    assert any("--atol y:0.5" in line for line in report_lines(compare(ACTUAL, EXPECTED, tolerances=True)))
    assert Tolerance() == Tolerance(1e-5, 1e-5)
