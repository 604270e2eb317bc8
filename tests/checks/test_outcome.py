"""What a check has without writing it."""

from pathlib import Path

import pytest

import biopsy
from biopsy.checks.command import ARBITER
from biopsy.checks.outcome import Check, Evidence, FunctionCheck, InteractiveCheck
from biopsy.processes.watch import Stop


class Passing(Check):
    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        return Evidence(status=0)

    def line(self, candidate: Path) -> str:
        return f"pass {candidate}"


def test_a_check_that_writes_only_run_and_line_costs_no_attention_and_keeps_nothing_warm() -> None:
    check = Passing()
    assert (check.automatic, check.stoppable, check.names_candidate) == (True, False, True)
    assert check.glance() is check.cold() is check
    assert check.telling(ARBITER) is None
    for nothing in (check.start, check.close):
        nothing()
    check.expect(1.0)


def test_its_answers_depend_on_its_line_alone() -> None:
    assert Passing().settings == {"check": "pass {}"}
    assert Passing().files == ()


def test_a_person_is_no_automatic_check_and_a_function_cannot_be_stopped() -> None:
    assert not InteractiveCheck(lambda question: "p").automatic
    assert not FunctionCheck(bool).stoppable


def test_a_model_that_cannot_be_loaded_is_no_answer_of_the_function(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    asked: list[object] = []
    with pytest.raises(biopsy.CheckError, match="cannot be loaded as an onnx"):
        FunctionCheck(lambda model: asked.append(model) or True, takes="model").run(tmp_path / "m.onnx")
    assert not asked
