"""Command lines that users of Polygraphy type, as they type them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from biopsy.cli.app import main
from biopsy.engines import registry
from biopsy.tensors.files import read_feeds, read_results, write_results
from biopsy.tensors.results import Iteration, RunnerResult
from support.models import chain, info, model, save, seeds_example

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(seeds_example(), tmp_path / "model.onnx")


def run(*words: str) -> int:
    return main(["run", *words])


def outputs_of(path: str) -> list[str]:
    return list(read_results(path)[0].iterations[0].outputs)


# Engines and files of outputs


def test_an_engine_is_chosen_and_said_where_none_is_named(capsys: Captured) -> None:
    assert run("model.onnx") == 0
    assert "no engine is named: onnxrt is used" in capsys.readouterr().out


def test_what_is_only_built_is_built_by_tensorrt_where_it_can(capsys: Captured) -> None:
    if registry.installed("trt")[0].version is None:
        pytest.skip("TensorRT is not installed")
    save(chain(1), Path("one.onnx"))
    assert run("one.onnx", "--build-only") == 0
    assert "no engine is named: trt is used" in capsys.readouterr().out


def results(path: str, **outputs: float) -> str:
    arrays = {name: np.full(3, value, np.float32) for name, value in outputs.items()}
    write_results(path, [RunnerResult(path, (Iteration(arrays),))])
    return path


def test_files_of_outputs_are_compared_with_each_other_and_nothing_is_run(capsys: Captured) -> None:
    a, b, c = results("a.json", y=1), results("b.json", y=1), results("c.json", y=2)
    assert run("model.onnx", "--load-outputs", a, b) == 0
    assert "1 output compared" in capsys.readouterr().out
    assert run("model.onnx", "--load-outputs", a, b, c, "--report", "report.json") == 1
    shown = capsys.readouterr().out
    assert "'y' of c.json differs from a.json" in shown
    assert "is not run" in shown
    assert json.loads(Path("report.json").read_text())["verdict"]["kind"] == "fails"
    assert run("model.onnx", "--load-outputs", a, c, "--atol", "1") == 0
    assert run("model.onnx", "--load-outputs", a, c, "--atol", "z:1") == 2


def test_an_output_that_one_file_lacks_is_a_difference_and_nothing_in_common_is_no_pass() -> None:
    assert run("model.onnx", "--load-outputs", results("a.json", y=1, z=1), results("b.json", y=1)) == 1
    assert run("model.onnx", "--load-outputs", "a.json", results("c.json", w=1)) == 4


def test_not_a_number_in_a_file_is_found() -> None:
    assert run("model.onnx", "--load-outputs", results("a.json", y=np.nan), results("b.json", y=np.nan)) == 0
    assert run("model.onnx", "--load-outputs", "a.json", "b.json", "--validate") == 1


# Outputs and the model


def test_outputs_are_left_out_by_name_and_pattern_and_marked_by_operator() -> None:
    everything = ("--onnxrt", "--save-outputs", "outputs.json", "--onnx-outputs", "mark", "all")
    assert run("model.onnx", *everything, "--onnx-exclude-outputs", "a*", "x") == 0
    assert outputs_of("outputs.json") == ["out", "Ax", "y"]
    assert run("model.onnx", "--onnxrt", "--save-outputs", "outputs.json", "--onnx-outputs-by-type", "add", "Mul") == 0
    assert outputs_of("outputs.json") == ["axpy", "Ax"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--onnx-exclude-outputs", "out"], "no output is left"),
        (["--onnx-exclude-outputs", "nothing"], "no tensor 'nothing'"),
        (["--onnx-outputs-by-type", "Addd"], "did you mean 'Add'"),
    ],
)
def test_a_choice_of_outputs_that_cannot_be_is_wrong_usage(words: list[str], told: str, capsys: Captured) -> None:
    assert run("model.onnx", "--onnxrt", *words) == 2
    assert told in capsys.readouterr().err


def test_the_model_that_is_run_is_saved_with_its_outputs_and_weights_beside_it() -> None:
    words = ("--save-onnx", "saved.onnx", "--onnx-outputs", "Ax", "--save-external-data", "saved.weights")
    assert run("model.onnx", "--onnxrt", *words) == 0
    saved = onnx.load("saved.onnx")
    assert [output.name for output in saved.graph.output] == ["Ax"]
    assert run("saved.onnx", "--onnxrt") == 0
    assert run("model.onnx", "--onnxrt", "--save-external-data") == 2
    assert run("model.onnx", "--onnxrt", "--save-onnx", "model.onnx") == 2


@pytest.mark.parametrize("kind", ["frozen", "keras", "uff", "trt-network-script"])
def test_a_model_of_another_type_is_refused_in_one_line(kind: str, capsys: Captured) -> None:
    assert run("model.onnx", "--model-type", kind, "--onnxrt") == 2
    assert "must be onnx or engine" in capsys.readouterr().err
    assert run("model.onnx", "--model-type", "onnx", "--onnxrt") == 0


def test_an_engine_is_saved_without_an_ending_and_run_with_its_type(capsys: Captured) -> None:
    if registry.installed("openvino")[0].version is None:
        pytest.skip("OpenVINO is not installed")
    assert run("model.onnx", "--openvino", "--save-engine", "built") == 0
    assert "--model-type engine to run it" in capsys.readouterr().out
    assert run("built", "--model-type", "engine", "--openvino") == 0
    assert run("built", "--openvino") == 4
    assert run("built", "--model-type", "engine", "--openvino", "--save-onnx", "x.onnx") == 2
    assert run("model.onnx", "--onnxrt", "--save-engine", "built") == 2


def test_settings_of_tensorrt_are_taken_by_its_own_names(capsys: Captured) -> None:
    if registry.installed("trt")[0].version is None:
        pytest.skip("TensorRT is not installed")
    save(chain(1), Path("one.onnx"))
    build = ("one.onnx", "--trt", "--build-only")
    assert run(*build, "--profiling-verbosity", "detailed", "--max-aux-streams", "0") == 0
    assert run(*build, "--tiling-optimization-level", "none", "--runtime-platform", "same_as_build") == 0
    assert run(*build, "--profiling-verbosity", "loud") == 2
    assert "it has LAYER_NAMES_ONLY" in capsys.readouterr().err


# Inputs


def open_model() -> None:
    nodes = [onnx.helper.make_node("Neg", ["x"], ["y"]), onnx.helper.make_node("Neg", ["w"], ["z"])]
    shape = ("N", 3, None)
    made = model(nodes, [info("x", shape), info("w", ("N",))], [info("y", shape), info("z", ("N",))])
    save(made, Path("open.onnx"))


def test_minus_one_in_a_shape_is_what_the_model_says_else_one_and_told(capsys: Captured) -> None:
    open_model()
    assert run("open.onnx", "--onnxrt", "--input-shapes", "x:[-1,-1,4]", "w:[5]", "--save-inputs", "inputs.json") == 0
    assert {name: value.shape for name, value in read_feeds("inputs.json")[0].items()} == {"x": (5, 3, 4), "w": (5,)}
    assert "open" not in capsys.readouterr().err
    assert run("open.onnx", "--onnxrt", "--input-shapes", "x:[2,3,-1]", "--save-inputs", "inputs.json") == 0
    assert read_feeds("inputs.json")[0]["x"].shape == (2, 3, 1)
    assert "of 2 inputs open: 'x' [2, 3, 1], 'w' [2] are used" in capsys.readouterr().err
