"""``biopsy run --larger``: an engine that is planted to need more memory, one against itself, and what decides."""

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from biopsy import errors
from biopsy.cli.app import main
from biopsy.engines.latency import Side
from biopsy.engines.peak_memory import LEAST, PeakMemory, decided
from biopsy.engines.runner import Inputs, feeds_for
from biopsy.model.index import index_file
from biopsy.tensors.files import write_feeds
from support.command_line import typed
from support.models import chain, save
from support.planting import planted as planted

MB = 1_000_000
LARGE_TANH = {"op": "Tanh", "does": "allocate", "by": 60 * MB}
SMALL_TANH = {"op": "Tanh", "does": "allocate", "by": 25 * MB}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(chain(5, ["Relu", "Neg", "Tanh", "Relu", "Neg"]), tmp_path / "model.onnx")
    return tmp_path


def run(*engines: str) -> int:
    return main(
        ["run", "model.onnx", *(f"--engine={engine}" for engine in engines), "--larger=1.5", "--report=report.json"]
    )


def test_an_engine_that_needs_more_memory_is_a_failure_of_its_own_kind(
    planted: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIOPSY_VERDICT", str(folder / "verdict.json"))
    suspect = planted(LARGE_TANH)
    assert run(planted(SMALL_TANH), suspect) == 1
    written = json.loads((folder / "verdict.json").read_text())
    assert (written["outcome"], written["stage"], written["kind"]) == ("fails", "compare", "larger")
    assert written["engine"] == suspect
    memory = json.loads((folder / "report.json").read_text())["run"]["costs"][0]
    assert all(55 * MB < size < 75 * MB for size in memory["measured"]["after"])
    assert all(20 * MB < size < 40 * MB for size in memory["measured"]["before"])


def test_an_engine_that_needs_as_much_or_less_passes(planted: Callable[..., str]) -> None:
    large = planted(LARGE_TANH)
    assert run(large, large) == 0
    assert run(large, planted(SMALL_TANH)) == 0


@pytest.mark.parametrize(
    ("before", "after", "limit", "side"),
    [
        ((100 * MB, 101 * MB), (150 * MB, 160 * MB), 1.3, "larger"),
        ((100 * MB, 101 * MB), (125 * MB, 160 * MB), 1.3, "unknown"),
        ((100 * MB, 101 * MB), (110 * MB, 129 * MB), 1.3, "not larger"),
        ((4096, 4096), (LEAST, LEAST), 1.3, "too little"),
    ],
)
def test_only_what_all_measurements_say_decides(
    before: tuple[int, ...], after: tuple[int, ...], limit: float, side: str
) -> None:
    assert PeakMemory(before=before, after=after).side_of(limit) == side


@pytest.mark.parametrize("stage", ["build", "run"])
def test_an_engine_that_dies_while_its_memory_is_measured_fails_in_its_stage(
    planted: Callable[..., str], folder: Path, stage: str
) -> None:
    write_feeds(folder / "inputs.json", feeds_for(index_file(folder / "model.onnx").fed_types(), Inputs()).feeds)
    engines = planted(), planted({"op": "Tanh", "does": f"crash {stage}"})
    model, feeds = folder / "model.onnx", folder / "inputs.json"
    sides = [Side(engine=each, model=model, folder=folder, feeds=feeds) for each in engines]
    with pytest.raises(errors.EngineFailure) as failed:
        decided(sides, 1.5)
    assert (failed.value.stage, failed.value.kind) == (stage, "SIGSEGV")


def test_three_engines_and_a_built_model_are_wrong_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("onnxrt", "reference", "onnxrt:threads=1") == 2
    assert "--larger needs exactly two engines, and this line names 3" in capsys.readouterr().err
    (folder / "model.xml").touch()
    assert main(["run", "model.xml", "--openvino", "--engine=openvino:threads=1", "--larger", "1.5"]) == 2


@pytest.mark.slow
def test_more_memory_is_reduced_to_its_node(planted: Callable[..., str], folder: Path) -> None:
    check = ["biopsy", "run", "{}", "--engine", planted(), "--engine", planted(LARGE_TANH), "--larger", "1.5"]
    ran = typed("debug", "reduce", "model.onnx", "-o", "reduced.onnx", "--check", *check, folder=folder, timeout=600)
    assert ran.status == 0, ran.told
    assert [node.op_type for node in onnx.load(folder / "reduced.onnx").graph.node] == ["Tanh"]
    assert "compare · larger" in ran.told
