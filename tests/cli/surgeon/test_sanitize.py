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


def result(path: Path, *outputs: str) -> list[np.ndarray]:
    x = np.random.default_rng(1).random((2, 4, 512), np.float32)
    return ort.InferenceSession(path).run(list(outputs) or None, {"x": x})


def test_an_unknown_input_is_told_with_those_that_exist(model: Path, tmp_path: Path, capsys) -> None:
    for option in ("--override-inputs", "--override-input-shapes"):
        assert sanitize(model, tmp_path / "o.onnx", option, "image:[1,4,512]") == 2
        told = capsys.readouterr().err
        assert "the model has no input 'image'" in told
        assert "its inputs are: 'x'" in told


@pytest.mark.parametrize(
    ("options", "outputs"),
    [
        (["--outputs", "m"], ["m"]),
        (["--outputs", "y", "m"], ["y", "m"]),
        (["--outputs", "mark", "all"], ["y", "m", "dead", "dims", "batch", "to"]),
        (["--outputs", "*", "--exclude-outputs", "d*", "to"], ["y", "m", "batch"]),
    ],
)
def test_outputs_are_marked_and_excluded(model: Path, tmp_path: Path, options: list[str], outputs: list[str]) -> None:
    assert sanitize(model, tmp_path / "o.onnx", "--toposort", *options) == 0
    made = onnx.load(tmp_path / "o.onnx")
    assert [info.name for info in made.graph.output] == outputs
    assert all(info.type.tensor_type.elem_type for info in made.graph.output)
    sanitize(model, tmp_path / "all.onnx", "--toposort", "--outputs", "mark", "all")
    for one, other in zip(result(tmp_path / "o.onnx"), result(tmp_path / "all.onnx", *outputs), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--outputs", "nope"], "no tensor 'nope'"),
        (["--exclude-outputs", "nope"], "the outputs are: 'y'"),
        (["--exclude-outputs", "*"], "no output is left"),
        (["--set-unbounded-dds-upper-bound", "nope:3"], "no node computes a tensor 'nope'"),
        (["--set-unbounded-dds-upper-bound", "m:many"], "'many' is not a whole number"),
        (["--fold-size-threshold", "16X"], "not a valid size"),
    ],
)
def test_what_does_not_fit_is_told_and_the_target_is_untouched(
    model: Path, tmp_path: Path, capsys, options: list[str], said: str
) -> None:
    (tmp_path / "o.onnx").write_bytes(b"mine")
    assert sanitize(model, tmp_path / "o.onnx", *options) in (2, 4)
    assert said in capsys.readouterr().err
    assert (tmp_path / "o.onnx").read_bytes() == b"mine"


def folding(tmp_path: Path) -> Path:
    """y = x * (Expand of 2 to 4096 elements, 16 KiB) + Neg(Abs(-1)), shaped by Shape(x)."""
    values = {"two": np.float32([2]), "big": np.array([4096], np.int64), "one": np.float32([-1])}
    nodes = [
        helper.make_node("Expand", ["two", "big"], ["wide"]),
        helper.make_node("Abs", ["one"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Mul", ["x", "wide"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["s"]),
        helper.make_node("Shape", ["x"], ["dims"]),
        helper.make_node("Reshape", ["s", "dims"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4096])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4096])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "f.onnx")
    return tmp_path / "f.onnx"


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ([], ["Mul", "Add"]),
        (["--num-passes", "0"], ["Expand", "Abs", "Neg", "Mul", "Add", "Shape", "Reshape"]),
        (["--fold-size-threshold", "16K"], ["Mul", "Add"]),
        (["--fold-size-threshold", "16383"], ["Expand", "Mul", "Add"]),
        (["--fold-size-threshold", "0"], ["Expand", "Abs", "Neg", "Mul", "Add"]),
        (["--no-fold-shapes"], ["Mul", "Add", "Shape", "Reshape"]),
        (["--partitioning", "basic", "--no-onnxruntime-shape-inference"], ["Mul", "Add"]),
        (["--partitioning", "recursive", "--no-per-pass-shape-inference"], ["Mul", "Add"]),
    ],
)
def test_options_say_what_is_folded_and_results_stay(tmp_path: Path, options: list[str], left: list[str]) -> None:
    path, made = folding(tmp_path), tmp_path / "o.onnx"
    assert sanitize(path, made, "--fold-constants", *options) == 0
    assert operators(made) == left
    x = {"x": np.random.default_rng(1).random((2, 4096), np.float32)}
    first, second = (ort.InferenceSession(one).run(None, x)[0] for one in (path, made))
    assert np.array_equal(first, second)


def test_options_of_folding_without_folding_are_told(model: Path, tmp_path: Path, capsys) -> None:
    assert sanitize(model, tmp_path / "o.onnx", "--num-passes", "2", "--no-fold-shapes") == 0
    told = capsys.readouterr().err
    assert "--num-passes has no effect without --fold-constants" in told
    assert "--no-fold-shapes has no effect without --fold-constants" in told


def test_a_threshold_says_what_leaves_the_model_file(model: Path, tmp_path: Path) -> None:
    for size, beside in (("2K", True), ("2049", False)):
        out = tmp_path / f"{size}.onnx"
        assert sanitize(model, out, "--save-external-data", f"{size}.bin", "--external-data-size-threshold", size) == 0
        weights = onnx.load(out, load_external_data=False).graph.initializer
        assert (next(one for one in weights if one.name == "w").data_location == 1) is beside


def test_missing_weights_may_be_ignored_and_nothing_is_computed_from_them(model: Path, tmp_path: Path, capsys) -> None:
    (model.parent / "w.bin").unlink()
    assert sanitize(model, tmp_path / "o.onnx", "--fold-constants") == 4
    assert sanitize(model, tmp_path / "o.onnx", "--fold-constants", "--toposort", "--ignore-external-data") == 0
    made = onnx.load(tmp_path / "o.onnx", load_external_data=False)
    assert [weight.external_data[0].value for weight in made.graph.initializer if weight.name == "w"] == ["w.bin"]


def selecting(tmp_path: Path) -> Path:
    """y = Range(0, as many as x has nonzero elements, 1), as it may be written for any model."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Shape", ["places"], ["dims"]),
        helper.make_node("Gather", ["dims", "one"], ["count"]),
        helper.make_node("Range", ["zero", "count", "one"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [None])],
        [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in (("zero", 0), ("one", 1))],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "d.onnx")
    return tmp_path / "d.onnx"


@pytest.mark.parametrize(
    ("bounds", "most", "inserted"), [(["5"], 5, 1), (["count:3", "5"], 3, 1), (["9"], 8, 1), (["places:0"], 8, 1)]
)
def test_sizes_that_are_computed_get_a_bound(
    tmp_path: Path, bounds: list[str], most: int, inserted: int, capsys
) -> None:
    path, made = selecting(tmp_path), tmp_path / "o.onnx"
    assert sanitize(path, made, "--set-unbounded-dds-upper-bound", *bounds) == 0
    assert operators(made).count("Min") == inserted
    for x in (np.ones(8, np.float32), np.eye(8, dtype=np.float32)[0]):
        (before,), (after,) = (ort.InferenceSession(one).run(None, {"x": x}) for one in (path, made))
        assert np.array_equal(after, before[:most])
    again = tmp_path / "again.onnx"
    assert sanitize(made, again, "--set-unbounded-dds-upper-bound", "7") == 0
    assert operators(again).count("Min") == inserted + ("places:0" in bounds)
