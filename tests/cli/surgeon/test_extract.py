"""``biopsy surgeon extract`` as it is typed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from biopsy import errors
from biopsy.cli.app import main
from biopsy.cli.surgeon.extract import parse_input, parse_output
from biopsy.model.extract import Wanted

NAMES = {"x", "while/cond:0", "a:b", "y"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x:[1,3,8,8]:float32", Wanted("x", (1, 3, 8, 8), 1)),
        ("x:auto:auto", Wanted("x")),
        ("x", Wanted("x")),
        ("x:[N,3]", Wanted("x", ("N", 3))),
        ("x:[]:bool", Wanted("x", (), 9)),
        ("while/cond:0", Wanted("while/cond:0")),
        ("while/cond:0:auto:int64", Wanted("while/cond:0", elem=7)),
        ("a:b:[2]:half", Wanted("a:b", (2,), 10)),
        ("new:[2]:double", Wanted("new", (2,), 11)),
    ],
)
def test_an_input_is_a_name_with_shape_and_type(text: str, expected: Wanted) -> None:
    assert parse_input(text, NAMES) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y:float32", Wanted("y", elem=1)),
        ("y:auto", Wanted("y")),
        ("y", Wanted("y")),
        ("y:auto:auto", Wanted("y")),
        ("while/cond:0", Wanted("while/cond:0")),
        ("while/cond:0:bool", Wanted("while/cond:0", elem=9)),
    ],
)
def test_an_output_is_a_name_with_a_type(text: str, expected: Wanted) -> None:
    assert parse_output(text, NAMES) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x:[1,3]:flaot32", "float32"),
        ("x:1,3:float32", "x:[1,3,224,224]"),
        ("gone", "x:auto:auto"),
        ("x:[1:float32", "shape"),
    ],
)
def test_what_is_no_input_is_refused_with_the_right_form(text: str, said: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        parse_input(text, NAMES)
    assert said in " ".join([caught.value.message, *caught.value.next_steps])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 512])

    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["m:0"]), helper.make_node("Relu", ["m:0"], ["y"])],
        "g", [info("x")], [info("y")], [numpy_helper.from_array(np.full(512, 2, np.float32), "w")],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = tmp_path / "in"
    folder.mkdir()
    onnx.save(made, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return folder / "m.onnx"


@pytest.mark.parametrize("option", [[], ["--save-external-data"], ["--save-external-data", "here.bin"]])
def test_a_part_written_elsewhere_has_the_weights_it_needs(model: Path, tmp_path: Path, capsys, option) -> None:
    out = tmp_path / "part.onnx"
    assert main(["surgeon", "extract", str(model), "-o", str(out), "--outputs", "m:0:auto", *option]) == 0
    assert "1 of 2 nodes" in capsys.readouterr().out
    session = ort.InferenceSession(out, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": np.ones((1, 512), np.float32)})[0], np.full((1, 512), 2))
    beside = {path.name for path in tmp_path.iterdir()} - {"in", "part.onnx"}
    assert beside == {0: set(), 1: {"part.onnx.data"}, 2: {"here.bin"}}[len(option)]


def test_a_part_that_needs_no_weights_does_not_look_for_them(model: Path, tmp_path: Path, capsys) -> None:
    (model.parent / "w.bin").unlink()
    out = tmp_path / "part.onnx"
    args = ["surgeon", "extract", str(model), "-o", str(out), "--inputs", "m:0:[1,512]:float32"]
    assert main(args) == 0
    assert [node.op_type for node in onnx.load(out).graph.node] == ["Relu"]


def test_missing_weights_are_told_and_nothing_is_written(model: Path, tmp_path: Path, capsys) -> None:
    (model.parent / "w.bin").unlink()
    assert main(["surgeon", "extract", str(model), "-o", str(tmp_path / "part.onnx")]) == 4
    assert "w.bin" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_weights_in_another_folder_are_found(model: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "data").mkdir()
    (model.parent / "w.bin").rename(tmp_path / "data" / "w.bin")
    out = tmp_path / "part.onnx"
    assert main(["surgeon", "extract", str(model), "-o", str(out), "--external-data-dir", str(tmp_path / "data")]) == 0
    ort.InferenceSession(out, providers=["CPUExecutionProvider"])


def test_an_unknown_tensor_is_status_2_with_the_nearest_names(model: Path, tmp_path: Path, capsys) -> None:
    assert main(["surgeon", "extract", str(model), "-o", str(tmp_path / "p.onnx"), "--outputs", "m:1:auto"]) == 2
    assert "m:0" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_told_first(model: Path, tmp_path: Path, capsys) -> None:
    assert main(["surgeon", "extract", str(model), "-o", str(model / "p.onnx")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def shape_of(info: onnx.ValueInfoProto) -> list[object]:
    return [dim.dim_value or dim.dim_param for dim in info.type.tensor_type.shape.dim]


@pytest.fixture
def untold(tmp_path: Path) -> Path:
    """u.onnx: h = Hidden(x[N, 4]), y = Relu(h); Hidden is a function of the model, so nothing declares h."""
    node = helper.make_node("Hidden", ["x"], ["h"], domain="com.microsoft.hidden")
    body = helper.make_function(
        "com.microsoft.hidden", "Hidden", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    graph = helper.make_graph(
        [node, helper.make_node("Relu", ["h"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft.hidden", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, functions=[body], ir_version=9), tmp_path / "u.onnx")
    return tmp_path / "u.onnx"


def test_a_run_tells_types_and_shapes_with_the_inputs_that_are_asked_for(untold: Path, tmp_path: Path) -> None:
    words = ["surgeon", "extract", str(untold), "-o", str(tmp_path / "p.onnx"), "--inputs", "h:auto:auto"]
    assert main([*words, "--force-fallback-shape-inference", "--model-input-shapes", "x:[3,4]"]) == 0
    assert shape_of(onnx.load(tmp_path / "p.onnx").graph.input[0]) == [3, 4]
    assert main([*words, "--force-fallback-shape-inference"]) == 0
    assert shape_of(onnx.load(tmp_path / "p.onnx").graph.input[0]) == [1, 4]


def test_without_inference_a_run_is_made_and_told(untold: Path, tmp_path: Path, capsys) -> None:
    words = ["surgeon", "extract", str(untold), "-o", str(tmp_path / "p.onnx"), "--inputs", "h:auto:auto"]
    assert main([*words, "--no-shape-inference"]) == 0
    assert "the type of 'h' is taken from a run of the model: its dimensions are fixed" in capsys.readouterr().err
    assert shape_of(onnx.load(tmp_path / "p.onnx").graph.input[0]) == [1, 4]
    assert main([*words, "--no-onnxruntime-shape-inference"]) == 0


def test_a_part_may_take_the_place_of_its_model(untold: Path) -> None:
    assert main(["surgeon", "extract", str(untold), "-o", str(untold), "--inputs", "h:[2,4]:float32"]) == 0
    assert [node.op_type for node in onnx.load(untold).graph.node] == ["Relu"]
