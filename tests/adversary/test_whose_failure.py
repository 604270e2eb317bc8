"""Failures that are not the engine's: every engine has them, or the values are random, or the golden ones are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from biopsy.cli.app import main
from biopsy.tensors.files import write_feeds, write_results
from biopsy.tensors.results import Iteration, RunnerResult
from support.models import info, model, save

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> int:
    return main(["run", "model.onnx", *words, "--report", "report.json"])


def hint() -> str | None:
    found: str | None = json.loads(Path("report.json").read_text())["run"]["hint"]
    return found


def reduce(*check: str) -> int:
    return main(["debug", "reduce", "model.onnx", "-o", "out.onnx", "--check", "biopsy", "run", "{}", *check])


def impossible_product() -> onnx.ModelProto:
    """Its inputs' shapes are open, and what is fed does not fit."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return model([node], [info("x", ["a", "b"]), info("w", ["c", "d"])], [info("y", None)])


MISFITS = ("--input-shapes", "x:[2,3]", "w:[4,5]")


def test_what_every_engine_refuses_is_the_models_or_the_inputs_fault(capsys: Captured) -> None:
    save(impossible_product(), Path("model.onnx"))
    assert run("--onnxrt", "--reference", *MISFITS) == 1
    told = (
        "every engine fails on this model (onnxrt, reference): either none of them supports it, or the model or its "
        "inputs are wrong"
    )
    assert told in capsys.readouterr().err
    assert hint() == told
    assert run("--engine", "onnxrt:optimization=none", "--onnxrt", *MISFITS) == 1
    assert hint() is None


def test_a_reduction_says_whose_failure_it_reduces(capsys: Captured) -> None:
    save(impossible_product(), Path("model.onnx"))
    assert reduce("--onnxrt", "--reference", *MISFITS) == 0
    told = capsys.readouterr()
    assert "every engine fails on this model (onnxrt, reference)" in " ".join((told.out + told.err).split())


def test_a_nan_that_every_engine_gives_is_the_models_or_the_inputs_fault(capsys: Captured) -> None:
    save(model([helper.make_node("Sqrt", ["x"], ["y"])], [info("x")], [info("y")]), Path("model.onnx"))
    words = ("--val-range", "[-2,-1]", "--validate")
    assert run("--onnxrt", "--reference", *words) == 1
    told = capsys.readouterr().err
    assert "every engine gives NaN or infinity in 'y': probably the model or its inputs are wrong" in told
    assert run("--onnxrt", *words) == 1
    assert hint() is None


def test_golden_values_that_all_engines_contradict_are_at_fault(capsys: Captured) -> None:
    save(model([helper.make_node("Neg", ["x"], ["y"])], [info("x")], [info("y")]), Path("model.onnx"))
    x = np.float32([[1, 2], [3, 4]])
    write_feeds("inputs.json", [{"x": x}])
    write_results("golden.json", [RunnerResult("other", (Iteration({"y": x}),))])
    loads = ("--load-inputs", "inputs.json", "--load-outputs", "golden.json")
    assert run("--onnxrt", "--reference", *loads) == 1
    told = capsys.readouterr().err
    assert "the engines agree with each other (onnxrt, reference) and all differ from golden.json" in told
    assert run("--onnxrt", *loads) == 1
    assert hint() is None


def random_model() -> onnx.ModelProto:
    """Random numbers in a body, with a seed."""
    drawn = helper.make_node("RandomUniformLike", ["x"], ["r"], seed=1.0)
    body = helper.make_graph([drawn], "body", [], [info("r")])
    nodes = [
        helper.make_node("If", ["c"], ["t"], name="choice", then_branch=body, else_branch=body),
        helper.make_node("Add", ["t", "x"], ["y"]),
    ]
    return model(nodes, [info("x"), info("c", [], onnx.TensorProto.BOOL)], [info("y")])


RANDOM = "the model has random operators (If 'choice' (RandomUniformLike inside)): every run gives other values"


def test_a_comparison_of_random_values_is_said_to_be_worthless(capsys: Captured) -> None:
    save(random_model(), Path("model.onnx"))
    assert run("--onnxrt", "--reference") == 1
    assert RANDOM in capsys.readouterr().err
    assert run("--onnxrt", "--compare-with", "noise") in {0, 1}
    assert RANDOM in capsys.readouterr().err
    assert run("--onnxrt") == 0
    assert RANDOM not in capsys.readouterr().err


def test_a_reduction_of_random_values_is_said_to_be_worthless(capsys: Captured) -> None:
    save(random_model(), Path("model.onnx"))
    assert reduce("--onnxrt", "--reference") in {0, 4}
    told = capsys.readouterr()
    assert RANDOM in " ".join((told.out + told.err).split())
