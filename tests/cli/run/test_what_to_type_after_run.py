"""A run that fails says what to type next, with its own options; that line parses, and finds what failed."""

import json
import os
import subprocess
from pathlib import Path

import onnx
import pytest

from biopsy.cli.app import main
from biopsy.cli.commands import find
from support.advice import advised, parse
from support.command_line import BIN
from support.models import chain, save
from support.predicates import names

WRONG = ("--onnxrt", "--engine", "fake:scale.n2=1.5")
CHECK = "biopsy debug reduce m.onnx -o reduced.onnx --check biopsy run {}"

pytestmark = pytest.mark.skipif(find(["diagnose"]) is not None, reason="the line is that of diagnose")


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(4), tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("m.onnx", *WRONG), f"{CHECK} {' '.join(WRONG)}"),
        (("-v", *WRONG, "./m.onnx", "--atol=1e-4"), f"{CHECK} {' '.join(WRONG)} --atol=1e-4"),
        (("--save-outputs", "o.npz", "m.onnx", *WRONG, "--report", "r.json"), f"{CHECK} {' '.join(WRONG)}"),
        (("m.onnx", "--engine", "fake:refuse.n2=build"), f"{CHECK} --engine fake:refuse.n2=build"),
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


def test_golden_values_without_inputs_keep_the_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "m.onnx", "--onnxrt", "--save-outputs", "golden.npz"]) == 0
    assert "Next" not in capsys.readouterr().out
    assert main(["run", "m.onnx", "--engine", "fake:scale.n2=2", "--load-outputs", "golden.npz"]) == 1
    (line,) = advised(capsys.readouterr().out)
    assert "--no-reduce-inputs --check" in line
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
    subprocess.run(["bash", "-c", next_line], check=True, capture_output=True, timeout=120, env=environment)
    assert names(onnx.load("reduced.onnx")) == ["n2"]
