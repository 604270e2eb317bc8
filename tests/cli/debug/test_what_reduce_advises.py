"""What ``debug reduce`` says where nothing can be reduced: it is true, and what it says to type works."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from support.command_line import BIN
from support.models import chain, save

ENVIRONMENT = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(4), tmp_path / "m.onnx")


def reduce(*words: str) -> subprocess.CompletedProcess[str]:
    line = [str(BIN / "biopsy"), "debug", "reduce", "m.onnx", "-o", "r.onnx", "--repeat", "1", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, env=ENVIRONMENT)


def steps(ran: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.removeprefix("  next").strip() for line in ran.stderr.splitlines() if line.startswith("  next")]


def step(ran: subprocess.CompletedProcess[str]) -> str:
    return steps(ran)[0]


def test_a_signal_that_no_fail_code_names_is_not_called_a_pass() -> None:
    ran = reduce("--fail-code", "1", "--check", "biopsy", "run", "{}", "--engine", "fake:crash.n2=run")
    assert ran.returncode == 3, ran.stderr
    assert step(ran) == "SIGSEGV is not among --fail-code 1: leave it out"
    assert "passes  also" not in ran.stderr


def test_a_status_that_is_ignored_is_not_called_a_pass() -> None:
    Path("check.sh").write_text("exit 7\n")
    ran = reduce("--ignore-fail-code", "7", "--check", "bash", "check.sh", "{}")
    assert ran.returncode == 3, ran.stderr
    assert step(ran) == "exit status 7 is among --ignore-fail-code: leave it out"


def test_a_check_that_could_not_be_run_passes_on_what_to_do_and_can_be_run_by_hand() -> None:
    ran = reduce("--check", "biopsy", "run", "{}", "--engine", "nothing-of-that-name")
    assert ran.returncode == 4, ran.stderr
    *of_the_engine, by_hand = steps(ran)
    assert of_the_engine == ["biopsy doctor    shows the engines that work here"]
    words = shlex.split(by_hand.removeprefix("run it by hand: "))
    assert words[:3] == ["biopsy", "run", "m.onnx"]
    by_hand = subprocess.run(words, capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
    assert "nothing-of-that-name" in by_hand.stderr
    assert "no model" not in by_hand.stderr


def test_an_option_of_reduce_behind_check_is_told_where_it_belongs() -> None:
    ran = reduce("--check", "biopsy", "run", "{}", "--reference", "--hide-fail-output")
    assert ran.returncode == 2
    assert "--hide-fail-output is not an option of run: it belongs to debug reduce" in ran.stderr
    assert step(ran) == "write --hide-fail-output before --check"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        pytest.param(
            ["--onnxrt"],
            "biopsy debug reduce m.onnx -o r.onnx --repeat 1 --check biopsy run {} --onnxrt",
            marks=pytest.mark.slow,
        ),
        (
            ["--engine", "reference:float64", "--mode=bisect", "--atol", "1e-3", "--onnxrt"],
            "biopsy debug reduce m.onnx -o r.onnx --repeat 1 --mode=bisect "
            "--check biopsy run {} --engine reference:float64 --atol 1e-3 --onnxrt",
        ),
        pytest.param(
            ["--reference", "--check", "biopsy", "run", "{}", "--onnxrt"],
            "biopsy debug reduce m.onnx -o r.onnx --repeat 1 --check biopsy run {} --onnxrt --reference",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_engine_outside_of_the_check_is_answered_with_the_whole_line(words: list[str], line: str) -> None:
    ran = reduce(*words)
    assert ran.returncode == 2
    assert "is not an option of debug reduce: an engine belongs in the check" in ran.stderr
    assert shlex.split(step(ran)) == shlex.split(line)
    by_hand = subprocess.run(shlex.split(step(ran)), capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
    assert by_hand.returncode == 3, by_hand.stderr


def test_an_option_of_reduce_that_a_foreign_program_gets_is_named() -> None:
    ran = reduce("--check", "sh", "-c", "exit 0", "{}", "--max-checks", "3")
    assert "the check gets --max-checks; if it is meant for debug reduce, write it before --check" in ran.stdout


def test_a_check_that_compares_nothing_is_told_so() -> None:
    ran = reduce("--check", "biopsy", "run", "{}", "--onnxrt")
    assert ran.returncode == 3
    assert step(ran).startswith("it compares nothing: name a second engine")
    assert "passes  also" not in ran.stderr


def test_a_check_that_computes_nothing_is_not_asked_about_inner_tensors() -> None:
    ran = reduce("--check", "biopsy", "inspect", "model", "{}")
    assert ran.returncode == 3
    assert "intermediate" not in ran.stderr


def test_a_check_that_does_not_name_the_candidate_is_told_so_where_it_fails_on_anything() -> None:
    ran = reduce("--check", "false")
    assert ran.returncode == 4
    assert step(ran).startswith("the check does not name the candidate: write {} in it")
    assert ran.stderr.count("  next  ") == 2


@pytest.mark.slow
def test_options_that_both_have_are_left_to_the_check() -> None:
    ran = reduce("--check", "biopsy", "run", "{}", "--reference", "-q", "--external-data-dir", ".")
    assert ran.returncode == 3, ran.stderr
