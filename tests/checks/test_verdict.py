"""The verdict file: sizes of mismatches, and what float64 says of them, written and read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.checks import verdict
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.task import Task, run_check
from biopsy.checks.verdict import VerdictFile
from biopsy.comparison.mismatch import Mismatch, Rounding
from biopsy.processes.reaper import VERDICT_VARIABLE
from biopsy.processes.watch import Stop

FOUND = (
    Mismatch(output="y", elements=8, wrong=3, above=1, error=0.5, index=(1, 2), times_tolerance=40.0),
    Mismatch(output="z", kind="nan-mismatch", elements=8, wrong=1),
)


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "verdict.json"
    assert not verdict.is_wanted()
    monkeypatch.setenv(VERDICT_VARIABLE, str(path))
    assert verdict.is_wanted()
    verdict.report_mismatch("onnxrt", ["y", "z"], mismatches=FOUND, rounding=Rounding("bug", 20.0))
    said = verdict.read(path)
    assert (said.mismatches, said.rounding) == (FOUND, Rounding("bug", 20.0))
    assert said.kind == "nan-mismatch", "the gravest"
    assert said.kinds == ("mismatch", "nan-mismatch")


def test_sizes_are_optional(tmp_path: Path) -> None:
    (tmp_path / "verdict.json").write_text('{"outcome": "fails", "kind": "mismatch"}')
    said = verdict.read(tmp_path / "verdict.json")
    assert (said.mismatches, said.rounding, said.kinds) == ((), None, ("mismatch",))


@pytest.mark.parametrize(
    "wrong", [{"mismatches": {}}, {"mismatches": [{"output": "y", "wrong": "all"}]}, {"rounding": {"verdict": "no"}}]
)
def test_sizes_that_are_not_understood_are_not_guessed_at(tmp_path: Path, wrong: object) -> None:
    (tmp_path / "verdict.json").write_text(json.dumps(wrong))
    with pytest.raises(errors.CheckError, match=r"verdict\.json has "):
        verdict.read(tmp_path / "verdict.json")


class Script(Check):
    """A check that tells sizes and cannot be asked for more: no command of ours."""

    def __init__(self, found: Mismatch) -> None:
        self.found = found

    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        return Evidence(
            status=1, verdict=VerdictFile(outcome="fails", stage="compare", kind="mismatch", mismatches=(self.found,))
        )

    def line(self, candidate: Path) -> str:
        return f"script {candidate}"


def test_a_check_of_others_is_asked_once(tmp_path: Path) -> None:
    small, great = (Mismatch(output="y", elements=8, wrong=3, times_tolerance=size) for size in (2.0, 400.0))
    evidence = run_check(Task(Script(small), tmp_path / "m.onnx", None, (great,)))
    assert evidence.verdict.rounding is None
