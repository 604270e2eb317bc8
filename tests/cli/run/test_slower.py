"""``biopsy run --slower``: an engine with a planted slowdown, one against itself, other failures, wrong usage."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from biopsy.cli.app import main
from support.command_line import typed
from support.models import chain, save
from support.planting import planted as planted

SLOW_TANH = {"op": "Tanh", "does": "sleep", "by": 0.004}
WRONG_TANH = {"op": "Tanh", "does": "scale"}

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(chain(6, ["Relu", "Neg", "Abs", "Tanh", "Relu", "Neg"]), tmp_path / "model.onnx")
    return tmp_path


@pytest.fixture
def verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIOPSY_VERDICT", str(tmp_path / "verdict.json"))
    return tmp_path / "verdict.json"


def run(*engines: str, slower: str = "1.3") -> int:
    return main(["run", "model.onnx", *(f"--engine={engine}" for engine in engines), "--slower", slower])


def test_a_slower_engine_is_a_failure_of_its_own_kind(planted: Callable[..., str], verdict: Path) -> None:
    suspect = planted(SLOW_TANH)
    assert run(planted(), suspect) == 1
    written = json.loads(verdict.read_text())
    assert (written["outcome"], written["stage"], written["kind"]) == ("fails", "compare", "slower")
    assert written["engine"] == suspect and not written["message"] and not written["mismatches"]


def test_a_faster_engine_passes_and_the_ratio_is_shown_and_reported(
    planted: Callable[..., str], capsys: Captured
) -> None:
    suspect = planted()
    engines = [f"--engine={engine}" for engine in (planted(SLOW_TANH), suspect)]
    assert main(["run", "model.onnx", *engines, "--slower", "1.3", "--report", "report.json"]) == 0
    assert "times as long as planted:" in capsys.readouterr().out
    slowdown = json.loads(Path("report.json").read_text())["run"]["costs"][0]
    assert (slowdown["suspect"], slowdown["limit"]) == (suspect, 1.3)
    measured = slowdown["measured"]
    assert measured["after"] < measured["before"] and measured["high"] < 1.3


def test_an_engine_is_not_slower_than_itself(planted: Callable[..., str]) -> None:
    assert run(planted(SLOW_TANH), planted(SLOW_TANH)) in (0, 4)  # a busy machine may be too uneven


def test_wrong_values_are_named_before_the_time(planted: Callable[..., str], verdict: Path) -> None:
    assert run(planted(), planted(SLOW_TANH, WRONG_TANH)) == 1
    assert json.loads(verdict.read_text())["kind"] == "mismatch"


def test_a_person_is_told_of_both(planted: Callable[..., str], capsys: Captured) -> None:
    assert run(planted(), planted(SLOW_TANH, WRONG_TANH)) == 1
    told = capsys.readouterr().out
    assert "differs from" in told and "times as long" in told


@pytest.mark.parametrize("engines", [["onnxrt"], ["reference", "onnxrt", "onnxrt:threads=1"]])
def test_one_engine_or_three_are_wrong_usage_and_the_line_to_type_is_shown(
    engines: list[str], capsys: Captured
) -> None:
    words = [f"--engine={engine}" for engine in engines]
    assert main(["run", "model.onnx", *words, "--slower", "1.3", "--larger", "2"]) == 2
    told = capsys.readouterr().err
    assert "biopsy run model.onnx --engine" in told and "--slower 1.3 --larger 2" in " ".join(told.split())


@pytest.mark.parametrize("words", ["--slower 1", "--slower nan", "--slower inf", "--slower 1.3 --build-only"])
def test_a_limit_that_cannot_be_held_is_wrong_usage(words: str) -> None:
    assert main(["run", "model.onnx", "--reference", "--onnxrt", *words.split()]) == 2


def test_a_limit_without_an_engine_is_wrong_usage(folder: Path) -> None:
    assert main(["run", "model.onnx", "--load-outputs", "a.json", "b.json", "--slower", "1.3"]) == 2


UNOPTIMIZED = ("onnxrt", "onnxrt:optimization=none")


def product_of_weights(nodes: int) -> onnx.ModelProto:
    """A model with one node, in its middle, that takes long unless an engine computes it once, when it is built."""
    made = chain(nodes, ["Relu", "Neg", "Abs"])
    made.graph.node.insert(nodes // 2, helper.make_node("MatMul", ["w", "w"], ["product"], name="product"))
    made.graph.node.insert(nodes // 2 + 1, helper.make_node("ReduceMax", ["product"], ["top"], name="top"))
    made.graph.node[nodes // 2 + 2].op_type = "Add"
    made.graph.node[nodes // 2 + 2].input.append("top")
    made.graph.initializer.append(numpy_helper.from_array(np.ones((512, 512), np.float32), "w"))
    return made


def test_a_profile_tells_which_node_is_slower(verdict: Path) -> None:
    save(product_of_weights(12), Path("model.onnx"))
    words = [f"--engine={engine}" for engine in UNOPTIMIZED]
    assert main(["run", "model.onnx", *words, "--slower", "1.3", "--tell-slow-tensors"]) == 1
    written = json.loads(verdict.read_text())
    assert (written["stage"], written["kind"], written["outputs"][0]) == ("compare", "slower", "product")


def test_engines_without_a_profile_name_no_node(planted: Callable[..., str], verdict: Path) -> None:
    words = ["--onnxrt", f"--engine={planted(SLOW_TANH)}", "--slower", "1.3", "--tell-slow-tensors"]
    assert main(["run", "model.onnx", *words]) == 1
    assert json.loads(verdict.read_text())["outputs"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "without"), [(60, 13), (1000, 17)])
def test_the_node_that_a_profile_calls_slower_is_tried_first(nodes: int, without: int, folder: Path) -> None:
    save(product_of_weights(nodes), folder / "model.onnx")
    check = [word for engine in UNOPTIMIZED for word in ("--engine", engine)]
    words = ("debug", "reduce", "model.onnx", "-o", "reduced.onnx", "--report", "report.json")
    checks = []
    for skipped in ([], ["--skip-pass", "suspects"]):
        ran = typed(*words, *skipped, "--check", "biopsy", "run", "{}", *check, "--slower", "1.3", folder=folder)
        assert ran.status == 0, ran.told
        assert "MatMul" in [node.op_type for node in onnx.load(folder / "reduced.onnx").graph.node], ran.told
        checks.append(len(json.loads((folder / "report.json").read_text())["search"]["checks"]))
    assert checks[0] <= 12 and checks[1] >= without, checks


@pytest.mark.slow
def test_a_slowdown_is_reduced_to_the_slow_node(planted: Callable[..., str], folder: Path) -> None:
    check = ["biopsy", "run", "{}", "--engine", planted(), "--engine", planted(SLOW_TANH), "--slower", "1.3"]
    ran = typed("debug", "reduce", "model.onnx", "-o", "reduced.onnx", "--check", *check, folder=folder)
    assert ran.status == 0, ran.told
    assert [node.op_type for node in onnx.load(folder / "reduced.onnx").graph.node] == ["Tanh"]
    assert "compare · slower" in ran.told


@pytest.mark.slow
def test_no_engine_is_slower_than_itself_on_a_busy_machine(capsys: Captured) -> None:
    save(chain(200, ["Relu", "Sigmoid"]), Path("model.onnx"))
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        statuses = [run("onnxrt:optimization=none,inter_threads=0", "onnxrt:optimization=none") for _ in range(30)]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert 1 not in statuses, capsys.readouterr().out
