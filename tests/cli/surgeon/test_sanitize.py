"""``biopsy surgeon sanitize`` as it is typed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from biopsy.cli.app import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Nodes in the wrong order, one of them dead; a Reshape by a computed shape; an external weight."""

    def ints(name: str, *values: int) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, np.int64), name)

    nodes = [
        helper.make_node("Reshape", ["m", "to"], ["y"]),
        helper.make_node("Mul", ["x", "w"], ["m"], name="mul0"),
        helper.make_node("Neg", ["m"], ["dead"]),
        helper.make_node("Shape", ["x"], ["dims"]),
        helper.make_node("Gather", ["dims", "zero"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["to"], axis=0),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4, 512])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", None])],
        [numpy_helper.from_array(np.full(512, 2, np.float32), "w"), ints("zero", 0), ints("rest", -1)],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "in").mkdir()
    onnx.save(made, tmp_path / "in" / "m.onnx", save_as_external_data=True, location="w.bin")
    return tmp_path / "in" / "m.onnx"


def sanitize(model: Path, out: Path, *options: str) -> int:
    return main(["surgeon", "sanitize", str(model), "-o", str(out), *options])


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]


def shapes(path: Path) -> dict[str, list]:
    graph = onnx.load(path, load_external_data=False).graph
    return {
        info.name: [dim.dim_value or dim.dim_param for dim in info.type.tensor_type.shape.dim]
        for info in (*graph.input, *graph.output, *graph.value_info)
    }


def test_everything_at_once_gives_a_small_static_model_with_the_same_results(
    model: Path, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "out.onnx"
    options = ["--override-input-shapes", "x:[2,4,512]", "--fold-constants", "--cleanup", "--toposort"]
    assert sanitize(model, out, *options) == 0
    said = capsys.readouterr().out
    assert "6 -> 2 nodes" in said
    assert "-1 Shape" in said
    assert operators(out) == ["Mul", "Reshape"]
    assert shapes(out) == {"x": [2, 4, 512], "m": [2, 4, 512], "y": [2, 2048]}
    x = np.random.default_rng(0).standard_normal((2, 4, 512)).astype(np.float32)
    found = ort.InferenceSession(out, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    np.testing.assert_array_equal(found, (x * 2).reshape(2, 2048))


def test_each_option_does_its_part_and_no_more(model: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out.onnx"
    assert sanitize(model, out) == 0
    assert operators(out) == ["Reshape", "Mul", "Neg", "Shape", "Gather", "Concat"]
    assert sanitize(model, out, "--cleanup") == 0
    assert operators(out) == ["Reshape", "Mul", "Shape", "Gather", "Concat"]
    assert sanitize(model, out, "--toposort") == 0
    assert operators(out) == ["Mul", "Neg", "Shape", "Gather", "Concat", "Reshape"]


def test_without_shape_inference_no_types_are_added(model: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out.onnx"
    assert sanitize(model, out, "--override-input-shapes", "x:[2,4,512]", "--no-shape-inference") == 0
    assert shapes(out) == {"x": [2, 4, 512], "y": [2, ""]}
    assert sanitize(model, out, "--toposort") == 0
    assert shapes(out)["m"] == ["N", 4, 512]


def test_shapes_can_come_from_one_run(model: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out.onnx"
    options = ["--toposort", "--override-input-shapes", "x:[3,4,512]", "--force-fallback-shape-inference"]
    assert sanitize(model, out, *options) == 0, capsys.readouterr().err
    assert shapes(out) == {
        "x": [3, 4, 512], "y": [3, 2048], "m": [3, 4, 512], "dead": [3, 4, 512], "dims": [3], "batch": [1], "to": [2]
    }  # fmt: skip


def test_a_run_that_fails_is_told_and_nothing_is_written(model: Path, tmp_path: Path, capsys) -> None:
    broken = onnx.load(model)
    broken.graph.node[1].op_type = "NoSuchOperator"
    onnx.save(broken, tmp_path / "broken.onnx")
    out = tmp_path / "out.onnx"
    assert sanitize(tmp_path / "broken.onnx", out, "--force-fallback-shape-inference") == 4
    assert "cannot be run once" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(("option", "beside"), [((), set()), (("--save-external-data",), {"out.onnx.data"})])
def test_weights_come_along(model: Path, tmp_path: Path, capsys, option, beside) -> None:
    out = tmp_path / "out.onnx"
    assert sanitize(model, out, "--toposort", *option) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out.onnx", *beside}
    ort.InferenceSession(out, providers=["CPUExecutionProvider"])


def test_a_symbol_with_two_sizes_is_warned_of(tmp_path: Path, capsys) -> None:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in "xzy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "z"], ["y"])], "g", infos[:2], infos[2:])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    assert sanitize(tmp_path / "m.onnx", tmp_path / "o.onnx", "--override-inputs", "x:[2,3]", "z:[1,3]") == 0
    assert "'N' was given two sizes" in capsys.readouterr().err


def test_a_cycle_is_status_4_and_names_a_node(tmp_path: Path, capsys) -> None:
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Add", ["x", "a"], ["a"], name="loop")], "g", [info], [])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    assert sanitize(tmp_path / "m.onnx", tmp_path / "o.onnx", "--toposort") == 4
    assert "'loop'" in capsys.readouterr().err
    assert not (tmp_path / "o.onnx").exists()


@pytest.mark.parametrize("shape", ["gone:[1]", "x", "x:1,2"])
def test_wrong_shapes_are_status_2(model: Path, tmp_path: Path, capsys, shape: str) -> None:
    assert sanitize(model, tmp_path / "o.onnx", "--override-input-shapes", shape) == 2


def test_the_two_ways_of_shape_inference_exclude_each_other(model: Path, tmp_path: Path, capsys) -> None:
    assert sanitize(model, tmp_path / "o.onnx", "--no-shape-inference", "--force-fallback-shape-inference") == 2
