from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from biopsy.reduction.passes.weights import sizes
from support.models import chain, info, model, weight
from support.passes import assert_valid, run_pass, session


def dims(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def matmul(rows: int, inner: int, columns: int) -> onnx.ModelProto:
    values = np.arange(inner * columns, dtype=np.float32).reshape(inner, columns)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    weights = [numpy_helper.from_array(values, "w")]
    return model([node], [info("x", (rows, inner))], [info("y", (rows, columns))], weights)


def test_every_size_becomes_one_where_none_matters() -> None:
    run = run_pass(sizes, matmul(8, 512, 256))
    assert dims(run.model.graph.input[0]) == dims(run.model.graph.output[0]) == [1, 1]
    assert numpy_helper.to_array(run.model.graph.initializer[0]).tolist() == [[0.0]]
    assert len(run.tried) == 3
    assert_valid(run.model)


def test_a_size_that_must_be_large_is_halved_as_far_as_possible() -> None:
    made, before = matmul(8, 512, 256), None
    while made != before:
        before = made
        made = run_pass(sizes, made, lambda candidate: dims(candidate.graph.input[0])[1] > 100).model
    assert dims(made.graph.input[0]) == [1, 128]
    assert_valid(made)


def test_convolutions_stay_consistent_with_their_groups_and_normalizations() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], group=32, pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "b", "b", "b", "v"], ["y"]),
    ]
    weights = [
        weight("w", *[1.0] * 288, shape=(32, 1, 3, 3)),
        weight("b", *[1.0] * 32),
        weight("v", *[2.0] * 32),
    ]
    made = model(nodes, [info("x", (2, 32, 24, 24))], [info("y", (2, 32, 24, 24))], weights)
    result = run_pass(sizes, made).model
    assert max(dims(result.graph.input[0])) < 4
    assert_valid(result)
    session(result).run(None, {"x": np.zeros(dims(result.graph.input[0]), np.float32)})


def heads() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Reshape", ["m", "to"], ["r"]),
        helper.make_node("Transpose", ["r"], ["y"], perm=[0, 2, 1, 3]),
    ]
    weights = [
        numpy_helper.from_array(np.ones((768, 768), np.float32), "w"),
        weight("to", 1, 128, 12, 64, dtype="int64"),
    ]
    return model(nodes, [info("x", (1, 128, 768))], [info("y", (1, 12, 128, 64))], weights)


def test_a_product_of_sizes_follows_its_factors() -> None:
    made, before = heads(), None
    while made != before:
        before, made = made, run_pass(sizes, made).model
    assert dims(made.graph.input[0]) == [1, 1, 1]
    assert made.ByteSize() < 1000
    assert_valid(made)
    session(made).run(None, {"x": np.ones((1, 1, 1), np.float32)})


def test_symbols_stay_symbols() -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"])], [info("x", ("N", 8))], [info("y", ("N", 8))])
    result = run_pass(sizes, made).model
    assert dims(result.graph.input[0]) == ["N", 1]


def test_external_weights_are_not_read(tmp_path: Path) -> None:
    onnx.save(matmul(2, 64, 64), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    result = run_pass(sizes, onnx.load(tmp_path / "m.onnx", load_external_data=False)).model
    assert not result.graph.initializer[0].external_data
    assert_valid(result)


def test_models_without_sizes_are_left_alone() -> None:
    assert run_pass(sizes, onnx.ModelProto()).tried == []
    made = chain(1)
    del made.graph.input[0].type.tensor_type.shape.dim[:]
    assert run_pass(sizes, made).tried == []
