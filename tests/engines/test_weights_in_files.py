"""Weights that stand in files, as the reference evaluator takes them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.reference import mapped_weights
from biopsy.engines.registry import create
from biopsy.tensors.results import Array

WEIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
PACKED = helper.make_tensor("packed", TensorProto.INT4, [4], [1, -2, 3, -4])


def saved(folder: Path, *more: onnx.TensorProto) -> tuple[onnx.ModelProto, Path]:
    """A product with a weight, which is also an output, in a file beside the model."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    w = helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3])
    weights = [numpy_helper.from_array(WEIGHT, "w"), *more]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y, w], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    external_data_helper.convert_model_to_external_data(model, location="weights", size_threshold=0)
    path = folder / "model.onnx"
    onnx.save(model, path)
    return onnx.load(path, load_external_data=False), path


def test_they_are_views_of_the_file_and_no_longer_in_the_model(tmp_path: Path) -> None:
    model, _ = saved(tmp_path)
    weights = mapped_weights(model, tmp_path)
    assert not model.graph.initializer
    np.testing.assert_array_equal(weights["w"], WEIGHT)
    assert not weights["w"].flags.owndata


def test_who_writes_to_them_does_not_change_the_file(tmp_path: Path) -> None:
    model, _ = saved(tmp_path)
    before = (tmp_path / "weights").read_bytes()
    mapped_weights(model, tmp_path)["w"][:] = 7
    assert (tmp_path / "weights").read_bytes() == before


def test_those_of_packed_types_stay_in_the_model(tmp_path: Path) -> None:
    model, _ = saved(tmp_path, PACKED)
    assert list(mapped_weights(model, tmp_path)) == ["w"]
    assert [one.name for one in model.graph.initializer] == ["packed"]


def test_a_file_that_is_too_short_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model, _ = saved(tmp_path)
    (tmp_path / "weights").write_bytes(b"short")
    with pytest.raises(errors.ModelError, match="has only 5"):
        mapped_weights(model, tmp_path)
    assert [one.name for one in model.graph.initializer] == ["w"]


@pytest.mark.parametrize(("engine", "dtype"), [("reference", np.float32), ("reference:float64", np.float64)])
def test_an_evaluator_computes_with_them(tmp_path: Path, engine: str, dtype: type[np.floating]) -> None:
    _, path = saved(tmp_path, PACKED)
    session = create(engine).build(ModelInput(path.read_bytes(), tmp_path, path))
    x: Array = np.ones((2, 4), np.float32)
    for _ in range(2):
        found = session.run({"x": x})
        assert {value.dtype for value in found.values()} == {np.dtype(dtype)}
        np.testing.assert_allclose(found["y"], x @ WEIGHT, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(found["w"], WEIGHT)
