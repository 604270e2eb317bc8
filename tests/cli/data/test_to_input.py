"""``data to-input``, and ``data merge`` by its other name, put inputs and outputs into one file of inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from biopsy.cli.app import main
from biopsy.tensors.files import read_feeds, write_feeds, write_results
from biopsy.tensors.results import Iteration, RunnerResult


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with inputs.json and golden.json of two iterations; the current one."""
    monkeypatch.chdir(tmp_path)
    write_feeds("inputs.json", [{"x": np.array([0.0])}, {"x": np.array([1.0])}])
    golden = tuple(Iteration({"y": np.array([number])}) for number in (10.0, 11.0))
    write_results("golden.json", [RunnerResult("onnxrt", golden)])
    return tmp_path


@pytest.mark.parametrize("command", ["to-input", "merge"])
@pytest.mark.parametrize("output", ["merged.json", "merged.npz", "merged.safetensors", "merged"])
def test_every_iteration_keeps_its_own_values(command: str, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", command, "inputs.json", "golden.json", "-o", output]) == 0
    feeds = read_feeds(output)
    assert [list(feed) for feed in feeds] == [["x", "y"]] * 2
    assert [(feed["x"][0], feed["y"][0]) for feed in feeds] == [(0, 10), (1, 11)]
    said = capsys.readouterr().out
    assert said == f"{output}: 2 iterations of 2 tensors (1 of inputs.json, 1 of golden.json)\n"


@pytest.mark.parametrize("output", ["inputs.json", "golden.json"])
def test_a_file_is_not_merged_into_itself(output: str) -> None:
    before = Path(output).read_bytes()
    assert main(["data", "to-input", "inputs.json", "golden.json", "-o", output]) == 2
    assert Path(output).read_bytes() == before


def test_of_several_runners_the_first_is_taken_and_the_others_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    runners = [RunnerResult(name, (Iteration({name: np.ones(1)}),)) for name in ("one", "two")]
    write_results("both.json", runners)
    assert main(["data", "to-input", "both.json", "-o", "out.json"]) == 0
    assert list(read_feeds("out.json")[0]) == ["one"]
    assert "one is taken, not two" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["inputs.json"], 2, "-o/--output"),
        (["nothing.json", "-o", "out.json"], 2, "there is no file of tensors nothing.json"),
        (["inputs.json", "-o", "inputs.json/out.json"], 2, "inputs.json is not a folder"),
        (["inputs.json", "-o", "out.pkl"], 2, "the extension must be"),
        (["inputs.json", "three.json", "-o", "out.json"], 2, "one has 2 iterations, another 3"),
        (["inputs.json", "broken.json", "-o", "out.json"], 4, "broken.json"),
    ],
)
def test_what_goes_wrong_is_told_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], status: int, message: str
) -> None:
    write_feeds("three.json", [{"z": np.ones(1)}] * 3)
    Path("broken.json").write_text("[{")
    before = sorted(folder.iterdir())
    assert main(["data", "to-input", *words]) == status
    assert message in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("output", ["out.json", "out.npz", "out"])
def test_damage_in_a_tensor_names_the_file_that_is_damaged_first(
    output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path("golden.json").read_text()
    last = text.rindex('"array": "') + len('"array": "')
    Path("golden.json").write_text(f"{text[:last]}!!!!{text[last + 4 :]}")
    assert main(["data", "to-input", "inputs.json", "golden.json", "-o", output]) == 4
    told = "error: cannot read golden.json: runner 'onnxrt', iteration 1: tensor 'y': "
    assert capsys.readouterr().err.startswith(told)
    assert not Path(output).exists()
