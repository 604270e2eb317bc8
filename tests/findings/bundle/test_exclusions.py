"""What a bundle says that its failure is not, from runs that are given here."""

from dataclasses import replace

import pytest

from biopsy import events
from biopsy.checks.outcome import Evidence
from biopsy.checks.verdict import VerdictFile
from biopsy.comparison.mismatch import Rounding
from biopsy.findings.bundle.failure import GOLDEN, ObservedFailure, exclusions
from biopsy.findings.bundle.job import EarlierFindings, Observation
from biopsy.findings.bundle.reproduction import Reproduction
from biopsy.findings.report import SearchHistory

FAILURE = ObservedFailure(kind="command", title="It fails", engine=None, stage="", message="")
SHOWN = Reproduction(reproduced="alone", status=1, output="")


def excluded(runs: int, how_often: str = "") -> list[tuple[str, bool]]:
    observation = Observation(evidence=Evidence(status=1), reason="exit status 1", runs=runs)
    return list(exclusions(observation, FAILURE, SHOWN, EarlierFindings(how_often=how_often)))


def test_chance_is_excluded_only_for_what_failed_each_time() -> None:
    assert excluded(1) == [("chance (it failed in the check and in reproduce.py, each in a process of its own)", False)]
    assert excluded(3) == [("chance (it failed only in run 3 of the check)", True)]


def test_a_script_that_passed_once_does_not_exclude_it() -> None:
    observation = Observation(evidence=Evidence(status=1), reason="exit status 1", runs=1)
    ((cause, is_open),) = exclusions(observation, FAILURE, replace(SHOWN, steady=False), EarlierFindings())
    assert cause.startswith("chance (") and is_open


def test_an_engine_that_is_wrong_too_leaves_the_model_open_and_what_is_right_is_no_circular_reason() -> None:
    observation = Observation(evidence=Evidence(status=1), reason="exit status 1", runs=1)
    against = replace(FAILURE, against="onnxrt:optimization=none")
    for doubt in ("gives other values than float64, too", ""):
        causes = [*exclusions(observation, against, SHOWN, EarlierFindings(doubt=doubt))]
        wrong_too = f"the model (ONNX Runtime (all graph optimizations disabled) {doubt})"
        assert [cause for cause in causes if "model" in cause[0]] == ([(wrong_too, True)] if doubt else [])


@pytest.mark.parametrize("has_floats", [True, False])
def test_there_is_no_rounding_where_there_are_no_floats(has_floats: bool) -> None:
    verdict = VerdictFile(outcome="fails", stage="compare", kind="mismatch", rounding=Rounding("bug"))
    observation = Observation(evidence=Evidence(status=1, verdict=verdict), reason="", runs=1)
    compared = replace(FAILURE, kind="comparison", name="mismatch")
    (cause, is_open), *_ = exclusions(observation, compared, SHOWN, EarlierFindings(), has_floats=has_floats)
    by_float64 = "rounding (measured against float64 in the attached model)"
    assert not is_open and cause == (
        by_float64 if has_floats else "rounding (the attached model has no floating-point numbers)"
    )


def test_it_is_not_excluded_for_a_flaky_failure_that_showed_in_the_first_run() -> None:
    history = SearchHistory()
    assert history.how_often == ""
    history(events.FlakyFailure(11, 20, 5, 0.99))
    assert excluded(1, history.how_often) == [("chance (it fails in 11 of 20 runs)", True)]


def test_golden_values_may_be_what_is_wrong() -> None:
    observation = Observation(evidence=Evidence(status=1), reason="exit status 1", runs=1)
    golden = replace(FAILURE, kind="comparison", name="mismatch", against=GOLDEN)
    assert [cause for cause, is_open in exclusions(observation, golden, SHOWN, EarlierFindings()) if is_open] == [
        "the golden values (they alone say what is right)"
    ]
