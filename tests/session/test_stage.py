"""Stages: what is remembered, and what is an iteration."""

import pytest

from biopsy.session.trial import FINAL, HIGH, IDENTITY, LOOK, LOW, ORIGINAL, PROBE_NAMES, PROBES, ROUNDING, Stage


@pytest.mark.parametrize(
    "stage", [ORIGINAL, HIGH, LOW, Stage("bisect"), Stage("minimal")], ids=lambda stage: stage.name
)
def test_the_original_the_ends_and_every_pass_are_remembered_iterations(stage: Stage) -> None:
    assert stage.is_remembered
    assert stage.is_iteration


@pytest.mark.parametrize("stage", PROBES, ids=lambda stage: stage.name)
def test_a_probe_is_no_iteration(stage: Stage) -> None:
    assert not stage.is_iteration


def test_the_names_of_probes_are_those_that_events_and_journals_hold() -> None:
    assert {"identity", "values", "final", "marked", "confirm", "look", "rounding"} == PROBE_NAMES


def test_what_must_be_true_now_is_asked_anew_in_every_process() -> None:
    assert {stage for stage in PROBES if not stage.is_remembered} == {IDENTITY, LOOK, ROUNDING, FINAL}


def test_a_stage_is_known_by_its_name() -> None:
    assert Stage("bisect") == Stage("bisect")
    assert Stage("bisect") != Stage("linear")
