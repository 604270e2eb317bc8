"""What ends a step of a diagnosis: its time, a person, or a model that passes."""

from pathlib import Path

import pytest

from biopsy import errors, events
from biopsy.checks.judge import Rules, judge
from biopsy.checks.outcome import Evidence
from biopsy.checks.verdict import VerdictFile
from biopsy.diagnosis.context import StepContext, TimeUpError, limit_as_time_up, reason_in_full
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


def test_a_person_reads_the_names_and_numbers_of_a_message_that_signatures_leave_out() -> None:
    place = "[ONNXRuntimeError] : 1 : FAIL : /src/deep_cpu_gru.h:63 Gru::Gru(const onnxruntime::OpKernelInfo&)"
    said = "layout_ == 0 was false. Batchwise operations (layout == 1) are not supported."
    refused = VerdictFile(outcome="fails", stage="build", kind="Fail", engine="onnxrt", message=f"{place} {said}")
    run = judge(Evidence(status=1, verdict=refused), Rules(), None)
    assert "layout_ == _" in run.reason
    assert reason_in_full(run) == f"build · Fail · onnxrt · {said.rstrip('.')}"
    silent = judge(Evidence(status=1, verdict=VerdictFile(outcome="fails", stage="build", kind="Fail")), Rules(), None)
    assert reason_in_full(silent) == silent.reason
