"""``biopsy run``: engines, inputs, outputs, comparing, verdicts, statuses."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from biopsy.cli.app import main
from biopsy.cli.demo import demonstration_model
from biopsy.tensors.files import read_feeds, read_results, write_feeds, write_results
from biopsy.tensors.results import Iteration, RunnerResult
from support.bug import skip_without_it
from support.decoding import decoded_from_now_on
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


@pytest.mark.parametrize("setting", [["--threads", "1"], ["--fp16"], ["--trt-min-shapes", "x:[1]"], ["--direct-io"]])
def test_a_setting_of_an_engine_that_is_not_named_is_refused(setting: list[str], capsys: Captured):
    assert run("model.onnx", "--reference", *setting) == 2
    assert f"{setting[0]} is a setting of --" in capsys.readouterr().err


def test_settings_alone_name_their_engine(capsys: Captured):
    assert run("model.onnx", "--threads", "1") == 0
    assert "onnxrt:threads=1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--builder-optimization-level", "9"],
        ["--workspace", "-1"],
        ["--pool-limit", "workspace"],
        ["--trt-max-shapes", "x"],
    ],
)
def test_a_setting_of_tensorrt_that_cannot_be_is_refused_when_it_is_read(words: list[str], capsys: Captured):
    assert run("model.onnx", "--onnxrt", "--trt", *words) == 2
    assert words[0] in capsys.readouterr().err


def test_a_missing_engine_is_one_clear_line_and_concludes_nothing(capsys: Captured, verdict: Path):
    assert run("model.onnx", "--onnxrt", "--engine", "abacus") == 2
    assert "there is no engine 'abacus'" in capsys.readouterr().err
    assert json.loads(verdict.read_text())["outcome"] == "infrastructure"


# Inputs of another type, and of shapes that nobody chose


def loader(expression: str) -> str:
    Path("loader.py").write_text(
        f"import numpy as np\ndef load_data():\n    for _ in range(2):\n        yield {expression}\n"
    )
    return "loader.py"


IMAGES = "{name: np.random.rand(1, 3, 8, 8) for name in ('X0', 'Y0')}"


@pytest.mark.parametrize("form", ["script", "npz", "json", "safetensors"])
def test_inputs_of_another_type_are_cast_with_one_warning_wherever_they_come_from(form: str, capsys: Captured):
    words = ["--data-loader-script", loader(IMAGES)]
    if form != "script":
        made = np.random.default_rng(1).random((1, 3, 8, 8))
        write_feeds(f"inputs.{form}", [{"X0": made, "Y0": made}] * 2)
        words = ["--load-inputs", f"inputs.{form}"]
    assert run("model.onnx", "--reference", "--onnxrt", *words, "--save-inputs", "fed.json") == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "cast" in line]
    assert len(told) == 1
    assert "'X0' from float64 to float32" in told[0]
    assert "'Y0' from float64 to float32" in told[0]
    assert {value.dtype.name for value in read_feeds("fed.json")[0].values()} == {"float32"}


def test_a_cast_that_would_give_other_values_concludes_nothing(capsys: Captured):
    save(
        model([helper.make_node("Neg", ["x"], ["y"])], [info("x", (3,), INT64)], [info("y", (3,), INT64)]),
        Path("ids.onnx"),
    )
    assert run("ids.onnx", "--onnxrt", "--data-loader-script", loader("{'x': np.array([0.0, 0.5, 1.0])}")) == 4
    told = capsys.readouterr().err
    assert "'x' is int64 in the model" in told
    assert "0.5 at [1]" in told


def test_shapes_that_nobody_chose_are_said_again_beside_the_failure(capsys: Captured, verdict: Path):
    nodes = [helper.make_node("Reshape", ["x", "to"], ["y"])]
    made = model(nodes, [info("x", ("N", 4))], [info("y", (2, 4))], [weight("to", 2, 4, dtype="int64")])
    save(made, Path("open.onnx"))
    assert run("open.onnx", "--onnxrt") == 1
    lines = capsys.readouterr()
    assert "--input-shapes 'x:[1,4]'" in lines.err.splitlines()[-1]
    assert "x:[1,4]" in json.loads(verdict.read_text())["hint"]
    assert run("open.onnx", "--onnxrt", "--input-shapes", "x:[2,4]") == 0
    assert "made up" not in capsys.readouterr().err


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
    assert "FAILED | 'out' of onnxrt differs from golden.json" in shown.splitlines()
    told = json.loads(verdict.read_text())
    assert (told["outcome"], told["engine"], told["stage"], told["kind"]) == ("fails", "onnxrt", "compare", "mismatch")
    assert told["outputs"] == ["out"]


def test_every_engine_is_compared_with_golden_values_the_first_one_too(capsys: Captured):
    golden()
    loads = ("--load-inputs", "inputs.json", "--load-outputs", "golden.json")
    assert run("variant.onnx", "--onnxrt", "--reference", *loads) == 1
    failed = "FAILED | 'out' of onnxrt differs from golden.json; 'out' of reference differs from golden.json"
    assert failed in capsys.readouterr().out.splitlines()


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
    assert "has 2 iterations, golden.json has 1: the others are not compared" in capsys.readouterr().err


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


def test_of_json_files_what_the_model_has_is_decoded_and_nothing_else(monkeypatch: pytest.MonkeyPatch):
    golden()
    feeds, results = read_feeds("inputs.json"), read_results("golden.json")
    more = {f"other{number}": np.zeros(1000) for number in range(50)}
    write_feeds("inputs.json", [{**feed, **more} for feed in feeds])
    write_results("golden.json", [RunnerResult("r", (Iteration({**results[0].iterations[0].outputs, **more}),))])
    decoded = decoded_from_now_on(monkeypatch)
    assert run("model.onnx", "--onnxrt", "--load-inputs", "inputs.json", "--load-outputs", "golden.json") == 0
    assert len(decoded) == 3  # two inputs and an output


def test_golden_values_that_change_during_the_run_are_no_verdict(capsys: Captured, monkeypatch: pytest.MonkeyPatch):
    golden("model.onnx")
    larger = RunnerResult("r", (Iteration({name: np.zeros((1, 3, 16, 16), np.float32) for name in ("x", "y")}),))
    write_results("golden.json", [larger])
    from biopsy.cli.run import command

    def interfering(*args: Any, **options: Any) -> Any:
        write_results("golden.json", [larger])
        return compare(*args, **options)

    compare = command.compare
    monkeypatch.setattr(command, "compare", interfering)
    assert run("model.onnx", "--onnxrt", "--onnx-outputs", "x", "y", "--load-outputs", "golden.json") == 4
    assert "golden.json was changed while it was read" in capsys.readouterr().err


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
    assert "--input-shapes 'x:[...]'" in capsys.readouterr().err
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
    assert run("model.onnx", "--onnxrt", "--save-outputs", "model.onnx/out.json") == 2
    assert capsys.readouterr().out == ""


def test_inputs_are_saved_even_if_the_engine_fails_on_them():
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    save(model([node], [info("x", (3,)), info("s", (2,), INT64)], [info("y", (None, None))]), Path("r.onnx"))
    write_feeds("in.json", [{"x": np.zeros(3, np.float32), "s": np.array([2, 2])}])
    assert run("r.onnx", "--onnxrt", "--load-inputs", "in.json", "--save-inputs", "used.json") == 1
    assert sorted(read_feeds("used.json")[0]) == ["s", "x"]


# Other figures


def test_a_limit_replaces_the_default_tolerances_and_may_be_given_per_output(capsys: Captured):
    golden()
    loads = ("--load-inputs", "inputs.json", "--load-outputs", "golden.json")
    assert run("variant.onnx", "--onnxrt", *loads, "--snr", "60") == 1
    assert "LIMIT     snr" in capsys.readouterr().out
    assert run("variant.onnx", "--onnxrt", *loads, "--cosine", "0.5") == 0
    assert re.search(r"passes: .*, cosine 0\.\d+ \(at least 0\.5\)", capsys.readouterr().out)
    assert run("variant.onnx", "--onnxrt", *loads, "--cosine", "0.99999", "out:0.5") == 0
    assert run("variant.onnx", "--onnxrt", *loads, "--cosine", "0.5", "--atol", "out:0") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--compare", "cosine_similarity", "--cosine-similarity-threshold", "0.5"),
        ("--compare-func", "distance_metrics", "--l2-tolerance", "100", "--cosine-similarity-threshold", "out:0.5"),
        ("--compare", "quality_metrics", "--psnr-tolerance", "0", "--snr-threshold", "0"),
        ("--compare", "simple", "--atol", "10"),
        ("--postprocess", "top-1,axis=0", "--compare", "indices"),
        ("--postprocess", "out:top-8", "--index-tolerance", "7"),
        ("--top-k", "3,axis=1", "--index-tolerance", "out:2"),
        ("--ulp", "1e10"),
    ],
    ids=" ".join,
)
def test_words_of_polygraphy_choose_what_is_compared(words: tuple[str, ...]):
    golden()
    loads = ("--load-inputs", "inputs.json", "--load-outputs", "golden.json")
    assert run("variant.onnx", "--onnxrt", *loads, *words) == 0
    assert run("model.onnx", "--onnxrt", *loads, *words) == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--compare", "perceptual_metrics"), "there is no such comparison; there are simple, l2"),
        (("--psnr", "loud"), "--psnr loud: 'loud' is not a number"),
        (("--ulp", "-1"), "it must be 0 or more"),
        (("--cosine", ":0.5"), "there is no name before the colon"),
        (("--top-k", "none"), "'none' is not a number of elements"),
        (("--noise-ratio", "0.5"), "it must be 1 or more"),
        (("--top-k", "1,axis=9"), "has no axis 9"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_limit_is_a_usage_error(words: tuple[str, ...], told: str, capsys: Captured):
    assert run("model.onnx", "--onnxrt", "--reference", *words) == 2
    assert told in capsys.readouterr().err


# A bug, or only rounding


def test_noise_tells_a_bug_from_rounding(capsys: Captured, verdict: Path):
    skip_without_it()
    save(demonstration_model(), Path("bug.onnx"))
    words = ("--compare-with", "noise", "--report", "report.json")
    assert run("bug.onnx", "--engine", "onnxrt:optimization=basic", "--onnxrt", *words) == 1
    shown = capsys.readouterr().out
    assert re.search(r"rounding: [\d.]+ times the rounding error of a plain run", shown)
    assert re.search(
        r"BUG: its error is [\d.e+]+ times the rounding error of a plain run \(at most 10 is rounding\)", shown
    )
    assert "FAILED | 'logits' of onnxrt is wrong by more than rounding" in shown.splitlines()
    assert json.loads(verdict.read_text())["kind"] == "beyond-rounding"
    good, bad = json.loads(Path("report.json").read_text())["run"]["noise"]
    assert (good["suspect"], good["passed"]) == ("onnxrt:optimization=basic", True)
    assert (bad["plain"], bad["exact"]) == ("onnxrt:optimization=none", "reference:float64")
    assert bad["outputs"][0]["ratio"] > 1000
    assert run("bug.onnx", "--onnxrt", *words, "--noise-ratio", "1e12") == 0


def test_noise_needs_an_exact_run(capsys: Captured, verdict: Path):
    node = helper.make_node("CDist", ["x", "x"], ["y"], domain="com.microsoft", metric="euclidean")
    made = model([node], [info("x")], [info("y")])
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    save(made, Path("distances.onnx"))
    assert run("distances.onnx", "--onnxrt", "--val-range", "[0,0]", "--compare-with", "noise") == 4
    assert "there is nothing to measure noise with: reference:float64 cannot" in capsys.readouterr().err
    assert json.loads(verdict.read_text())["outcome"] == "invalid"


# Report


def test_a_report_holds_what_was_shown(capsys: Captured):
    golden()
    loads = ("--load-inputs", "inputs.json", "--load-outputs", "golden.json", "--report", "report.json")
    assert run("variant.onnx", "--onnxrt", *loads, "--psnr", "30", "--validate") == 1
    shown = capsys.readouterr().out
    report = json.loads(Path("report.json").read_text())
    assert (report["biopsy_report"], report["command"], report["status"]) == (2, "run", 1)
    assert report["verdict"]["kind"] == "fails"
    assert report["verdict"]["text"] == "'out' of onnxrt differs from golden.json"
    assert report["model"]["path"] == "variant.onnx"
    ran = report["run"]
    (engine,) = ran["engines"]
    assert (engine["label"], engine["name"], engine["failure"]) == ("onnxrt", "onnxrt", None)
    assert engine["version"]
    assert len(engine["seconds"]) == 1
    (output,) = ran["comparisons"][0]["iterations"][0]["outputs"]
    worst = output["measured"]["worst_absolute"]
    assert f"at {worst['index']}: {worst['actual']:.7g}, expected {worst['expected']:.7g}" in shown
    assert output["limits"][0]["metric"] == "psnr"
    assert f"psnr {output['limits'][0]['value']:.7g} dB" in shown
    assert set(output["figures"]) == {"l2", "cosine", "psnr", "snr", "ulp"}
    assert ran["not_finite"] == []


def test_a_report_names_what_json_has_no_number_for_and_engines_that_fail():
    save(model([helper.make_node("Log", ["x"], ["y"])], [info("x", (2,))], [info("y", (2,))]), Path("log.onnx"))
    write_feeds("in.json", [{"x": np.array([-1, 0], np.float32)}])
    assert run("log.onnx", "--onnxrt", "--load-inputs", "in.json", "--validate", "--report", "r.json") == 1
    (odd,) = json.loads(Path("r.json").read_text())["run"]["not_finite"]
    assert (odd["engine"], odd["name"], odd["nan"], odd["value"]) == ("onnxrt", "y", 1, "nan")
    save(chain(1, ops=["Foo"]), Path("foo.onnx"))
    assert run("foo.onnx", "--onnxrt", "--report", "r.json") == 1
    report = json.loads(Path("r.json").read_text())
    assert report["run"]["engines"][0]["failure"]["stage"] == "load"
    assert run("model.onnx", "--onnxrt", "--report", "r.json") == 0
    assert json.loads(Path("r.json").read_text())["verdict"]["kind"] == "passes"


def test_a_report_that_cannot_be_written_is_told_before_anything_runs(capsys: Captured):
    assert run("model.onnx", "--onnxrt", "--report", "model.onnx/r.json") == 2
    assert capsys.readouterr().out == ""


# More outputs than memory


def wide(length: int = 8) -> None:
    """A chain of tensors of 40,000 bytes, the batch left open."""
    nodes = [helper.make_node("Tanh", [f"t{number}"], [f"t{number + 1}"]) for number in range(length)]
    nodes.append(helper.make_node("ReduceMean", [f"t{length}"], ["y"], axes=[1], keepdims=0))
    save(model(nodes, [info("t0", ("N", 100))], [info("y", ("N",))]), Path("wide.onnx"))


LARGE = ("--input-shapes", "t0:[100,100]", "--onnx-outputs", "mark", "all", "--record-memory", "100KB")


def test_outputs_are_recorded_in_batches_and_are_those_of_one_run(capsys: Captured):
    wide()
    assert run("wide.onnx", "--onnxrt", *LARGE, "--iters", "2", "--save-outputs", "some.safetensors", "-v") == 0
    shown = capsys.readouterr().out
    assert "  batch 4 of 4: 2 tensors, 160.0 kB" in shown
    assert "onnxrt  9 tensors recorded; 640.8 kB in 4 batches" in shown
    assert sorted(path.name for path in Path().iterdir() if "some" in path.name) == ["some.safetensors"]
    words = ("--input-shapes", "t0:[100,100]", "--onnx-outputs", "mark", "all", "--iters", "2")
    assert run("wide.onnx", "--onnxrt", *words, "--save-outputs", "all.safetensors") == 0
    (some,), (every,) = read_results("some.safetensors"), read_results("all.safetensors")
    assert re.fullmatch(r"onnxrt-runner-N0-.*", some.runner)
    for one, other in zip(some.iterations, every.iterations, strict=True):
        assert list(one.outputs) == list(other.outputs)
        assert all(np.array_equal(one.outputs[name], other.outputs[name]) for name in other.outputs)


def test_what_does_not_fit_into_memory_is_compared_as_well(capsys: Captured):
    wide()
    assert run("wide.onnx", "--onnxrt", *LARGE, "--save-outputs", "golden.safetensors") == 0
    loads = (*LARGE, "--load-outputs", "golden.safetensors", "--validate")
    assert run("wide.onnx", "--onnxrt", "--reference", *loads) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "PASSED | 27 outputs compared, all within the tolerances"
    assert run("wide.onnx", "--onnxrt", *LARGE, "--compare-with", "noise") == 0
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_a_recording_that_was_killed_goes_on(capsys: Captured):
    wide()
    words = ["run", "wide.onnx", "--onnxrt", *LARGE, "--save-outputs", "golden.safetensors"]
    code = (
        "import os, signal; from biopsy.tensors.recording import AppendableStore\n"
        "keep = AppendableStore.commit\n"
        "def commit(self):\n    keep(self)\n    if len(self.committed) > 4: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"AppendableStore.commit = commit\nfrom biopsy.cli.app import main; main({words!r})"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == -9
    assert not Path("golden.safetensors").exists()
    assert main([*words, "--seed", "2"]) == 2
    assert "it is not of the same inputs" in capsys.readouterr().err
    assert main(words) == 0
    assert "9 tensors recorded, 5 of them by an earlier run" in capsys.readouterr().out
    assert len(read_results("golden.safetensors")[0].iterations[0].outputs) == 9
    assert not list(Path().glob(".golden*"))


def test_batches_that_do_not_agree_are_told(capsys: Captured):
    skip_without_it()  # the fusion is wrong unless one of its tensors is marked: in one of the batches
    save(demonstration_model(), Path("bug.onnx"))
    words = ("--onnx-outputs", "mark", "all", "--save-outputs", "o.safetensors", "--record-memory", "500KB")
    assert run("bug.onnx", "--onnxrt", *words) == 0
    told = capsys.readouterr()
    assert "onnxrt: batches do not agree on 'logits', |difference| up to " in told.err
    assert "the value of the first batch is kept" in told.err
    assert run("bug.onnx", "--onnxrt", *words, "--atol", "100") == 0
    told = capsys.readouterr()
    assert "do not agree on 'logits'" in told.out  # worth no warning
    assert told.err == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--record-memory", "plenty"), "--record-memory plenty: not a valid size: write 500MB"),
        (("--record-memory", "0"), "--record-memory 0: not a valid size"),
        (("--record-memory", "1GB", "--save-outputs", "o.json"), "which only .safetensors can: not o.json"),
    ],
)
def test_a_memory_limit_that_cannot_be_kept_is_a_usage_error(words: tuple[str, ...], told: str, capsys: Captured):
    assert run("model.onnx", "--onnxrt", *words) == 2
    assert told in capsys.readouterr().err


def test_an_engine_that_fails_while_recording_leaves_nothing_behind(capsys: Captured):
    save(chain(1, ops=["Foo"]), Path("foo.onnx"))
    assert run("foo.onnx", "--onnxrt", "--record-memory", "1GB", "--save-outputs", "o.safetensors") == 1
    assert "onnxrt cannot load the model" in capsys.readouterr().err
    assert not [path for path in Path().iterdir() if "o.safetensors" in path.name]


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
    assert "FAILED | NaN or infinity in 'y'" in shown.splitlines()
    assert json.loads(verdict.read_text())["kind"] == "nan"


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
