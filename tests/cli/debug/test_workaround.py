"""``biopsy debug workaround`` from the command line: what it shows, writes and ends with."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from biopsy.cli.app import main
from biopsy.cli.arguments.engines import default_engine
from support.known_pieces import convolution_with_a_sum
from support.models import chain, save
from support.real_failures import normalization_of_columns, product_and_slopes_of_channels

BIN = Path(sys.executable).parent

WRONG = ("--engine", "fake:offset.Relu=1")
"""An engine that adds 1 to what each Relu computes, fused or not: only another spelling helps."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    save(chain(2), tmp_path / "model.onnx")
    return tmp_path


def workaround(*words: str) -> int:
    return main(["debug", "workaround", "model.onnx", "--hide-fail-output", *words])


def report() -> dict:
    return json.loads(Path("report.json").read_text())


@pytest.mark.slow
def test_the_best_changed_model_is_written_with_its_differences_and_the_line_that_shows_it(here: Path, capsys):
    words = ("-o", "fixed.onnx", "--report", "report.json", "--only", "mark", "spelling", "--nodes", "*")
    assert workaround(*WRONG, *words) == 0
    out = capsys.readouterr().out
    assert "spelling" in out and "no help    mark: " in out and "biopsy run fixed.onnx" in out
    fixed = onnx.load("fixed.onnx")
    assert not any(node.op_type == "Relu" for node in fixed.graph.node)
    assert fixed.graph.output == onnx.load("model.onnx").graph.output
    told = report()
    assert told["workaround"]["best"][0]["kind"] == "spelling"
    assert told["workaround"]["output"] == "fixed.onnx"
    assert told["verdict"]["workarounds"][0]["line"].startswith("biopsy run fixed.onnx")
    assert main(["run", "fixed.onnx", "--engine", "onnxrt:optimization=none", *WRONG]) == 0


@pytest.mark.slow
def test_a_check_that_cannot_learn_of_a_setting_is_told_of(here: Path, capsys):
    words = ("--only", "setting", "--nodes", "*", "--check", "sh", "-c", "exit 1", "{}")
    assert workaround(*WRONG, *words) == 4
    assert "the check has no {engine}" in capsys.readouterr().err


@pytest.mark.slow
def test_nothing_that_could_be_tried_is_no_conclusion(here: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    assert workaround(*WRONG, "--report", "report.json", "--only", "release") == 4
    assert "No change could be tried" in capsys.readouterr().out
    assert report()["verdict"]["kind"] == "unknown"


def test_nothing_that_helps_is_status_1_and_nothing_is_written(here: Path, capsys):
    status = workaround(*WRONG, "-o", "fixed.onnx", "--report", "report.json", "--only", "mark", "--nodes", "*")
    assert status == 1
    assert "Nothing that was tried makes the model right: 1 change" in capsys.readouterr().out
    assert sorted(path.name for path in here.iterdir()) == ["model.onnx", "report.json"]
    assert report()["workaround"]["best"] == []
    assert report()["verdict"]["kind"] == "fails"


@pytest.mark.slow
def test_a_limit_before_anything_was_found_is_status_5(here: Path, capsys):
    assert workaround(*WRONG, "--max-checks", "2", "--only", "mark", "--nodes", "*") == 5
    assert "stopped by --max-checks 2" in capsys.readouterr().err


def test_a_model_that_does_not_fail_is_status_3(here: Path, capsys):
    assert workaround("--engine", "onnxrt:optimization=none", "--reference-engine", "onnxrt:optimization=basic") == 3
    assert "nothing to mend" in capsys.readouterr().err


def test_without_an_engine_it_is_the_one_that_run_and_diagnose_take(here: Path, capsys):
    assert workaround("--only", "mark") == 3
    assert f"no engine is named: {default_engine(runs=True).text} is used" in capsys.readouterr().out


def test_a_check_that_looks_at_no_values_is_status_4(here: Path, capsys):
    assert workaround("--engine", "onnxrt", "--only", "mark", "--check", "test", "{}", "=", "{engine}") == 4
    assert "cannot tell what is right" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--check", "./check.sh", "{}"), "does not tell which engine must be used"),
        (("--engine", "onnxrt", "--check"), "no command after --check"),
        (("--engine", "onnxrt", "--only", "mark", "--skip", "mark"), "leave nothing to try"),
        (("--engine", "openvino", "--check", "biopsy", "run", "{}", "--onnxrt"), "the check runs no engine 'openvino'"),
        (("--engine", "onnxrt", "--piece", "none.onnx"), "none.onnx"),
    ],
)
def test_what_cannot_be_meant_is_status_2(here: Path, capsys, words: tuple[str, ...], told: str):
    assert workaround(*words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_inputs_tolerances_and_the_trusted_engine_are_those_of_the_check(here: Path, capsys):
    save(normalization_of_columns(), here / "model.onnx")
    x = np.random.default_rng(0).uniform(1, 2, (8, 8)).astype(np.float32)
    np.savez("inputs.npz", x=x)
    own = ("biopsy", "run", "{}", "--reference", "--onnxrt", "--load-inputs", "inputs.npz", "--atol", "1e-3")
    assert workaround("--report", "report.json", "--only", "setting", "--check", *own) == 0
    told = report()["workaround"]
    assert told["reference"] == "reference" and told["samples"] == 1
    assert told["best"][0]["engine"] == "onnxrt:disabled_optimizers=SimplifiedLayerNormFusion"


@pytest.mark.slow
def test_weights_in_other_files_are_referred_to_from_the_same_folder(here: Path):
    onnx.save(
        normalization_of_columns(32), "model.onnx", save_as_external_data=True, location="weights", size_threshold=64
    )
    assert workaround("--engine", "onnxrt", "-o", "fixed.onnx", "--only", "mark", "--nodes", "m") == 0
    assert sorted(path.name for path in here.iterdir()) == ["fixed.onnx", "model.onnx", "weights"]
    fixed = onnx.load("fixed.onnx", load_external_data=False)
    assert [entry.value for weight in fixed.graph.initializer for entry in weight.external_data][:1] == ["weights"]
    assert main(["run", "fixed.onnx", "--engine", "onnxrt:optimization=none", "--onnxrt"]) == 0


@pytest.mark.slow
def test_an_engine_that_cannot_compile_a_fusion_is_helped_where_its_settings_are_not(here: Path):
    save(product_and_slopes_of_channels(), here / "model.onnx")
    assert workaround("--engine", "openvino", "-o", "fixed.onnx", "--report", "report.json", "--skip", "release") == 0
    best = report()["workaround"]["best"]
    assert "setting" not in {one["kind"] for one in best}
    assert {"mark", "spelling"} & {one["kind"] for one in best}


@pytest.mark.slow
def test_another_release_mends_what_one_computes_wrongly(here: Path):
    save(convolution_with_a_sum(), here / "model.onnx")
    words = ("--engine", "onnxrt:release=1.20.1", "--report", "report.json", "--only", "setting", "release")
    assert workaround(*words) == 0
    told = report()["workaround"]
    assert [one["kind"] for one in told["best"]] == ["setting", "release"]
    assert told["best"][1]["engine"].startswith("onnxrt:release=1.")
