"""The inputs of the run that ``--force-fallback-shape-inference`` takes types and shapes from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from biopsy.cli.app import main
from biopsy.tensors.files import write_feeds
from support.models import info, model, save

Node = helper.make_node


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """m.onnx: where x is not zero; how many places that are depends on the values."""
    monkeypatch.chdir(tmp_path)
    nodes = [Node("Floor", ["x"], ["f"]), Node("NonZero", ["f"], ["y"])]
    save(model(nodes, [info("x", [4])], [info("y", [1, None], TensorProto.INT64)]), tmp_path / "m.onnx")
    return tmp_path


def places(*options: str, command: str = "sanitize") -> int:
    words = ["surgeon", command, "m.onnx", "-o", "o.onnx", "--force-fallback-shape-inference", *options]
    assert main(words) == 0
    return onnx.load("o.onnx").graph.output[0].type.tensor_type.shape.dim[1].dim_value


def test_the_range_of_random_values_can_be_chosen(folder: Path) -> None:
    assert places("--val-range", "[0,0]") == 0
    assert places("--val-range", "x:[1,1]", "--seed", "3") == 4


@pytest.mark.parametrize("command", ["sanitize", "extract"])
def test_inputs_can_be_loaded_and_a_script_can_make_them(folder: Path, command: str, capsys) -> None:
    more = ["--outputs", "y:auto"] if command == "extract" else []
    write_feeds(folder / "in.json", [{"x": np.array([0, 2, 2, 0], np.float32)}, {"x": np.ones(4, np.float32)}])
    assert places("--load-inputs", "in.json", *more, command=command) == 2
    script = "import numpy as np\ndef load_data():\n    yield {'x': np.array([1.0, 2.0, 3.0, 0.0])}\n"
    (folder / "load.py").write_text(script)
    assert places("--data-loader-script", "load.py", *more, command=command) == 3
    assert "'x'" in capsys.readouterr().err  # float64 was cast


def test_inputs_of_another_model_are_refused_and_nothing_is_written(folder: Path, capsys) -> None:
    write_feeds(folder / "in.json", [{"other": np.ones(4, np.float32)}])
    words = ["surgeon", "sanitize", "m.onnx", "-o", "o.onnx", "--force-fallback-shape-inference"]
    assert main([*words, "--load-inputs", "in.json"]) == 4
    assert "'other'" in capsys.readouterr().err
    assert not (folder / "o.onnx").exists()


def test_options_without_a_run_are_told(folder: Path, capsys) -> None:
    assert main(["surgeon", "sanitize", "m.onnx", "-o", "o.onnx", "--seed", "2"]) == 0
    assert "--seed has no effect without --force-fallback-shape-inference" in capsys.readouterr().err
    assert places("--iterations", "3") >= 0
    assert "--iterations has no effect" in capsys.readouterr().err
