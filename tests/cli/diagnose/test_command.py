"""``biopsy diagnose`` from the command line. Engines, checks and files are real."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from biopsy.cli.app import main
from biopsy.cli.demo import demonstration_model
from biopsy.diagnosis.evidence import held_folder
from support import bug
from support.command_line import end_of, started, wait_until
from support.models import chain, info, model, save
from support.without_extras import hide_extras


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    save(chain(3, ("Neg", "Exp", "Tanh")), tmp_path / "model.onnx")
    return tmp_path


def diagnose(*words: str) -> int:
    return main(["diagnose", "model.onnx", "--dir", "found", "--report", "report.json", *words])


def report() -> dict:
    return json.loads(Path("report.json").read_text())


def status_of(line: str) -> int:
    """The exit status of a line that is pasted."""
    return subprocess.run(line, shell=True, check=False, stdin=subprocess.DEVNULL).returncode


def matrix(name: str, *shape: int, scale: float = 1.0) -> onnx.TensorProto:
    values = np.random.default_rng(0).normal(0, 0.5, shape) * scale
    return numpy_helper.from_array(values.astype(np.float32), name)


# A model that does not fail


def test_a_model_that_passes_ends_with_status_0_what_was_tried_and_what_to_try(here, capsys) -> None:
    assert diagnose("--onnxrt") == 0
    shown = capsys.readouterr().out
    assert "PASSED | The model does not fail: onnxrt:optimization=none and onnxrt agree; reference and onnxrt" in shown
    assert (
        "1 random sample of seed 1; with its inner tensors as outputs too, none of 3 layers in onnxrt differs from "
        "onnxrt:optimization=none by more than the tolerances and rounding allow." in shown
    )
    assert "report     report.json" in shown.splitlines()
    (following,) = report()["next"]
    line = "biopsy diagnose model.onnx --engine onnxrt --seed 2 --iterations 8 --val-range 't0:[-4,4]'"
    assert following["line"] == line
    assert report()["status"] == 0 and report()["verdict"]["kind"] == "passes"


def test_nothing_to_compare_with_is_no_pass(here) -> None:
    made = chain(2)
    made.graph.node[1].op_type, made.graph.node[1].domain = "Gelu", "com.microsoft"
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    save(made, here / "model.onnx")
    assert diagnose("--engine", "onnxrt:optimization=none") == 4
    assert report()["verdict"]["kind"] == "unknown"
    assert "nothing could be compared" in report()["verdict"]["text"]


# Sizes that the model leaves open


def image_model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["a"], name="conv", kernel_shape=[3, 3]),
        helper.make_node("MaxPool", ["a"], ["y"], name="pool", kernel_shape=[2, 2]),
    ]
    return model(nodes, [info("x", ("N", 3, "H", "W"))], [info("y", None)], [matrix("k", 4, 3, 3, 3)])


def test_open_sizes_are_asked_for_by_name_and_nothing_is_left_behind(here, capsys) -> None:
    save(image_model(), here / "model.onnx")
    assert diagnose("--onnxrt") == 2
    said = capsys.readouterr().err
    assert "'x' is float32[N,3,H,W]" in said and "--onnxrt --input-shapes 'x:[1,3,64,64]'\n" in said
    assert said.count("a size that nobody chose") == 1
    assert not (here / "found").exists()


def test_a_mistyped_input_is_asked_about_and_no_line_to_type_is_made_of_that(here, capsys) -> None:
    save(image_model(), here / "model.onnx")
    assert diagnose("--onnxrt", "--input-shapes", "xx:[1,3,8,8]") == 2
    said = capsys.readouterr().err
    assert "did you mean 'x'?" in said and "biopsy diagnose" not in said


def test_open_sizes_of_several_inputs_are_one_line_to_type(here, capsys) -> None:
    adds = helper.make_node("Add", ["a", "b"], ["y"])
    save(model([adds], [info("a", ("N", 4)), info("b", ("N", 4))], [info("y", None)]), here / "model.onnx")
    assert diagnose("--onnxrt") == 2
    assert "--onnxrt --input-shapes 'a:[1,4]' 'b:[1,4]'\n" in capsys.readouterr().err


def test_a_value_that_is_given_and_not_fed_is_told(here, capsys) -> None:
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    ends = [info("x", (4, 4)), info("w", (4, 4))], [info("y", None)]
    save(model([product], *ends, [matrix("w", 4, 4)]), here / "model.onnx")
    np.savez("in.npz", x=np.ones((4, 4), np.float32), w=np.ones((4, 4), np.float32))
    diagnose("--onnxrt", "--load-inputs", "in.npz")
    assert "the values given for 'w' are not fed: the model has its own" in capsys.readouterr().err


def test_a_picture_of_one_pixel_is_the_fault_of_the_inputs(here) -> None:
    save(image_model(), here / "model.onnx")
    assert diagnose("--onnxrt", "--input-shapes", "x:[1,3,1,1]") == 1
    verdict = report()["verdict"]
    assert verdict["kind"] == "input"
    assert "fail with x:[1,3,1,1], and none of them with x:[1,3,64,64]" in verdict["text"]
    assert status_of(verdict["workarounds"][0]["line"]) == 0
    assert {step["name"]: step["outcome"] for step in report()["steps"]}["piece"] == "skipped"


@pytest.mark.slow
def test_values_that_make_nan_are_not_called_too_few(here) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["a"], name="neg"), helper.make_node("Sqrt", ["a"], ["y"], name="sqrt")]
    save(model(nodes, [info("x", ("N", "M"))], [info("y", None)]), here / "model.onnx")
    np.savez("inputs.npz", x=np.ones((1, 2), np.float32))
    assert diagnose("--onnxrt", "--load-inputs", "inputs.npz", "--val-range", "[-1,0]") == 1
    verdict = report()["verdict"]
    assert verdict["kind"] == "not-finite" and "The model or its inputs make NaN" in verdict["text"]
    assert verdict["workarounds"] == []


@pytest.mark.slow
def test_a_picture_of_one_pixel_that_the_model_fixes_is_told(here) -> None:
    made = image_model()
    for dim, size in zip(made.graph.input[0].type.tensor_type.shape.dim, (1, 3, 1, 1), strict=True):
        dim.Clear()
        dim.dim_value = size
    save(made, here / "model.onnx")
    assert diagnose("--reference", "--onnxrt") == 1
    assert report()["verdict"]["kind"] == "refused"
    assert "Its input may be too small: 'x' is float32[1,3,1,1]" in report()["verdict"]["text"]


# Models that fail


@pytest.mark.slow
def test_the_bug_of_the_layer_normalization_ends_with_its_optimizer_and_a_workaround(here) -> None:
    bug.skip_without_it()
    save(demonstration_model(), here / "model.onnx")
    assert diagnose("--onnxrt", "--atol", "1e-3", "--rtol", "1e-3") == 1
    found = report()
    assert found["verdict"]["kind"] == "reduced"
    assert "'s optimizer SimplifiedLayerNormFusion computes wrong values" in found["verdict"]["text"]
    assert "Pow -> ReduceMean -> Add -> Sqrt -> Div -> Mul" in found["verdict"]["text"]
    asked = [step["name"] for step in found["steps"] if step["outcome"] == "done"]
    steps = "fails, rounding, steady, piece, known, layer, rest, setting, transform, may vary, holds"
    assert asked == steps.split(", ")
    assert found["search"]["left"] == 6 and found["layers"]["groups"] and found["settings"]["switches"]
    assert "keepdims of ReduceMean = 0" in found["variation"]["sentence"]
    assert [node["op_type"] for node in found["piece"]["nodes"]] == ["Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul"]
    assert [found["whole"]["names"][number] for number in found["whole"]["piece"]] == [
        node["name"] for node in found["piece"]["nodes"]
    ]
    assert found["search"]["checks"] and found["run"]["comparisons"]
    assert {engine["version"] for engine in found["versions"]["engines"]} == {onnxruntime.__version__}
    assert f"ONNX Runtime {onnxruntime.__version__}'s optimizer" in found["verdict"]["text"]
    for workaround in found["verdict"]["workarounds"]:
        assert status_of(workaround["line"]) == 0
    assert status_of(found["next"][0]["line"]) == 1


@pytest.mark.slow
def test_the_bug_of_openvino_ends_with_its_two_nodes_and_no_setting(here) -> None:
    pytest.importorskip("openvino")
    nodes = [helper.make_node("Sigmoid", [f"t{i}"], [f"t{i + 1}"], name=f"s{i}") for i in range(5)]
    nodes += [
        helper.make_node("MatMul", ["t5", "w"], ["m"], name="matmul"),
        helper.make_node("PRelu", ["m", "slope"], ["p"], name="prelu"),
        helper.make_node("Abs", ["p"], ["y"], name="last"),
    ]
    weights = [matrix("w", 4, 6), matrix("slope", 3, 1, 1)]
    save(model(nodes, [info("t0", (1, 3, 5, 4))], [info("y", (1, 3, 5, 6))], weights), here / "model.onnx")
    if diagnose("--openvino") == 0:
        pytest.skip("the installed OpenVINO compiles it")
    found = report()["verdict"]
    assert "OpenVINO" in found["text"] and "cannot build MatMul -> PRelu" in found["text"]
    assert any("None of these nodes fails alone" in each for each in found["reasons"])
    (workaround,) = found["workarounds"]
    assert workaround["text"].startswith("Another engine: ONNX Runtime runs the model (in ")


def test_a_difference_that_is_rounding_ends_there_with_tolerances_that_pass(here) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Exp", ["a"], ["e"], name="exp"),
        helper.make_node("MatMul", ["e", "v"], ["y"], name="second"),
    ]
    weights = [matrix("w", 512, 256, scale=0.2), matrix("v", 256, 64)]
    save(model(nodes, [info("x", (8, 512))], [info("y", None)], weights), here / "model.onnx")
    limits = ("--atol", "1e-12", "--rtol", "1e-12", "--seed", "3")
    assert diagnose("--reference", "--onnxrt", *limits) == 1
    found = report()
    assert found["verdict"]["kind"] == "rounding"
    assert found["verdict"]["text"].startswith("It is rounding, as far as the outputs show")
    assert {step["name"]: step["outcome"] for step in found["steps"]}["piece"] == "skipped"
    assert "piece" not in found
    for workaround in found["verdict"]["workarounds"]:
        assert status_of(workaround["line"]) == 0


@pytest.mark.slow
def test_a_model_that_overflows_in_fp16_is_a_matter_of_precision_and_no_engine_is_blamed(here) -> None:
    half = onnx.TensorProto.FLOAT16
    operators = ("Mul", "Mul", "Div", "Div")
    nodes = [
        helper.make_node(op, [f"t{place}", "big"], [f"t{place + 1}"], name=f"n{place}")
        for place, op in enumerate(operators)
    ]
    big = numpy_helper.from_array(np.array([600.0], np.float16), "big")
    save(model(nodes, [info("t0", (4, 4), half)], [info("t4", (4, 4), half)], [big]), here / "model.onnx")
    limits = ("--atol", "1e-2", "--rtol", "1e-2", "--val-range", "[0.5,1]")
    assert diagnose("--reference", "--onnxrt", *limits) == 1
    verdict = report()["verdict"]
    assert verdict["kind"] == "precision"
    assert "Either fp16 is not enough there, or the fp16 arithmetic of one of them is wrong." in verdict["text"]
    assert 0 < len(report()["precision"]["high_layers"]) < 4
    (workaround,) = verdict["workarounds"]
    assert status_of(workaround["line"]) == 0


@pytest.mark.slow
def test_a_flaky_failure_is_told_as_one(here) -> None:
    Path("check.py").write_text(
        "import os, sys, onnx\n"
        "run = os.path.getsize('runs') if os.path.exists('runs') else 0\n"
        "open('runs', 'ab').write(b'.')\n"
        "has_exp = any(node.op_type == 'Exp' for node in onnx.load(sys.argv[1]).graph.node)\n"
        "sys.exit(3 if has_exp and run % 3 != 1 else 0)\n"
    )
    assert diagnose("--jobs", "1", "--check", sys.executable, "check.py", "{}") == 1
    verdict = report()["verdict"]
    assert verdict["kind"] == "flaky"
    assert "one node, Exp 'n1'" in verdict["text"]
    assert "It is flaky: it fails in 13 of 20 runs." in verdict["reasons"]


@pytest.mark.slow
def test_a_masked_error_is_found_and_reduced(here) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="neg"),
        helper.make_node("Sigmoid", ["a"], ["b"], name="sigmoid"),
        helper.make_node("Ceil", ["b"], ["y"], name="up"),
    ]
    save(model(nodes, [info("x")], [info("y")]), here / "model.onnx")
    assert diagnose("--engine", "fake:scale.sigmoid=0.9") == 1
    verdict = report()["verdict"]
    assert verdict["kind"] == "masked" and "one node, Sigmoid 'sigmoid'" in verdict["text"]


@pytest.mark.slow
def test_an_engine_that_ends_its_process_is_told_by_the_signal(here) -> None:
    assert diagnose("--engine", "fake:crash.Exp=run") == 1
    assert (
        "'fake' 0.1.0 (crash.Exp=run) crashes when it runs one node, Exp 'n1' (SIGSEGV)" in report()["verdict"]["text"]
    )
    assert report()["verdict"]["workarounds"][0]["text"].startswith("Another engine: ONNX Runtime runs the model")


@pytest.mark.slow
def test_the_trusted_engine_is_accused_if_it_alone_is_wrong(here) -> None:
    assert diagnose("--engine", "fake:offset.Exp=0.5", "--onnxrt") == 1
    text = report()["verdict"]["text"]
    assert text.startswith("The engine 'fake'") and "computes wrong values for one node" in text


@pytest.mark.slow
def test_the_engine_that_gives_nan_is_accused_and_not_the_one_beside_it(here) -> None:
    assert diagnose("--engine", "fake:nan.Exp=0.5", "--onnxrt", "--max-time", "8s") == 1
    text = report()["verdict"]["text"]
    assert text.startswith("The engine 'fake'") and "gives NaN where float64 does not" in text
    assert report()["failure"]["suspect"] == "fake:nan.Exp=0.5" and report()["failure"]["rounding"] is None


@pytest.mark.slow
def test_equal_rows_with_different_answers_are_told(here) -> None:
    made = chain(2, ("Neg", "Exp"))
    save(made, here / "model.onnx")
    assert diagnose("--engine", "fake:noise.Exp=0.1,seed=1") == 1
    assert "For equal rows of the inputs, fake:noise.Exp=0.1,seed=1 gives different rows" in " ".join(
        report()["verdict"]["reasons"]
    )


def test_a_model_that_is_random_says_nothing_of_an_engine(here) -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["r"], name="random"),
        helper.make_node("Add", ["x", "r"], ["y"], name="add"),
    ]
    save(model(nodes, [info("x")], [info("y")]), here / "model.onnx")
    assert diagnose("--onnxrt", "--openvino") == 1
    assert report()["verdict"]["kind"] == "random"
    assert "RandomNormalLike 'random'" in report()["verdict"]["text"]


@pytest.mark.slow
def test_nan_that_every_engine_gives_is_not_called_the_fault_of_one(here) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["a"], name="neg"), helper.make_node("Log", ["a"], ["y"], name="log")]
    save(model(nodes, [info("x")], [info("y")]), here / "model.onnx")
    assert diagnose("--onnxrt") == 1
    verdict = report()["verdict"]
    assert verdict["kind"] == "not-finite"
    assert "The model or its inputs make NaN" in verdict["text"] and "one node, Log 'log'" in verdict["text"]
    assert "It makes NaN of values that are not NaN." in verdict["text"]


# A check of the user's


@pytest.mark.slow
def test_a_check_of_the_users_decides_and_settings_are_tried_where_it_has_a_place_for_them(here) -> None:
    Path("check.py").write_text(
        "import sys, onnx\n"
        "has_exp = any(node.op_type == 'Exp' for node in onnx.load(sys.argv[1]).graph.node)\n"
        "sys.exit(3 if has_exp and 'threads=1' not in sys.argv[2] else 0)\n"
    )
    assert diagnose("--engine", "onnxrt", "--check", sys.executable, "check.py", "{}", "{engine}") == 1
    found = report()["verdict"]
    assert "one node, Exp 'n1'" in found["text"] and "It goes away with threads=1." in found["reasons"]
    (workaround,) = found["workarounds"]
    assert workaround["line"] == f"{sys.executable} check.py model.onnx onnxrt:threads=1"
    assert workaround["engine"] == "onnxrt:threads=1"
    assert status_of(workaround["line"]) == 0


@pytest.mark.slow
def test_a_check_that_is_biopsy_run_is_diagnosed_with_its_own_engines(here) -> None:
    words = ("biopsy", "run", "{}", "--engine", "onnxrt:optimization=none", "--engine", "fake:offset.Exp=0.5")
    assert diagnose("--check", *words) == 1
    assert "one node, Exp 'n1'" in report()["verdict"]["text"]


@pytest.mark.slow
def test_a_check_that_is_biopsy_run_may_have_a_place_for_the_engine_that_is_named_before_it(here) -> None:
    words = ("biopsy", "run", "{}", "--engine", "onnxrt:optimization=none", "--engine", "{engine}")
    assert diagnose("--engine", "fake:offset.Exp=0.5", "--check", *words) == 1
    assert "one node, Exp 'n1'" in report()["verdict"]["text"]
    assert report()["failure"]["suspect"] == "fake:offset.Exp=0.5"


# What is asked only if somebody wants it


BREAKER = """\
import sys, onnx
model = onnx.load(sys.argv[1])
for node in model.graph.node:
    node.op_type = {"Exp": "Abs"}.get(node.op_type, node.op_type)
onnx.save(model, sys.argv[2])
"""


@pytest.mark.slow
def test_a_tool_that_breaks_a_model_that_passes_is_found_and_the_status_is_1(here, capsys) -> None:
    Path("break.py").write_text(BREAKER)
    assert diagnose("--onnxrt", "--by", f"{sys.executable} break.py {{}} {{out}}") == 1
    assert "breaks the model" in capsys.readouterr().out
    found = report()
    assert found["verdict"]["kind"] == "fails" and "Before that, the model does not fail" in found["verdict"]["text"]
    assert found["transformation"]["piece"]["nodes"] == ["Exp 'n1'"]
    assert found["transformation"]["piece"]["nodes_after"] == ["Abs 'n1'"]


def test_a_tool_that_there_is_not_is_refused_before_anything_is_done(here, capsys) -> None:
    assert diagnose("--onnxrt", "--by", "onnxslimm") == 2
    assert "there is no tool 'onnxslimm'" in capsys.readouterr().err
    assert not (here / "found").exists()


def same_result_by_layer_normalization() -> onnx.ModelProto:
    """A model that a fusion of ONNX Runtime breaks: the mean of squares without its dimension, divided by columns."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="neg"),
        helper.make_node("Pow", ["a", "two"], ["b"], name="pow"),
        helper.make_node("ReduceMean", ["b"], ["c"], name="mean", axes=[-1], keepdims=0),
        helper.make_node("Add", ["c", "eps"], ["d"], name="add"),
        helper.make_node("Sqrt", ["d"], ["e"], name="sqrt"),
        helper.make_node("Div", ["a", "e"], ["f"], name="div"),
        helper.make_node("Mul", ["f", "gain"], ["y"], name="mul"),
    ]
    weights = {"two": np.float32(2), "eps": np.float32(1e-5), "gain": np.ones(8, np.float32)}
    made = model(nodes, [info("x", (8, 8))], [info("y", (8, 8))])
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items())
    return made


@pytest.mark.slow
def test_a_thorough_diagnosis_shows_what_the_optimizer_makes_and_writes_a_model_that_is_right(
    here, monkeypatch
) -> None:
    bug.skip_without_it()
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    save(same_result_by_layer_normalization(), here / "model.onnx")
    assert diagnose("--onnxrt", "--thorough") == 1
    found = report()
    steps = {step["name"]: step for step in found["steps"]}
    assert [node["op_type"] for node in found["piece"]["nodes"]][-1] == "Mul"
    assert "SimplifiedLayerNormalization" in steps["transform"]["answer"]
    assert "which gives the wrong result with the optimizer off too" in found["verdict"]["certainty"]
    assert steps["release"]["outcome"] == "failed" and "releases" not in {key for key in found if found[key]}
    assert any(told.startswith("Which release of the engine broke it") for told in found["verdict"]["not_tried"])
    changed = [one for one in found["verdict"]["workarounds"] if "workaround.onnx" in (one["line"] or "")]
    assert len(changed) == 1 and status_of(changed[0]["line"]) == 0
    latencies = ("as long", "no difference measured")
    assert all(any(each in one["text"] for each in latencies) for one in found["verdict"]["workarounds"])
    assert not any("--thorough" in one["line"] for one in found["next"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--onnxrt", "--check", "biopsy", "run", "{}", "--onnxrt"], "so do you"),
        (["--check", "./check.sh", "{}", "{engine}"], "no engine is named for it"),
        (["--check"], "no command"),
        (["--engine", "onnxrtt"], "there is no engine 'onnxrtt'"),
        (["--onnxrt", "--max-time", "soon"], "--max-time"),
    ],
)
def test_arguments_that_could_only_mislead_are_refused(here, capsys, words: list[str], told: str) -> None:
    assert diagnose(*words) == 2
    assert told in capsys.readouterr().err
    assert not (here / "found").exists()


# Evidence


@pytest.mark.parametrize("name", ["{}", "{engine}", "a{settings}b"])
def test_names_into_which_a_check_would_fill_something_are_refused(here, capsys, name: str) -> None:
    assert diagnose("--onnxrt", "--dir", name) == 2
    assert "stands for something else" in capsys.readouterr().err
    assert not Path(name).exists()
    np.savez(f"{name}.npz", t0=np.ones((2, 2), np.float32))
    assert diagnose("--onnxrt", "--load-inputs", f"{name}.npz") == 2
    assert "stands for something else" in capsys.readouterr().err


def test_a_folder_of_somebody_else_is_left_alone(here, capsys) -> None:
    (here / "found").mkdir()
    (here / "found" / "mine.txt").write_text("mine")
    assert diagnose("--onnxrt") == 2
    assert "found holds no diagnosis.json that is sealed with your key (" in capsys.readouterr().err
    assert [path.name for path in (here / "found").iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_the_time_that_is_over_leaves_open_what_was_not_asked_and_the_same_line_goes_on(here) -> None:
    engine = "fake:offset.Exp=0.5,sleep_ms=700"
    assert diagnose("--engine", engine, "--max-time", "2") == 1
    before = {step["name"]: step for step in report()["steps"]}
    assert before["fails"]["outcome"] == "done" and before["setting"]["outcome"] == "stopped"
    assert report()["verdict"]["not_tried"]
    assert diagnose("--engine", engine) == 1
    after = {step["name"]: step for step in report()["steps"]}
    assert after["fails"] == before["fails"]
    assert after["piece"]["outcome"] == "done"


def test_what_another_question_has_left_is_refused_by_name_and_kept(here, capsys) -> None:
    engine = "fake:refuse.Exp=build"
    assert diagnose("--engine", engine, "--max-time", "0.001") == 5
    state = (here / "found" / "diagnosis.json").read_bytes()
    save(chain(2), here / "model.onnx")
    assert diagnose("--engine", engine) == 2
    assert "an earlier diagnosis of something else: another" in capsys.readouterr().err
    assert (here / "found" / "diagnosis.json").read_bytes() == state
    assert diagnose("--onnxrt", "--fresh") == 0


def test_a_folder_in_which_another_diagnosis_runs_is_left_alone_its_inputs_too(here, capsys) -> None:
    with held_folder(here / "found"):
        (here / "found" / "inputs.safetensors").write_bytes(b"of the other one")
        assert diagnose("--onnxrt", "--seed", "2") == 2
    assert "another biopsy in this folder" in capsys.readouterr().err
    assert (here / "found" / "inputs.safetensors").read_bytes() == b"of the other one"


def test_what_somebody_else_wrote_into_the_evidence_is_not_believed(here, capsys) -> None:
    assert diagnose("--engine", "fake:refuse.Exp=build", "--max-time", "0.001") == 5
    path = here / "found" / "diagnosis.json"
    tree = json.loads(path.read_text())
    tree["facts"]["compared"] = {"rows": [["onnxrt", "openvino"]], "passed": ["all is well"]}
    path.write_text(json.dumps(tree))
    assert diagnose("--engine", "fake:refuse.Exp=build") == 2
    assert "found holds no diagnosis.json that is sealed with your key (" in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupt_says_what_is_known_and_the_line_that_goes_on(here) -> None:
    words = ("diagnose", "model.onnx", "--engine", "fake:offset.Exp=0.5,sleep_ms=400", "--dir", "found")
    process = started(*words)
    state = here / "found" / "diagnosis.json"
    assert wait_until(lambda: state.is_file() and b'"name": "fails"' in state.read_bytes())
    process.send_signal(signal.SIGINT)
    ended = end_of(process, 60)
    assert ended.status == 5
    assert "FAILED | The engine 'fake'" in ended.told
    assert "resume  biopsy diagnose model.onnx" in ended.told


@pytest.mark.slow
def test_a_search_that_was_interrupted_goes_on_with_the_answers_that_it_has(here, capsys) -> None:
    save(chain(12, ("Neg", "Exp", "Tanh")), here / "model.onnx")
    check = (sys.executable, "check.py", "{}")
    Path("check.py").write_text(
        "import sys, time, onnx\n"
        "nodes = {node.name for node in onnx.load(sys.argv[1]).graph.node}\n"
        "time.sleep(0.2)\n"
        "sys.exit(3 if {'n2', 'n9'} <= nodes else 0)\n"
    )
    process = started("diagnose", "model.onnx", "--dir", "found", "--jobs", "1", "--check", *check)
    journal = here / "found" / "piece.onnx.journal"
    assert wait_until(lambda: journal.exists() and journal.stat().st_size > 0)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    assert end_of(process, 60).status == 5
    assert diagnose("--jobs", "1", "--check", *check) == 1
    assert "remembered in found/piece.onnx.journal" in capsys.readouterr().out
    assert report()["search"]["left"] == 2
    assert not journal.exists()


def test_json_alone_stands_on_stdout(here, capsys) -> None:
    assert main(["diagnose", "model.onnx", "--onnxrt", "--dir", "found", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["verdict"]["kind"] == "passes"
    assert "PASSED | " in shown.err


def test_of_a_check_that_fails_on_anything_nothing_is_concluded(here, capsys) -> None:
    assert diagnose("--check", "false", "{}") == 4
    assert "the check fails on anything, and nothing can be said of the model" in capsys.readouterr().err
    assert report()["status"] == 4


@pytest.mark.slow
def test_a_folder_is_reported_from_its_answers_and_stays_as_it_is(here, capsys) -> None:
    assert diagnose("--engine", "fake:refuse.Exp=build") == 1
    record = (here / "found" / "diagnosis.json").read_bytes()
    capsys.readouterr()
    assert main(["report", "found"]) == 0
    told = "".join(capsys.readouterr())
    assert "FAILED" not in told and "not asked" not in told
    assert "found.html" in told and "found.zip" in told
    assert (here / "found.html").exists() and (here / "found.zip").exists()
    assert diagnose("--engine", "fake:refuse.Exp=build", "--answered", "--events", "events.jsonl") == 0
    assert json.loads(Path("events.jsonl").read_text().splitlines()[-1])["status"] == 0
    assert (here / "found" / "diagnosis.json").read_bytes() == record
    save(chain(2), here / "model.onnx")
    capsys.readouterr()
    assert main(["report", "found"]) == 2
    assert "an earlier diagnosis of something else" in capsys.readouterr().err
    assert (here / "found" / "diagnosis.json").read_bytes() == record


@pytest.mark.slow
def test_every_line_that_is_advised_works_where_no_extra_is_installed(here, monkeypatch) -> None:
    hide_extras(here / "without", monkeypatch)
    asked = "biopsy diagnose model.onnx --engine fake:refuse.Exp=build --dir found --report report.json"
    assert status_of(asked) == 1
    advised = {each["line"]: each["why"] for each in report()["next"]}
    assert any("--thorough" in line and "pip install" in why for line, why in advised.items())
    assert {line: status for line in advised if (status := status_of(line)) not in (0, 1)} == {}
