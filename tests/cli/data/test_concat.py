"""``data concat`` puts iterations one after the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from biopsy.cli.app import main
from biopsy.tensors.files import read_feeds, read_results, write_feeds, write_results
from biopsy.tensors.results import Iteration, RunnerResult


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of inputs (1.json with two iterations, 2.npz with one) and of outputs (a.json, b.json); the current one."""
    monkeypatch.chdir(tmp_path)
    write_feeds("1.json", [{"x": np.array([0.0])}, {"x": np.array([1.0])}])
    write_feeds("2.npz", [{"x": np.array([2.0])}])
    for name, value, runners in (("a", 1.0, ("onnxrt", "trt")), ("b", 2.0, ("onnxrt",))):
        results = [RunnerResult(runner, (Iteration({"y": np.array([value])}, 0.5),)) for runner in runners]
        write_results(f"{name}.json", results)
    return tmp_path


@pytest.mark.parametrize("output", ["all.json", "all.npz", "all.safetensors", "all"])
def test_inputs_come_one_after_the_other_as_often_as_they_are_named(output: str, capsys) -> None:
    assert main(["data", "concat", "1.json", "2.npz", "1.json", "-o", output]) == 0
    assert [feed["x"][0] for feed in read_feeds(output)] == [0, 1, 2, 0, 1]
    assert capsys.readouterr().out == f"{output}: 5 iterations of inputs\n"


def test_outputs_are_joined_by_the_name_of_their_runner(capsys) -> None:
    assert main(["data", "concat", "a.json", "b.json", "-o", "all.json"]) == 0
    found = {result.runner: result.iterations for result in read_results("all.json")}
    assert {name: [one.outputs["y"][0] for one in iterations] for name, iterations in found.items()} == {
        "onnxrt": [1, 2],
        "trt": [1],
    }
    assert found["onnxrt"][0].runtime == 0.5
    assert capsys.readouterr().out == "all.json: 2 iterations of onnxrt\nall.json: 1 iteration of trt\n"


def test_other_tensors_are_told_before_anything_is_written(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr("biopsy.cli.console.Console.warn", lambda *_: told.append(Path("all.json").exists()))
    write_feeds("other.json", [{"z": np.array([3.0])}])
    assert main(["data", "concat", "1.json", "other.json", "-o", "all.json"]) == 0
    assert told == [False]


def test_other_tensors_are_told(capsys) -> None:
    write_feeds("other.json", [{"x": np.array([3.0]), "z": np.array([3.0])}])
    assert main(["data", "concat", "1.json", "other.json", "-o", "all.json"]) == 0
    assert "iteration 2 has other tensors than iteration 0: z only in one of them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["1.json", "a.json", "-o", "all.json"], "inputs and outputs cannot be put one after the other"),
        (["1.json", "nope.json", "-o", "all.json"], "nope.json"),
        (["1.json", "2.npz", "-o", "all.txt"], "the extension must be"),
        (["1.json", "2.npz", "-o", "1.json"], "is given twice"),
    ],
)
def test_what_goes_wrong_is_told_and_nothing_is_written(words: list[str], said: str, folder: Path, capsys) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(["data", "concat", *words]) == 2
    assert said in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
