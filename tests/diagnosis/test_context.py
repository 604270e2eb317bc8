"""What ends a step of a diagnosis: its time, a person, or a model that passes."""

from pathlib import Path

import pytest

from biopsy import errors, events
from biopsy.diagnosis.context import StepContext, TimeUpError, limit_as_time_up
from biopsy.diagnosis.facts import KnownFacts, Steadiness
from support.diagnoses import question


def stopped_by(cause: BaseException | None) -> None:
    with limit_as_time_up():
        raise errors.Interrupted("stopped") from cause


def test_a_search_that_its_limit_ends_has_no_time_left() -> None:
    with pytest.raises(TimeUpError):
        stopped_by(None)


def test_a_search_that_a_person_ends_is_interrupted() -> None:
    with pytest.raises(errors.Interrupted):
        stopped_by(KeyboardInterrupt())


def test_runs_in_which_the_model_passed_count_and_those_of_a_part_do_not(tmp_path: Path) -> None:
    context = StepContext(question(tmp_path), events.ignore)
    of_model, of_part = (
        errors.OriginalPasses("it passes", model=str(path), runs=3)
        for path in (context.question.model, tmp_path / "part.onnx")
    )
    assert context.with_passes(KnownFacts(), of_model).steadiness == Steadiness(failed=1, runs=4)
    assert context.with_passes(KnownFacts(), of_part) == KnownFacts()
