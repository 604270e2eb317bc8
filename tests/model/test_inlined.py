"""External weights written into a model, as a stream."""

from pathlib import Path

import onnx
import pytest
from onnx import helper

from biopsy import errors
from biopsy.model.weights_file import inlined_parts
from biopsy.processes.writing import write_whole
from support.models import info, model, weight


def external(folder: Path, made: onnx.ModelProto) -> tuple[bytes, onnx.ModelProto]:
    onnx.save(made, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=10)
    data = (folder / "m.onnx").read_bytes()
    return data, onnx.ModelProto.FromString(data)


def example() -> onnx.ModelProto:
    nodes = [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Mul", ["a", "small"], ["y"])]
    weights = [weight("w", *range(400), shape=(20, 20)), weight("small", 2.0)]
    made = model(nodes, [info("x", (20, 20))], [info("y", (20, 20))], weights)
    made.graph.doc_string = "kept"
    made.metadata_props.add(key="also", value="kept")
    return made


def test_the_written_model_has_its_weights_inside(tmp_path: Path) -> None:
    data, parsed = external(tmp_path, example())
    write_whole(tmp_path / "inside.onnx", inlined_parts(data, parsed, tmp_path))
    (tmp_path / "w.bin").unlink()
    found = onnx.load(tmp_path / "inside.onnx")
    onnx.checker.check_model(found, full_check=True)
    assert found == example()


def test_weights_in_attributes_are_found_too(tmp_path: Path) -> None:
    constant = helper.make_node("Constant", [], ["c"], value=weight("v", *range(400), shape=(20, 20)))
    made = model([constant, helper.make_node("Add", ["x", "c"], ["y"])], [info("x", (20, 20))], [info("y", (20, 20))])
    onnx.save(
        made, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=10,
        convert_attribute=True,
    )  # fmt: skip
    data = (tmp_path / "m.onnx").read_bytes()
    write_whole(tmp_path / "inside.onnx", inlined_parts(data, onnx.ModelProto.FromString(data), tmp_path))
    (tmp_path / "w.bin").unlink()
    found = onnx.load(tmp_path / "inside.onnx")
    value = onnx.numpy_helper.to_array(found.graph.node[0].attribute[0].t)
    assert value.sum() == sum(range(400))


def test_a_missing_file_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    data, parsed = external(tmp_path, example())
    (tmp_path / "w.bin").unlink()
    with pytest.raises(errors.ModelError, match=r"w\.bin"):
        write_whole(tmp_path / "inside.onnx", inlined_parts(data, parsed, tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
