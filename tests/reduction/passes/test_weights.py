from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from biopsy.reduction.passes.weights import weights, weights_left
from support.models import INT64, chain, info, model, weight
from support.passes import assert_valid, run_pass


def adding(*values: np.ndarray) -> onnx.ModelProto:
    nodes = [helper.make_node("Add", [f"t{i}", f"w{i}"], [f"t{i + 1}"]) for i in range(len(values))]
    made = [numpy_helper.from_array(value, f"w{i}") for i, value in enumerate(values)]
    return model(nodes, [info("t0", (4,))], [info(f"t{len(values)}", (4,))], made)


def values(made: onnx.ModelProto) -> dict[str, list[float]]:
    return {entry.name: numpy_helper.to_array(entry).tolist() for entry in made.graph.initializer}


def random(size: int = 4) -> np.ndarray:
    return np.random.default_rng(3).normal(size=size).astype(np.float32)


def test_all_weights_become_ones_at_once_and_are_then_left_alone() -> None:
    run = run_pass(weights, adding(random(), random(), random()))
    assert values(run.model) == {"w0": [1.0] * 4, "w1": [1.0] * 4, "w2": [1.0] * 4}
    assert len(run.tried) == 1
    assert run_pass(weights, run.model).tried == []
    assert weights_left(run.model) == ()
    assert_valid(run.model)


def test_weights_that_must_vary_get_small_values() -> None:
    def varies(candidate: onnx.ModelProto) -> bool:
        return len(set(values(candidate)["w1"])) > 1

    run = run_pass(weights, adding(random(), random(), random()), varies)
    found = values(run.model)
    assert found["w0"] == found["w2"] == [1.0] * 4
    assert all(abs(value) <= 1 and value * 8 == int(value * 8) for value in found["w1"])
    assert run_pass(weights, run.model, varies).model == run.model


def test_weights_that_the_failure_needs_stay_and_are_reported() -> None:
    original = adding(random(), random())
    run = run_pass(weights, original, lambda candidate: values(candidate)["w0"] == values(original)["w0"])
    assert values(run.model) == {**values(original), "w1": [1.0] * 4}
    (remark,) = weights_left(run.model)
    assert "w0" in remark
    assert "w1" not in remark


@pytest.mark.parametrize(
    "dtype", ["float16", "float64", *(name for name in ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float4_e2m1fn"))],
)  # fmt: skip
def test_one_is_one_in_every_type(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    tensor = numpy_helper.from_array(np.array([0.5, 0.5, 0.5], kind), "w")
    made = chain(1)
    made.graph.initializer.append(tensor)
    result = run_pass(weights, made).model.graph.initializer[0]
    assert numpy_helper.to_array(result).astype(np.float32).tolist() == [1.0] * 3


def test_integers_are_left_alone() -> None:
    made = chain(1)
    made.graph.initializer.append(weight("axes", 0, 1, dtype="int64"))
    assert run_pass(weights, made).tried == []


def test_constants_in_bodies_and_nodes_are_filled() -> None:
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(random(), "secret"))
    made = model([constant, helper.make_node("Add", ["x", "c"], ["y"])], [info("x", (4,))], [info("y", (4,))])
    result = run_pass(weights, made).model
    assert numpy_helper.to_array(result.graph.node[0].attribute[0].t).tolist() == [1.0] * 4


def test_external_weights_become_values_inside_without_being_read(tmp_path: Path) -> None:
    made = adding(random(400))
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    result = run_pass(weights, onnx.load(tmp_path / "m.onnx", load_external_data=False)).model
    assert not result.graph.initializer[0].external_data
    assert values(result) == {"w0": [1.0] * 400}


def test_a_table_of_integers_stays_and_is_reported() -> None:
    made = model(
        [helper.make_node("Gather", ["tokens", "i"], ["y"])],
        [info("i", (1,), INT64)],
        [info("y", (1,), INT64)],
        [weight("tokens", *range(40), dtype="int64")],
    )
    assert [line for line in weights_left(made) if "tokens" in line and "never replaced" in line]
