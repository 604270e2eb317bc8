"""``biopsy debug build`` from the command line: builds vary, are checked, recorded and sorted. Engines are real."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from biopsy.cli.app import main
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from support.models import chain, info, model, save

BIN = Path(sys.executable).parent


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    save(chain(3, ("Relu", "Neg")), tmp_path / "model.onnx")
    return tmp_path


def build(*words: str) -> int:
    return main(["debug", "build", "model.onnx", *words])


def script(code: str) -> tuple[str, ...]:
    """A check in Python that gets what was built and the engine; ``n`` is how often it was run before."""
    Path("check.py").write_text(
        "import os, pathlib, sys\n"
        "n = os.path.getsize('count') if os.path.exists('count') else 0\n"
        "open('count', 'ab').write(b'.')\n"
        f"{code}\n"
    )
    return (sys.executable, "check.py", "{}", "{engine}")


def names_in(folder: str) -> list[str]:
    return sorted(path.name.split("_N")[1] for path in Path(folder).glob("*"))


def records(folder: str = "polygraphy_artifacts") -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in Path(folder).rglob("*.json")]
    return sorted(found, key=lambda record: record["iteration"])


def bf16_is_real() -> bool:
    pytest.importorskip("openvino", reason="openvino is not installed: pip install 'biopsy[openvino]'")
    data = model_of_one_matmul().SerializeToString()
    session = create("openvino:precision=bf16").build(ModelInput(data, Path()))
    return "bfloat16" in {layer.precision for layer in session.layers()}


def model_of_one_matmul() -> Any:
    values = np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["t"], name="product"),
        helper.make_node("Relu", ["t"], ["y"], name="bend"),
    ]
    weight = numpy_helper.from_array(values, "w")
    return model(nodes, [info("x", (64, 64))], [info("y", (64, 64))], [weight])


@pytest.mark.slow
def test_precision_is_named_where_it_decides_which_builds_are_bad(here: Path, capsys):
    if not bf16_is_real():
        pytest.skip("OpenVINO does not compute in bf16 on this processor")
    save(model_of_one_matmul(), here / "model.onnx")
    assert main(["run", "model.onnx", "--onnxrt", "--save-inputs", "in.json", "--save-outputs", "golden.json"]) == 0
    check = ("biopsy", "run", "{}", "--openvino", "--load-inputs", "in.json", "--load-outputs", "golden.json")
    files = ("--save-tactics", "replay.json", "--artifacts", "replay.json", "--art-dir", "replays")
    vary = ("--vary", "INFERENCE_PRECISION_HINT=f32,bf16", "--until", "20")
    assert build("--openvino", *vary, *files, "--check", *check, "--atol", "1e-3", "--rtol", "1e-3") == 0
    shown = capsys.readouterr().out
    assert "20 builds   10 good · 10 bad" in shown
    assert "precision=bf16 explains it" in shown
    assert (len(names_in("replays/good")), len(names_in("replays/bad"))) == (10, 10)
    assert not Path("polygraphy_debug.blob").exists()
    assert main(["debug", "diff-tactics", "--dir", "replays", "--report", "report.json"]) == 0
    assert "\n  1  precision=bf16\n" in capsys.readouterr().out
    first = json.loads(Path("report.json").read_text())["builds"]["difference"]["groups"][0]
    assert (first["bad"], first["good"]) == (10, 0)
    assert {"where": "product", "kind": "precision", "value": "bfloat16"} in first["choices"]


@pytest.mark.slow
def test_a_flaky_check_that_depends_on_no_choice_does_not_decide(here: Path, capsys):
    outcomes = [0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1]  # even and odd numbers fail equally often
    vary = ("--vary", "threads=1,2", "--seed", "1")
    assert build("--onnxrt", "--until", "12", *vary, "--check", *script(f"sys.exit({outcomes}[n])")) == 0
    shown = capsys.readouterr().out
    assert "12 builds   6 good · 6 bad" in shown
    assert "The evidence does not decide" in shown
    assert "explains it" not in shown


def test_the_general_form_of_the_seeds(here: Path, capsys):
    Path("log.txt").touch()
    code = "assert pathlib.Path(sys.argv[1]).exists(); pathlib.Path('log.txt').write_text(sys.argv[1]); sys.exit(n % 2)"
    program, path, *_ = script(code)
    files = ("--artifacts", "log.txt", "replay.json", "--save-tactics", "replay.json")
    assert build(*files, "--onnxrt", "--until", "4", "--check", program, path, "polygraphy_debug.engine") == 0
    assert names_in("polygraphy_artifacts/good") == ["0.json", "0.txt", "2.json", "2.txt"]
    assert names_in("polygraphy_artifacts/bad") == ["1.json", "1.txt", "3.json", "3.txt"]
    assert main(["debug", "diff-tactics", "--dir", "polygraphy_artifacts"]) == 0
    assert "good and bad builds are alike in all that is recorded" in capsys.readouterr().out


def test_without_an_engine_one_that_works_here_is_taken_and_said(here: Path, capsys):
    assert build("--until", "1", "--check", "build") == 0
    said, plan = capsys.readouterr().out.splitlines()[:2]
    engine = plan.split()[3].rstrip(",")
    assert engine in {"trt", "onnxrt"}
    assert said == f"no engine is named: {engine} is used"


def test_without_an_engine_that_of_the_check_is_taken_and_said(here: Path, capsys):
    assert build("--until", "1", "--check", "biopsy", "run", "{}", "--onnxrt") == 0
    assert capsys.readouterr().out.startswith("no engine is named: onnxrt is used, as in the check\n")


def test_where_every_build_succeeds_and_building_is_the_check_that_is_the_answer(here: Path, capsys):
    assert build("--onnxrt", "--until", "2", "--check", "build") == 0
    shown = capsys.readouterr().out
    assert shown.endswith("\nbuilt 2 of 2 times\n")
    assert "does not decide" not in shown


def test_a_record_tells_settings_and_layers_by_the_models_nodes_and_the_outcome(here: Path, capsys):
    vary = ("--vary", "optimization=none,all", "--vary", "env.SOME_VARIABLE=a,b")
    words = (*vary, "--save-tactics", "t.json")
    assert build("--engine", "onnxrt:threads=1", *words, "--until", "4", "--check", *script("sys.exit(n == 3)")) == 0
    found = records()
    assert [record["outcome"] for record in found] == ["good", "good", "good", "bad"]
    told = [(record["settings"], record["environment"]) for record in found]
    assert all(settings["threads"] == "1" for settings, _ in told)
    varied = [(settings["optimization"], environment["SOME_VARIABLE"]) for settings, environment in told]
    assert sorted(varied) == [("all", "a"), ("all", "b"), ("none", "a"), ("none", "b")]
    assert {record["block"] for record in found} == {0} and isinstance(found[0]["seed"], int)
    assert found[0]["varied"] == ["optimization", "env.SOME_VARIABLE"]
    assert [layer["nodes"] for layer in found[0]["layers"]] == [["n0"], ["n1"], ["n2"]]
    assert (found[0]["engine"], found[0]["device"]) == ("onnxrt", "CPU")


@pytest.mark.slow
def test_the_check_runs_in_the_environment_of_the_build(here: Path, capsys):
    code = "sys.exit(os.environ['SOME_VARIABLE'] == 'b' or os.environ['BIOPSY_ENGINE'] != sys.argv[2])"
    vary = ("--vary", "env.SOME_VARIABLE=a,b", "--until", "8")
    assert build("--onnxrt", *vary, "--check", *script(code)) == 0
    shown = capsys.readouterr().out
    assert "env.SOME_VARIABLE=b explains it" in shown
    assert "SOME_VARIABLE" not in os.environ


def test_until_bad_ends_with_the_first_bad_build_and_leaves_it_if_asked(here: Path, capsys):
    words = ("--onnxrt", "--until", "bad", "--no-remove-intermediate", "--iter-artifact", "mine.ort")
    assert build(*words, "--check", *script("sys.exit(n == 2)")) == 0
    assert "3 builds   2 good · 1 bad" in capsys.readouterr().out
    assert main(["run", "mine.ort", "--onnxrt"]) == 0


def test_a_build_that_fails_or_crashes_is_neither_good_nor_bad_and_without_others_nothing_is_concluded(here, capsys):
    for fault in ("refuse", "crash"):
        assert build("--engine", f"fake:{fault}.Neg=build", "--until", "2", "--check", *script("sys.exit(0)")) == 4
        shown = capsys.readouterr()
        assert "2 builds   0 good · 0 bad · 2 cannot say" in shown.out
        assert "nothing was concluded: none of the builds passed or failed (2 cannot say)" in shown.err
        assert not Path("count").exists()  # nothing was there to be checked


def test_a_build_that_fails_is_bad_if_building_is_what_is_checked(here: Path, capsys):
    words = ("--engine", "fake", "--vary", "crash.Neg=build,run", "--until", "8")
    assert build(*words, "--check", "build") == 0
    shown = capsys.readouterr().out
    assert "8 builds   4 good · 4 bad" in shown
    assert re.search(r"fails      build \d: it does not build: SIGSEGV", shown)


def test_an_engine_that_saves_nothing_gives_the_check_the_model_and_its_settings(here: Path, capsys):
    words = ("--engine", "fake", "--vary", "offset.Neg=0,1", "--until", "10", "--hide-fail-output")
    check = ("biopsy", "run", "{}", "--engine", "reference", "--engine", "{engine}")
    assert build(*words, "--check", *check) == 0
    shown = capsys.readouterr().out
    assert "fake saves nothing: the check is given the model itself" in shown
    assert "offset.Neg=1 explains it" in shown


@pytest.mark.slow
def test_the_order_is_drawn_by_lot_and_always_the_same_for_a_seed(here: Path, capsys):
    drawn = []
    for attempt in range(2):
        words = ("--vary", "threads=1,2,3", "--seed", "5", "--save-tactics", "t.json", "--art-dir", f"a{attempt}")
        assert build("--onnxrt", *words, "--until", "4", "--check", *script("sys.exit(0)")) == 0
        drawn.append([record["settings"]["threads"] for record in records(f"a{attempt}")])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 1


def test_tensorrt_really_builds_without_a_gpu(here: Path, capsys):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed: pip install 'biopsy[tensorrt]'")
    files = ("--save-tactics", "replay.json", "--artifacts", "polygraphy_debug.engine")
    assert build("--trt", "--until", "3", *files, "--check", "test", "-s", "polygraphy_debug.engine") == 0
    shown = capsys.readouterr().out
    assert "3 builds   3 good · 0 bad" in shown
    assert "trt does not tell its layers: the records hold its settings only" in shown
    assert names_in("polygraphy_artifacts/good") == ["0.engine", "0.json", "1.engine", "1.json", "2.engine", "2.json"]


def test_without_a_check_a_person_is_asked_about_each_build(here: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    answers = iter(["p", "u", "f", "s"])
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    assert build("--onnxrt", "--until", "3", "--save-tactics", "t.json") == 0
    assert "3 builds   1 good · 1 bad · 1 cannot say" in capsys.readouterr().out
    assert [record["outcome"] for record in records()] == ["good", "bad", "other"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--vary", "optimization=some"), "optimization=some"),
        (("--vary", "precision"), "it must be a key and its values"),
        (("--vary", "threads=1", "--vary", "threads=2"), "it is given twice"),
        (("--vary", "nothing=1,2"), "has no option 'nothing'"),
        (("--iter-artifact", "model.onnx"), "it would be lost"),
        (("--openvino",), "one engine only"),
    ],
)
def test_what_cannot_be_built_is_wrong_usage(here: Path, words: tuple[str, ...], told: str, capsys):
    assert build("--onnxrt", *words, "--check", "build") == 2
    assert told in capsys.readouterr().err


def test_a_check_that_cannot_be_run_ends_with_status_4(here: Path, capsys):
    assert build("--onnxrt", "--until", "2", "--check", "./nothing-of-this-name", "{}") == 4


@pytest.mark.parametrize("time", ["-1", "0", "nan", "soon"])
def test_a_time_limit_of_builds_that_is_none_is_refused(here: Path, capsys: pytest.CaptureFixture[str], time: str):
    assert build("--onnxrt", "--build-timeout", time, "--check", "true") == 2
    assert "--build-timeout" in capsys.readouterr().err


@pytest.mark.parametrize("check", ["true", "false"])
def test_where_all_builds_are_alike_no_comparison_is_proposed_and_one_ends_well(
    here: Path, capsys: pytest.CaptureFixture[str], check: str
):
    words = ["--onnxrt", "--until", "2", "--save-tactics", "r.json", "--artifacts", "r.json", "--art-dir", "replays"]
    assert build(*words, "--check", check) == 0
    shown = capsys.readouterr().out
    assert "diff-tactics" not in shown
    assert f"Next       {'--until bad' if check == 'true' else '--vary KEY=V1,V2'}" in shown
    rate = "2/2 | Pass Rate: 100.0%" if check == "true" else "0/2 | Pass Rate: 0.0%"
    assert f"Finished 2 iteration(s) | Passed: {rate}" in shown.splitlines()
    assert main(["debug", "diff-tactics", "--dir", "replays"]) == 0
    lacking = "bad" if check == "true" else "good"
    assert f"there are no {lacking} builds to compare with" in capsys.readouterr().out


def test_where_builds_differ_the_next_line_records_or_compares_them(here: Path, capsys: pytest.CaptureFixture[str]):
    check = script("sys.exit(n % 2)")
    assert build("--onnxrt", "--until", "2", "--check", *check) == 0
    recorded = capsys.readouterr().out.splitlines()[-1].split()
    assert recorded[:5] == ["biopsy", "debug", "build", "--save-tactics", "replay.json"]
    assert build(*recorded[3:5], "--onnxrt", "--until", "2", "--check", *check) == 0
    assert capsys.readouterr().out.endswith("biopsy debug diff-tactics --dir polygraphy_artifacts\n")


def test_settings_of_tensorrt_without_its_name_are_tensorrts(here: Path, capsys: pytest.CaptureFixture[str]):
    assert build("--builder-optimization-level", "7", "--until", "1", "--check", "build") == 2
    assert "a level from 0 to 5" in capsys.readouterr().err
    assert build("--fp16", "--onnxrt", "--until", "1", "--check", "build") == 2
    assert "--fp16 is a setting of --trt" in capsys.readouterr().err
    build("--builder-optimization-level", "3", "--until", "1", "--check", "build")
    shown = capsys.readouterr()
    assert "trt:optimization=3" in shown.out + shown.err
