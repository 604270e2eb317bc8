"""``biopsy run``: engines, inputs, outputs, comparing, verdicts, statuses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from biopsy.cli.app import main
from biopsy.tensors.files import read_feeds, read_results, write_feeds, write_results
from biopsy.tensors.results import Iteration, RunnerResult
from support.models import INT64, chain, info, model, save, seeds_example, weight

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(seeds_example(), tmp_path / "model.onnx")
    variant = seeds_example()
    variant.graph.node[1].op_type = "Div"
    save(variant, tmp_path / "variant.onnx")
    return tmp_path


@pytest.fixture
def verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "verdict.json"
    monkeypatch.setenv("BIOPSY_VERDICT", str(path))
    return path


def run(*words: str | Path) -> int:
    return main(["run", *map(str, words)])


def golden(model_file: str = "model.onnx") -> None:
    made = run(
        model_file,
        "--onnxrt",
        "--save-inputs",
        "inputs.json",
        "--onnx-outputs",
        "mark",
        "all",
        "--save-outputs",
        "golden.json",
    )
    assert made == 0


def test_one_engine_alone_passes_when_it_runs(capsys: Captured):
    assert run("model.onnx", "--onnxrt") == 0
    assert re.search(r"^onnxrt  1 iteration, .* ms each$", capsys.readouterr().out, re.M)


def test_engines_that_agree_pass(capsys: Captured):
    assert run("model.onnx", "--reference", "--onnxrt", "--engine", "onnxrt:optimization=none") == 0
    shown = capsys.readouterr().out
    assert "onnxrt, expected: reference" in shown
    assert "onnxrt:optimization=none, expected: reference" in shown
    assert shown.splitlines()[-1] == "PASSED | 2 outputs compared, all within the tolerances"


def test_engines_are_compared_with_the_first_in_the_order_of_the_command_line(capsys: Captured):
    run("model.onnx", "--engine", "onnxrt:threads=1", "--reference")
    assert "reference, expected: onnxrt:threads=1" in capsys.readouterr().out


def test_settings_apply_to_plain_onnxrt_only(capsys: Captured):
    run(
        "model.onnx",
        "--engine",
        "onnxrt",
        "--onnxrt",
        "--graph-optimization-level",
        "ORT_DISABLE_ALL",
        "--threads",
        "1",
    )
    assert "onnxrt:optimization=none,threads=1, expected: onnxrt\n" in capsys.readouterr().out


def test_settings_without_a_plain_onnxrt_are_told_to_be_ignored(capsys: Captured):
    assert run("model.onnx", "--reference", "--threads", "1") == 0
    assert "--threads is ignored" in capsys.readouterr().err


def test_no_engine_is_a_usage_error_that_names_one(capsys: Captured):
    assert run("model.onnx") == 2
    assert "--onnxrt" in capsys.readouterr().err


def test_tensorrt_is_one_clear_line_and_concludes_nothing(capsys: Captured, verdict: Path):
    assert run("model.onnx", "--onnxrt", "--trt") == 4
    assert "TensorRT (engine 'trt') is not supported by this version" in capsys.readouterr().err
    assert json.loads(verdict.read_text())["outcome"] == "infrastructure"


# Golden values


def test_the_values_of_a_model_pass_against_themselves(capsys: Captured, verdict: Path):
    golden()
    assert run("model.onnx", "--reference", "--load-inputs", "inputs.json", "--load-outputs", "golden.json") == 0
    assert json.loads(verdict.read_text())["outcome"] == "passes"


def test_a_mismatch_tells_where_by_how_much_and_what_would_pass(capsys: Captured, verdict: Path):
    golden()
    assert run("variant.onnx", "--onnxrt", "--load-inputs", "inputs.json", "--load-outputs", "golden.json") == 1
    shown = capsys.readouterr().out
    inputs = read_feeds("inputs.json")[0]
    expected = inputs["X0"] * np.float32(2.5) + inputs["Y0"] - np.float32(0.25)
    actual = inputs["X0"] / np.float32(2.5) + inputs["Y0"] - np.float32(0.25)
    difference = np.abs(actual.astype(float) - expected)
    worst = np.unravel_index(difference.argmax(), difference.shape)
    assert "out  float32[1, 3, 8, 8]  FAILS: 192 of 192 elements" in shown
    assert f"at {[int(i) for i in worst]}: {actual[worst]:.7g}, expected {expected[worst]:.7g}" in shown
    assert "--atol out:" in shown
    assert shown.splitlines()[-1] == "FAILED | 'out' of onnxrt differs from golden.json"
    told = json.loads(verdict.read_text())
    assert (told["outcome"], told["engine"], told["stage"], told["kind"]) == ("fails", "onnxrt", "compare", "mismatch")
    assert told["outputs"] == ["out"]


def test_every_engine_is_compared_with_golden_values_the_first_one_too(capsys: Captured):
    golden()
    loads = ("--load-inputs", "inputs.json", "--load-outputs", "golden.json")
    assert run("variant.onnx", "--onnxrt", "--reference", *loads) == 1
    assert capsys.readouterr().out.splitlines()[-1] == (
        "FAILED | 'out' of onnxrt differs from golden.json; 'out' of reference differs from golden.json"
    )


def test_tolerances_hold_for_all_outputs_or_one():
    golden()
    loads = ("--load-inputs", "inputs.json", "--load-outputs", "golden.json")
    assert run("variant.onnx", "--onnxrt", *loads, "--atol", "10") == 0
    assert run("variant.onnx", "--onnxrt", *loads, "--abs-tol", "0", "out:10") == 0
    assert run("variant.onnx", "--onnxrt", *loads, "--atol", "10", "out:0") == 1
    assert run("variant.onnx", "--onnxrt", *loads, "--atol", "2", "--check-error-stat", "out:mean") == 0


def test_a_wrong_tolerance_is_a_usage_error(capsys: Captured):
    assert run("model.onnx", "--onnxrt", "--atol", "small") == 2
    assert "--atol small" in capsys.readouterr().err


def test_golden_values_of_other_tensors_cannot_be_compared(capsys: Captured, verdict: Path):
    write_results("golden.json", [RunnerResult("r", (Iteration({"elsewhere": np.zeros(1)}),))])
    assert run("model.onnx", "--onnxrt", "--load-outputs", "golden.json") == 4
    assert json.loads(verdict.read_text())["outcome"] == "invalid"


@pytest.mark.parametrize("inputs", [(), ("--load-inputs", "other.npz")])
def test_a_part_that_is_fed_with_other_values_than_the_golden_ones_is_not_compared_with_them(
    capsys: Captured, verdict: Path, inputs: tuple[str, ...]
):
    golden()
    part = ("surgeon", "extract", "model.onnx", "-o", "part.onnx", "--inputs", "axpy:auto:auto")
    assert main(part) == 0
    write_feeds("other.npz", [{"axpy": np.full((1, 3, 8, 8), 9, np.float32)}])
    assert run("part.onnx", "--onnxrt", *inputs, "--load-outputs", "golden.json") == 4
    assert "input 'axpy' of iteration 0 is fed with other values" in capsys.readouterr().err
    assert json.loads(verdict.read_text())["outcome"] == "invalid"
    assert run("part.onnx", "--onnxrt", "--load-inputs", "golden.json", "--load-outputs", "golden.json") == 0


@pytest.mark.parametrize("option", [("--onnx-outputs", "elsewhere"), ("--input-shapes", "X0:[1,3,9,9]")])
def test_an_option_that_does_not_fit_a_candidate_says_nothing_about_it(verdict: Path, option: tuple[str, ...]):
    assert run("model.onnx", "--onnxrt", *option) == 2
    assert json.loads(verdict.read_text())["outcome"] == "invalid"


def test_a_different_number_of_iterations_is_told(capsys: Captured):
    golden()
    run("model.onnx", "--onnxrt", "--load-inputs", "inputs.json", "inputs.json", "--load-outputs", "golden.json")
    assert "has 2 iterations, golden.json has 1: the rest is not compared" in capsys.readouterr().err


def test_long_lists_of_passing_outputs_are_cut_and_shown_on_request(capsys: Captured):
    save(chain(30), Path("long.onnx"))
    words = ("long.onnx", "--onnxrt", "--reference", "--onnx-outputs", "mark", "all")
    assert run(*words) == 0
    assert "30 outputs pass (-v shows them)" in capsys.readouterr().out
    run(*words, "-v")
    assert capsys.readouterr().out.count("passes: equal") == 30


# Inputs


def test_inputs_are_the_same_for_the_same_seed_and_saved_as_they_were_used():
    for seed, name in (("1", "a.npz"), ("1", "b.npz"), ("2", "c.npz")):
        assert run("model.onnx", "--onnxrt", "--iters", "2", "--seed", seed, "--save-input-data", name) == 0
    first, again, other = (read_feeds(name) for name in ("a.npz", "b.npz", "c.npz"))
    assert [list(feed) for feed in first] == [["X0", "Y0"]] * 2
    assert all(np.array_equal(one["X0"], two["X0"]) for one, two in zip(first, again, strict=True))
    assert not np.array_equal(first[0]["X0"], other[0]["X0"])
    assert not np.array_equal(first[0]["X0"], first[1]["X0"])


def test_several_files_of_inputs_follow_one_another():
    for value in (1, 2):
        write_feeds(f"{value}.json", [{"t0": np.full((2, 2), value, np.float32)}] * value)
    save(chain(1), Path("m.onnx"))
    assert run("m.onnx", "--onnxrt", "--load-inputs", "2.json", "1.json", "--save-outputs", "out.npz") == 0
    (result,) = read_results("out.npz")
    assert [iteration.outputs["t1"][0, 0] for iteration in result.iterations] == [2, 2, 1]


def test_a_missing_input_is_made_up_with_a_warning(capsys: Captured):
    write_feeds("some.json", [{"X0": np.ones((1, 3, 8, 8), np.float32)}])
    assert run("model.onnx", "--onnxrt", "--load-inputs", "some.json", "--save-inputs", "all.json") == 0
    assert "have no 'Y0': random values are used" in capsys.readouterr().err
    (feed,) = read_feeds("all.json")
    assert feed["X0"].min() == 1
    assert list(feed) == ["X0", "Y0"]


def test_a_missing_input_is_not_made_up_beside_golden_values(capsys: Captured, verdict: Path):
    golden()
    write_feeds("some.json", [{"X0": np.ones((1, 3, 8, 8), np.float32)}])
    assert run("model.onnx", "--onnxrt", "--load-inputs", "some.json", "--load-outputs", "golden.json") == 4
    assert "biopsy data to-input" in capsys.readouterr().err
    assert json.loads(verdict.read_text())["outcome"] == "invalid"


def test_layerwise_inputs_feed_any_part_of_the_model():
    golden()
    layerwise = {**read_results("golden.json")[0].iterations[0].outputs, **read_feeds("inputs.json")[0]}
    write_feeds("layerwise.json", [layerwise])
    node = helper.make_node("Mul", ["x", "a"], ["Ax"])
    shape = (1, 3, 8, 8)
    part = model([node], [info("x", shape)], [info("Ax", shape)], [weight("a", 2.5, shape=(1,))])
    save(part, Path("part.onnx"))
    assert run("part.onnx", "--onnxrt", "--load-inputs", "layerwise.json", "--load-outputs", "golden.json") == 0


def test_a_script_makes_inputs():
    Path("loader.py").write_text(
        "import numpy as np\n"
        "def mine():\n    for value in (7, 8):\n        yield {'t0': np.full((2, 2), value, np.float32)}\n"
    )
    save(chain(1), Path("m.onnx"))
    assert run("m.onnx", "--onnxrt", "--data-loader-script", "loader.py:mine", "--save-outputs", "out.json") == 0
    assert [one.outputs["t1"][0, 0] for one in read_results("out.json")[0].iterations] == [7, 8]


def test_open_shapes_are_guessed_with_a_warning_or_given(capsys: Captured):
    save(model([helper.make_node("Neg", ["x"], ["y"])], [info("x", ("N", 3))], [info("y", ("N", 3))]), Path("d.onnx"))
    assert run("d.onnx", "--onnxrt") == 0
    assert "--input-shapes x:[...]" in capsys.readouterr().err
    for option in ("--input-shapes", "--inputs", "--model-input-shapes"):
        assert run("d.onnx", "--onnxrt", option, "x:[5,3]", "--save-inputs", "in.json") == 0
        assert read_feeds("in.json")[0]["x"].shape == (5, 3)
    assert capsys.readouterr().err == ""


def test_a_range_of_values_is_kept():
    assert run("model.onnx", "--onnxrt", "--val-range", "[2,3]", "X0:[-5,-4]", "--save-inputs", "in.json") == 0
    (feed,) = read_feeds("in.json")
    assert -5 <= feed["X0"].min() <= feed["X0"].max() <= -4
    assert feed["Y0"].min() >= 2


def test_values_that_do_not_fit_are_refused(capsys: Captured):
    write_feeds("wrong.json", [{"X0": np.zeros((1, 3, 8, 9), np.float32), "Y0": np.zeros((1, 3, 8, 8), np.float32)}])
    assert run("model.onnx", "--onnxrt", "--load-inputs", "wrong.json") == 4
    assert (
        "'X0' is float32[1,3,8,8] in the model, but the value given has shape [1, 3, 8, 9]" in capsys.readouterr().err
    )


# Outputs


def test_saved_outputs_carry_names_as_polygraphy_gives_them():
    run("model.onnx", "--onnxrt", "--reference", "--save-results", "out.json")
    first, second = read_results("out.json")
    assert re.fullmatch(r"onnxrt-runner-N0-\d\d/\d\d/\d\d-\d\d:\d\d:\d\d", first.runner)
    assert second.runner.startswith("reference-runner-N1-")


@pytest.mark.parametrize("name", ["out.json", "out.npz", "out.safetensors", "folder"])
def test_outputs_are_saved_by_extension_and_loaded_again(name: str):
    assert run("model.onnx", "--onnxrt", "--iterations", "2", "--save-outputs", name) == 0
    assert run("model.onnx", "--onnxrt", "--iterations", "2", "--load-outputs", name) == 0


def test_marked_outputs_are_the_models_own_first_then_all_others():
    golden()
    assert list(read_results("golden.json")[0].iterations[0].outputs) == ["out", "x", "Ax", "y", "axpy"]
    assert run("model.onnx", "--onnxrt", "--outputs", "axpy", "x", "--save-outputs", "some.json") == 0
    assert list(read_results("some.json")[0].iterations[0].outputs) == ["axpy", "x"]


def test_a_place_that_cannot_be_written_is_told_before_anything_runs(capsys: Captured):
    assert run("model.onnx", "--onnxrt", "--save-outputs", "nowhere/out.json") == 2
    assert capsys.readouterr().out == ""


def test_inputs_are_saved_even_if_the_engine_fails_on_them():
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    save(model([node], [info("x", (3,)), info("s", (2,), INT64)], [info("y", (None, None))]), Path("r.onnx"))
    write_feeds("in.json", [{"x": np.zeros(3, np.float32), "s": np.array([2, 2])}])
    assert run("r.onnx", "--onnxrt", "--load-inputs", "in.json", "--save-inputs", "used.json") == 1
    assert sorted(read_feeds("used.json")[0]) == ["s", "x"]


# Failures


def test_an_engine_that_fails_is_a_failure_and_the_others_still_run(capsys: Captured, verdict: Path):
    save(chain(1, ops=["Foo"]), Path("foo.onnx"))
    assert run("foo.onnx", "--onnxrt", "--reference") == 1
    shown = capsys.readouterr()
    assert "onnxrt cannot load the model: InvalidGraph" in shown.err
    assert "reference cannot load the model" in shown.err
    assert shown.out == "FAILED | onnxrt failed to load the model; reference failed to load the model\n"
    told = json.loads(verdict.read_text())
    assert (told["outcome"], told["engine"], told["stage"], told["kind"]) == ("fails", "onnxrt", "load", "InvalidGraph")


def test_fail_fast_stops_at_the_first_failure(capsys: Captured):
    save(chain(1, ops=["Foo"]), Path("foo.onnx"))
    assert run("foo.onnx", "--onnxrt", "--reference", "--fail-fast") == 1
    assert "reference" not in capsys.readouterr().err


def test_validate_finds_nan_and_infinity(capsys: Captured, verdict: Path):
    save(model([helper.make_node("Log", ["x"], ["y"])], [info("x", (2,))], [info("y", (2,))]), Path("log.onnx"))
    write_feeds("in.json", [{"x": np.array([-1, 0], np.float32)}])
    assert run("log.onnx", "--onnxrt", "--load-inputs", "in.json") == 0
    assert run("log.onnx", "--onnxrt", "--load-inputs", "in.json", "--validate") == 1
    shown = capsys.readouterr().out
    assert "onnxrt: y  1 NaN and 1 infinite of 2 elements, first nan at [0]" in shown
    assert shown.splitlines()[-1] == "FAILED | NaN or infinity in 'y'"
    assert json.loads(verdict.read_text())["kind"] == "not-finite"


def test_quiet_leaves_the_verdict(capsys: Captured):
    assert run("model.onnx", "--onnxrt", "-q") == 0
    assert capsys.readouterr().out == "PASSED | onnxrt ran; there was nothing to compare with\n"


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("absent.onnx", "--onnxrt"), 2, "there is no model absent.onnx"),
        ((".", "--onnxrt"), 2, "is a directory"),
        (("cut.onnx", "--onnxrt"), 4, "damaged or cut short"),
        (("empty.onnx", "--onnxrt"), 4, "is empty"),
        (("unweighted.onnx", "--onnxrt"), 4, "gone.bin"),
        (("model.onnx", "--onnxrt", "--frobnicate"), 2, "--frobnicate"),
        (("model.onnx", "--onnxrt", "--onnx-outputs", "axpi"), 2, "did you mean 'axpy'"),
        (("model.onnx", "--onnxrt", "--load-inputs", "absent.json"), 2, "absent.json"),
        (("model.onnx", "--engine", "onnxrt:speed=9"), 2, "has no option 'speed'"),
        (("model.onnx", "--onnxrt", "--providers", "cuda"), 4, "CUDAExecutionProvider"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_bad_input_is_one_message_with_its_status(words: tuple[str, ...], status: int, told: str, capsys: Captured):
    Path("cut.onnx").write_bytes(Path("model.onnx").read_bytes()[:100])
    Path("empty.onnx").write_bytes(b"")
    absent = onnx.TensorProto(name="w", data_type=1, dims=[2, 2], data_location=onnx.TensorProto.EXTERNAL)
    absent.external_data.add(key="location", value="gone.bin")
    save(
        model([helper.make_node("Add", ["x", "w"], ["y"])], [info("x")], [info("y")], [absent]), Path("unweighted.onnx")
    )
    assert run(*words) == status
    shown = capsys.readouterr()
    assert told in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_external_weights_are_found_elsewhere_when_told_where():
    folder = Path("weights/sub")
    folder.mkdir(parents=True)
    (folder / "w.bin").write_bytes(np.ones(4, np.float32).tobytes())
    absent = onnx.TensorProto(name="w", data_type=1, dims=[2, 2], data_location=onnx.TensorProto.EXTERNAL)
    absent.external_data.add(key="location", value="sub/w.bin")
    save(model([helper.make_node("Add", ["x", "w"], ["y"])], [info("x")], [info("y")], [absent]), Path("m.onnx"))
    assert run("m.onnx", "--onnxrt", "--reference", "--ext", "weights") == 0


def test_a_check_without_marked_outputs_does_not_import_onnx():
    code = (
        "import sys; from biopsy.cli.app import main; status = main(['run', 'model.onnx', '--onnxrt']);"
        "print(status, sorted({'onnx', 'rich', 'importlib.metadata', 'openvino'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_help_does_not_import_numpy():
    code = "import sys; from biopsy.cli.app import main; main(['run', '--help']); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
