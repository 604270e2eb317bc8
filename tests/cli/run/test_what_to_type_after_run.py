"""A run that fails says what to type next, with its own options; that line parses, and finds what failed."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from onnx import helper

from biopsy.cli.app import main
from support.advice import advised, parse
from support.command_line import BIN
from support.models import chain, info, model, save

WRONG = ("--onnxrt", "--engine", "fake:scale.n2=1.5")
WHY = "biopsy diagnose m.onnx"
PART = "biopsy debug reduce m.onnx -o reduced.onnx"


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(4), tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("m.onnx", *WRONG), f"{WHY} {' '.join(WRONG)}"),
        (("-v", *WRONG, "./m.onnx", "--atol=1e-4"), f"{WHY} {' '.join(WRONG)} --atol=1e-4"),
        (("--save-outputs", "o.npz", "m.onnx", *WRONG, "--report", "r.json"), f"{WHY} {' '.join(WRONG)}"),
        (("m.onnx", "--engine", "fake:refuse.n2=build"), f"{WHY} --engine fake:refuse.n2=build"),
    ],
)
def test_the_line_has_the_options_of_the_run_and_none_that_write(
    words: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words]) == 1
    assert advised(capsys.readouterr().out) == [line]
    parse(line)
    if Path("r.json").exists():
        assert [one["line"] for one in json.loads(Path("r.json").read_text())["next"]] == [line]


@pytest.mark.parametrize(
    ("given", "shapes"),
    [
        ((), "'x:[1,2]' 'y:[1]'"),
        (("--input-shapes", "y:[3]"), "'y:[3]' 'x:[1,2]'"),
    ],
)
def test_the_line_says_the_shapes_that_the_run_made_up_since_a_diagnosis_makes_up_none(
    given: tuple[str, ...], shapes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="n1"), helper.make_node("Relu", ["y"], ["b"], name="n2")]
    opened = [info("x", ("N", 2)), info("y", ("M",))]
    save(model(nodes, opened, [info("a", ("N", 2)), info("b", ("M",))]), Path("m.onnx"))
    words = ("--onnxrt", "--engine", "fake:scale.n1=1.5")
    assert main(["run", "m.onnx", *words, *given]) == 1
    (line,) = advised(capsys.readouterr().out)
    assert line == f"{WHY} {' '.join(words)} --input-shapes {shapes}"
    parse(line)


def test_options_that_diagnose_lacks_lead_to_a_reduction(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "m.onnx", "--onnxrt", "--save-outputs", "golden.npz"]) == 0
    assert "Next" not in capsys.readouterr().out
    golden = ("--onnx-outputs", "t4", "--engine", "fake:scale.n2=2", "--load-outputs", "golden.npz")
    assert main(["run", "m.onnx", *golden]) == 1
    (line,) = advised(capsys.readouterr().out)
    assert line == f"{PART} --no-reduce-inputs --check biopsy run {{}} {' '.join(golden)}"
    parse(line)


def test_a_check_is_told_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BIOPSY_VERDICT", "verdict.json")
    assert main(["run", "m.onnx", *WRONG]) == 1
    assert "Next" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("engines", [WRONG, ("--engine", "fake:crash.n2=run"), ("--engine", "fake:refuse.n2=build")])
def test_the_line_finds_the_layer_when_it_is_pasted(engines: tuple[str, ...]) -> None:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    line = [str(BIN / "biopsy"), "run", "m.onnx", *engines]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=60, env=environment)
    assert ran.returncode == 1, ran.stderr
    (next_line,) = advised(ran.stdout)
    told = subprocess.run(["bash", "-c", next_line], capture_output=True, text=True, timeout=200, env=environment)
    assert told.returncode == 1, told.stderr
    assert "'n2'" in told.stdout
