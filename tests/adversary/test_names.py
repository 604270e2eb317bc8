"""Names that the model does not have, and inputs of another model: an error that names what was meant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import biopsy
from biopsy import errors
from biopsy.cli.app import main
from biopsy.tensors.files import write_feeds, write_results
from biopsy.tensors.results import Iteration, RunnerResult
from support.models import info, model, save

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(two_inputs(), tmp_path / "model.onnx")


def two_inputs() -> onnx.ModelProto:
    nodes = [helper.make_node("Add", ["image", "mask"], ["sum"]), helper.make_node("Relu", ["sum"], ["logits"])]
    return model(nodes, [info("image"), info("mask")], [info("logits")])


def run(*words: str) -> int:
    return main(["run", "model.onnx", "--onnxrt", *words])


PER_OUTPUT = (
    "--atol", "--rtol", "--cosine", "--psnr", "--snr", "--l2", "--ulp", "--top-k", "--index-tolerance", "--noise-ratio",
)  # fmt: skip


@pytest.mark.parametrize("option", PER_OUTPUT)
def test_an_option_for_an_output_that_is_none_is_told_with_the_nearest(option: str, capsys: Captured):
    assert run("--reference", option, "logit:1") == 2
    told = capsys.readouterr().err
    assert f"{option}: there is no output 'logit'" in told
    assert "did you mean 'logits'?" in told
    assert told.endswith("the names here: 'logits'\n")
    assert run("--reference", option, "logits:1") in (0, 1)


@pytest.mark.parametrize(("option", "value"), [("--check-error-stat", "max"), ("--error-quantile", "0.5")])
def test_so_is_a_statistic_for_one(option: str, value: str, capsys: Captured):
    assert run("--reference", option, f"sum:{value}") == 2
    assert "there is no output 'sum'" in capsys.readouterr().err
    assert run("--reference", option, f"sum:{value}", "--onnx-outputs", "mark", "all") == 0


@pytest.mark.parametrize("words", [("--input-shapes", "imgae:[2,2]"), ("--val-range", "imgae:[0,1]")], ids=str)
def test_an_option_for_an_input_that_is_none_is_told_with_the_nearest(words: tuple[str, str], capsys: Captured):
    assert run(*words) == 2
    told = capsys.readouterr().err
    assert f"{words[0]}: there is no input 'imgae'" in told
    assert "did you mean 'image'?" in told


def test_a_candidate_may_lack_what_options_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("BIOPSY_VERDICT", str(tmp_path / "verdict.json"))
    assert run("--reference", "--atol", "gone:1", "--input-shapes", "gone:[1]", "--val-range", "gone:[0,1]") == 0


CHECK = ("--check", "biopsy", "run", "{}", "--onnxrt", "--reference")


@pytest.mark.parametrize("words", [("--atol", "logit:1"), ("--input-shapes", "imgae:[2,2]"), ("--ulp", "smu:3")])
def test_the_check_of_a_reduction_may_only_name_tensors_of_the_original(words: tuple[str, str], capsys: Captured):
    assert main(["debug", "reduce", "model.onnx", *CHECK, *words]) == 2
    told = capsys.readouterr().err
    assert f"{words[0]}: there is no output" in told
    assert words[0] == "--input-shapes" or told.endswith("the names here: 'logits', 'sum'\n")


@pytest.mark.parametrize(
    "command",
    [
        ("precision", "model.onnx", "--fp16"),
        ("flags", "model.onnx", "--engine", "onnxrt"),
        ("build", "model.onnx", "--engine", "onnxrt", "--until", "1"),
        ("repeat", "--until", "1"),
    ],
    ids=lambda words: words[0],
)
def test_so_may_the_check_of_any_other_search(command: tuple[str, ...], capsys: Captured):
    model = "model.onnx" if command[0] == "repeat" else "{}"
    check = ("--check", "biopsy", "run", model, "--onnxrt", "--reference", "--atol")
    assert main(["debug", *command, *check, "logit:1"]) == 2
    assert "--atol: there is no output 'logit'" in capsys.readouterr().err


def test_debug_layers_judges_no_tensor_that_is_not_there(capsys: Captured):
    layers = ["debug", "layers", "model.onnx", "--suspect", "onnxrt"]
    assert main([*layers, "--atol", "smu:1"]) == 2
    assert "did you mean 'sum'?" in capsys.readouterr().err
    assert main([*layers, "--atol", "sum:1"]) == 0


def test_python_is_told_too():
    with pytest.raises(errors.DoesNotFit, match="there is no input 'imgae'"):
        biopsy.run("model.onnx", input_shapes={"imgae": (2, 2)})
    with pytest.raises(errors.DoesNotFit, match="there is no input 'imgae'"):
        biopsy.run("model.onnx", val_range={"imgae": (0, 1)})
    [result] = biopsy.run("model.onnx")
    with pytest.raises(errors.DoesNotFit, match="there is no output 'logit'"):
        biopsy.compare(result, result, atol={"logit": 1})
    assert biopsy.compare(result, result, atol={"logits": 1}).passed


def test_a_function_that_checks_candidates_may_name_what_they_lack():
    def fails(path: Path) -> bool:
        results = biopsy.run(path, ["onnxrt", "reference"], input_shapes={"mask": (2, 2)})
        biopsy.compare(*results, atol={"logits": 1})
        return "Add" in {node.op_type for node in onnx.load(path).graph.node}

    assert biopsy.reduce("model.onnx", fails).nodes == ("Add #0",)


# Inputs of another model

ONES = np.ones((2, 2), np.float32)


@pytest.mark.parametrize("names", [("x",), ("x", "y"), ("x", "image"), ()])
def test_inputs_of_another_model_are_refused_with_both_sets(names: tuple[str, ...], capsys: Captured):
    write_feeds("other.npz", [dict.fromkeys(names, ONES)])
    assert run("--load-inputs", "other.npz", "--reference") == 4
    told = capsys.readouterr()
    assert "PASSED" not in told.out
    assert f"given {', '.join(map(repr, names)) or 'nothing'}; required 'image', 'mask'; missing " in told.err


def test_inputs_that_lack_one_and_hold_nothing_else_are_completed(capsys: Captured):
    write_feeds("some.npz", [{"image": ONES}])
    assert run("--load-inputs", "some.npz") == 0
    assert "random values are used" in capsys.readouterr().err
    write_feeds("more.npz", [{"image": ONES, "mask": ONES, "other": ONES}])
    assert run("--load-inputs", "more.npz") == 0


def test_every_iteration_must_be_of_this_model():
    write_feeds("two.npz", [{"image": ONES, "mask": ONES}, {"x": ONES}])
    assert run("--load-inputs", "two.npz") == 4
    with pytest.raises(errors.CannotCompare, match="do not fit this model"):
        biopsy.run("model.onnx", inputs={"x": ONES})


@pytest.mark.parametrize("place", ["reduce", "check"])
def test_a_reduction_does_not_begin_with_inputs_of_another_model(place: str, capsys: Captured):
    write_feeds("other.npz", [{"x": ONES}])
    loaded = ("--load-inputs", "other.npz")
    own, check = (loaded, ()) if place == "reduce" else ((), loaded)
    nodes = [helper.make_node("Add", ["image", "mask"], ["sum"]), helper.make_node("Log", ["sum"], ["logits"])]
    save(model(nodes, [info("image"), info("mask")], [info("logits")]), Path("log.onnx"))
    fails = ("--check", "biopsy", "run", "{}", "--onnxrt", "--validate", "--val-range", "[-2,-1]")
    assert main(["debug", "reduce", "log.onnx", *fails]) == 0
    Path("log_reduced.onnx").unlink()
    assert main(["debug", "reduce", "log.onnx", *own, *fails, *check]) == 4
    assert "the inputs do not fit this model" in capsys.readouterr().err
    assert not Path("log_reduced.onnx").exists()


# Tolerances that are wider than the values


def test_an_atol_above_every_expected_value_is_warned_of(capsys: Captured):
    feed = {"image": ONES * 1e-3, "mask": ONES * 0}
    write_feeds("in.npz", [feed])
    write_results("golden.npz", [RunnerResult("r", (Iteration({"logits": ONES * 1.1e-3}),))])
    loads = ("--load-inputs", "in.npz", "--load-outputs", "golden.npz")
    assert run(*loads, "--atol", "0.01") == 0
    assert "atol 0.01 for 'logits' is more than any value expected there (at most 0.0011)" in capsys.readouterr().err
    assert run(*loads, "--atol", "0.001") == 0
    assert "expected there" not in capsys.readouterr().err
