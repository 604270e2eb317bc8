"""OpenVINO: devices, precisions, and what it really computes in."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from biopsy import errors
from biopsy.engines.base import ModelInput, Session
from biopsy.engines.registry import create
from support.models import chain, info, model

pytest.importorskip("openvino", reason="openvino is not installed: pip install 'biopsy[openvino]'")


def build(spec: str, made: onnx.ModelProto) -> Session:
    return create(spec).build(ModelInput(made.SerializeToString(), Path()))


def test_a_device_that_is_not_there_is_missing():
    with pytest.raises(errors.EngineMissing, match="no device 'NPU7' here, only CPU"):
        build("openvino:device=NPU7", chain(1))


def test_a_precision_that_is_not_honoured_is_refused():
    with pytest.raises(errors.EngineMissing, match="does not compute in f16 on CPU"):
        build("openvino:precision=f16", chain(1))


@pytest.mark.parametrize(("elem", "name"), [(10, "f16"), (11, "f64")])
def test_types_it_replaces_while_it_computes_are_told(elem: int, name: str):
    made = model([helper.make_node("Neg", ["x"], ["y"])], [info("x", (2,), elem)], [info("y", (2,), elem)])
    assert build("openvino", made).remarks == (f"OpenVINO computes the model's {name} tensors in f32",)


def test_float32_models_need_no_remark():
    assert build("openvino", chain(2)).remarks == ()


def test_a_name_that_the_engine_changes_while_it_reads_still_finds_its_input():
    node = helper.make_node("Dropout", ["x"], ["y"])
    made = model([node], [info("unused", (3,)), info("x", (2,))], [info("y", (2,))])
    found = build("openvino", made).run({"x": np.ones(2, np.float32), "unused": np.zeros(3, np.float32)})
    assert found["y"].tolist() == [1, 1]


def test_strings_are_refused_because_they_end_the_process():
    made = model([helper.make_node("Identity", ["x"], ["y"])], [info("x", (2,), 8)], [info("y", (2,), 8)])
    with pytest.raises(errors.EngineFailure, match="strings") as caught:
        build("openvino", made)
    assert caught.value.kind == "UnsupportedType"


def test_a_layer_that_does_not_compile_fails_at_build():
    weight = onnx.numpy_helper.from_array(np.ones((4, 6), np.float32), "w")
    slope = onnx.numpy_helper.from_array(np.ones((3, 1, 1), np.float32), "slope")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("PRelu", ["a", "slope"], ["y"])]
    made = model(nodes, [info("x", (1, 3, 5, 4))], [info("y", (1, 3, 5, 6))], [weight, slope])
    try:
        build("openvino", made)
    except errors.EngineFailure as failure:
        assert (failure.stage, failure.kind) == ("build", "RuntimeError")
        assert "src/inference/src/cpp" not in failure.message
    else:
        pytest.skip("this OpenVINO no longer has the bug")
