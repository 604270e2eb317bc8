"""``inspect data`` shows what a file of inputs or outputs holds, tensor by tensor."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from biopsy.cli.app import main
from biopsy.tensors.files import write_feeds, write_results
from biopsy.tensors.results import Iteration, RunnerResult

FIRST = {"x": np.arange(100.0).reshape(10, 10), "ids": np.array([1, 2, 2], np.int64)}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_feeds("inputs.json", [FIRST, {"x": np.full((10, 10), 7.0), "ids": FIRST["ids"]}])


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["inspect", "data", *words]) == 0
    return capsys.readouterr().out


def test_the_first_iteration_is_shown_with_its_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "inputs.json").splitlines() == [
        "==== Data (2 iterations) ==== inputs.json",
        "",
        "-- Iteration: 0",
        "  x [dtype=float64, shape=(10, 10)] | Stats: "
        "min=0 at [0, 0], max=99 at [9, 9], mean=49.5, std=28.86607, median=49.5",
        "  ids [dtype=int64, shape=(3,)] | Stats: min=1 at [0], max=2 at [1], mean=1.666667, std=0.4714045, median=2",
        "",
        "1 more: --all shows every iteration",
    ]


def test_all_iterations_are_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "inputs.json", "-a")
    assert "-- Iteration: 1\n  x [dtype=float64, shape=(10, 10)] | Stats: min=7" in text
    assert "more" not in text


def test_outputs_are_shown_by_runner_with_their_times(capsys: pytest.CaptureFixture[str]) -> None:
    write_results("out.json", [RunnerResult(name, (Iteration(FIRST, 0.0123),)) for name in ("one", "two")])
    text = shown(capsys, "out.json")
    assert "==== Run Results (2 runners) ==== out.json\n\n---- one (1 iterations) ----\n" in text
    assert "\n-- Iteration: 0 (12.3 ms)\n" in text
    assert "\n---- two (1 iterations) ----\n" in text


def test_values_are_shown_in_short_or_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert "[ 0.  1.  2. ...  7.  8.  9.]" in shown(capsys, "inputs.json", "--show-values")
    full = shown(capsys, "inputs.json", "-s", "-n", "-1", "--line-width", "-1")
    assert "[ 0.  1.  2.  3.  4.  5.  6.  7.  8.  9.]" in full


def test_a_histogram_shows_every_element_and_however_few(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "inputs.json", "--histogram", "--name", "x").splitlines()
    bars = [line.split() for line in lines if line.startswith("      ")]
    assert [bar[2] for bar in bars] == ["10"] * 10
    assert {bar[3] for bar in bars} == {"#" * 40}
    write_feeds("rare.json", [{"x": np.append(np.zeros(10_000), 1.0)}])
    assert " 1  #\n" in shown(capsys, "rare.json", "--histogram")


def test_every_kind_of_tensor_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    feed = {
        "words": np.array(["naïve", "b"]),
        "bf16": np.array([1.5], ml_dtypes.bfloat16),
        "int4": np.array([-8]).astype(ml_dtypes.int4),
        "flag": np.array(True),
        "none": np.zeros((0, 3)),
        "odd": np.array([np.nan, np.inf]),
        "wide": np.array([-1.7e308, 1.7e308]),
        "complex": np.array([3 + 4j]),
        "close": np.array([1.0, 1.0 + 2**-52]),
        "big": np.array([2**64 - 1], np.uint64),
    }
    write_feeds("all.safetensors", [feed])
    text = shown(capsys, "all.safetensors", "-s", "--histogram")
    assert "words [dtype=string, shape=(2,)] | Stats: strings\n      ['naïve' 'b']" in text
    assert "bf16 [dtype=bfloat16, shape=(1,)] | Stats: min=1.5 at [0]" in text
    assert "none [dtype=float64, shape=(0, 3)] | Stats: empty" in text
    assert "odd [dtype=float64, shape=(2,)] | Stats: 1 NaN and 1 inf, nothing finite" in text
    assert "max=18446744073709551615 at [0]" in text
    assert "      [1.5, 1.5]  1  ########################################\n" in text
    assert "mean=0, std=1.7e+308, median=0\n" in text


def test_tensors_can_be_chosen_by_name_and_by_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    assert "  x [" not in shown(capsys, "inputs.json", "--name", "i*s")
    assert main(["inspect", "data", "inputs.json", "--name", "nothing"]) == 2
    error = capsys.readouterr().err
    assert "inputs.json has no tensor nothing" in error
    assert "it has: ids, x" in error


@pytest.mark.parametrize(
    ("name", "content", "status", "message"),
    [
        ("nothing.json", None, 2, "there is no file of tensors nothing.json"),
        ("empty.json", "", 4, "empty (0 bytes)"),
        ("list.json", "[]", 4, "holds no iteration"),
        ("model.onnx", "x", 2, "the extension must be"),
    ],
)
def test_what_cannot_be_shown_is_told(
    capsys: pytest.CaptureFixture[str], name: str, content: str | None, status: int, message: str
) -> None:
    if content is not None:
        Path(name).write_text(content)
    assert main(["inspect", "data", name]) == status
    assert message in capsys.readouterr().err
