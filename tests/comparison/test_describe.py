"""One line where a comparison passes; where it fails, the worst element and the tolerance that would pass."""

from __future__ import annotations

import numpy as np

from biopsy.comparison.describe import report_lines, statistics_text
from biopsy.comparison.metrics import statistics
from biopsy.comparison.tolerance import Tolerance
from support.comparing import compare_tensors

EXPECTED = np.array([[1.0, 0.5], [2.0, 0.0]], np.float32)


def text(actual: object, expected: object = EXPECTED, **options: object) -> str:
    return "\n".join(report_lines(compare_tensors("y", np.asarray(actual), np.asarray(expected), **options)))  # type: ignore[arg-type]


def test_equal_outputs_take_one_line() -> None:
    assert text(EXPECTED) == "y  float32[2, 2]  passes: equal"


def test_close_outputs_take_one_line_with_the_greatest_error() -> None:
    line = text(EXPECTED + np.float32(1e-3) * EXPECTED, tolerance=Tolerance(0, 0.1))
    assert line == "y  float32[2, 2]  passes: max |difference| 0.002 at [1, 0], relative 0.001"


def test_a_failure_shows_the_worst_elements_and_what_would_pass() -> None:
    assert text([[1.0, 0.5], [2.0625, 0.03125]], np.float64(EXPECTED)).splitlines() == [
        "y  float64[2, 2]  FAILS: 2 of 4 elements are outside the tolerances",
        "  absolute  at [1, 0]: 2.0625, expected 2, |difference| 0.0625",
        "  relative  at [1, 1]: 0.03125, expected 0, |difference| / |expected| inf",
        "  errors    2 of 4 elements outside (50%); absolute: mean 0.0234, median 0.0156",
        "  passes    with --atol y:0.0625 (now: atol 1e-05, rtol 1e-05, elemwise)",
        "  actual    min=0.03125 at [1, 1], max=2.0625 at [1, 0], mean=0.8984375, std=0.7543413, median=0.75",
        "  expected  min=0 at [1, 1], max=2 at [1, 0], mean=0.875, std=0.73951, median=0.75",
    ]


def test_one_element_that_is_worst_in_both_ways_is_shown_once() -> None:
    shown = text([[1.0, 0.5], [3.0, 0.0]])
    assert "|difference| 1, relative 0.5" in shown
    assert "with --atol y:1 or --rtol y:0.5" in shown


def test_nan_on_one_side_is_the_worst_and_nothing_would_pass() -> None:
    shown = text([[1.0, np.nan], [2.0, 0.0]])
    assert "1 of 4 elements is NaN or infinite on one side only" in shown
    assert "at [0, 1]: nan, expected 0.5" in shown
    assert "with no tolerance" in shown
    assert "1 NaN" in shown


def test_other_shapes_types_and_strings_are_told() -> None:
    assert "FAILS: shapes differ: [2], expected [2, 2]" in text([1.0, 2.0])
    assert "int64 (expected float32)" in text([[1, 2], [3, 4]])
    assert text(["a"], ["b"]).splitlines()[1] == "  first     at [0]: 'a', expected 'b'"


def test_a_scalar_has_the_empty_index() -> None:
    assert "at []: 2, expected 1" in text(2.0, 1.0)


def test_statistics_name_what_is_not_finite() -> None:
    assert statistics_text(statistics(np.array([np.nan, np.inf]))) == "1 NaN and 1 inf, nothing finite"
    assert statistics_text(statistics(np.zeros(0))) == "empty"
    assert statistics_text(statistics(np.array(["a"]))) == "strings"
    assert statistics_text(statistics(np.array([2**63 - 1, 3]))).startswith(
        "min=3 at [1], max=9223372036854775807 at [0]"
    )


def test_odd_names_stay_on_their_line_and_can_be_typed() -> None:
    lines = report_lines(compare_tensors("a b\n\x1b[2J", np.ones(1), np.zeros(1)))
    assert lines[0].startswith("a b\\n\\x1b[2J  float64[1]  FAILS")
    assert any("--atol $'a b\\x0a\\x1b[2J:" in line for line in lines)
