"""Which layers an engine computes wrongly, of models with all that models have.

Wrong layers are made by the fake engine; real faults are those of onnxruntime and OpenVINO.
"""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from biopsy import errors, events
from biopsy.engines.runner import Inputs
from support import control_flow
from support.examinations import growing, labels
from support.models import INT64, info, model, weight


def test_a_suspect_that_is_not_there_is_told_before_anything_is_recorded(examine) -> None:
    told: list[events.Event] = []
    with pytest.raises(errors.EngineMissing):
        examine(growing(3), "nobody", listener=told.append)
    assert told == []


def test_where_the_reference_is_the_wrong_one_the_suspect_is_not_blamed(examine) -> None:
    found = examine(growing(6), "onnxrt:optimization=none", reference="fake:scale.n2=1.5")
    assert labels(found) == ["Neg 'n2'"] and found.is_of_model
    both = examine(growing(6), "fake:scale.n4=1.5", reference="fake:scale.n2=1.5")
    assert {layer.node.name: layer.is_of_model for layer in both.layers if layer.is_suspect} == {
        "n2": True,
        "n4": False,
    }
    assert not both.is_of_model


@pytest.mark.parametrize(
    ("made", "layer"),
    [
        (control_flow.branching(), "if"),
        pytest.param(control_flow.looping(), "loop", marks=pytest.mark.slow),
        (control_flow.scanning(), "scan"),
    ],
)
def test_a_node_with_bodies_is_one_layer(examine, made: onnx.ModelProto, layer: str) -> None:
    found = examine(made, f"fake:scale.{layer}=1.5")
    assert [one.labels[0].split("'")[1] for one in found.suspects] == [layer]


def dynamic() -> onnx.ModelProto:
    """A batch of any size, reshaped by what Shape says; an initializer and a Constant as outputs; no names."""
    minus = numpy_helper.from_array(np.array([-1], np.int64))
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["b"]),
        helper.make_node("Unsqueeze", ["b", "axis"], ["b1"]),
        helper.make_node("Constant", [], ["minus"], value=minus),
        helper.make_node("Concat", ["b1", "minus"], ["sh"], axis=0),
        helper.make_node("Reshape", ["x", "sh"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["y"]),
        helper.make_node("Softmax", ["y"], ["z"]),
    ]
    weights = [
        weight("zero", 0, dtype="int64", shape=()),
        weight("axis", 0, dtype="int64", shape=(1,)),
        weight("w", *range(24), shape=(6, 4)),
    ]
    outputs = [info("z", ("N", 4)), info("w", (6, 4)), info("minus", (1,), INT64)]
    return model(nodes, [info("x", ("N", 2, 3))], outputs, weights)


@pytest.mark.slow
def test_dynamic_shapes_nameless_nodes_and_several_samples_of_different_sizes(examine) -> None:
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.uniform(size=(size, 2, 3)).astype(np.float32)} for size in (1, 5, 2)]
    found = examine(dynamic(), "fake:offset.z=0.5", Inputs(given=feeds))
    assert labels(found) == ["Softmax #7"]
    assert [output.tensor for output in found.outputs if not output.passed] == ["z"]
    assert len(found.layers) == 7  # a Constant is not a layer


@pytest.mark.slow
def test_external_weights_are_found(examine, tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")]
    made = model(nodes, [info("x")], [info("y")], [weight("w", *range(1, 5), shape=(2, 2))])
    path = tmp_path / "external.onnx"
    onnx.save(made, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert labels(examine(path, "fake:scale.matmul=2")) == ["MatMul 'matmul'"]
    assert examine(path, "onnxrt").passed


@pytest.mark.slow
def test_initializers_that_are_inputs_too_as_in_ir_3(examine) -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["a"], name="add"), helper.make_node("Exp", ["a"], ["y"], name="exp")]
    made = model(nodes, [info("x"), info("w", (1,))], [info("y")], [weight("w", 1)], opset=8)
    made.ir_version = 3
    assert labels(examine(made, "fake:scale.add=2")) == ["Add 'add'"]


@pytest.mark.slow
def test_a_tensor_that_is_input_and_output_or_read_by_many(examine) -> None:
    nodes = [helper.make_node("Abs", ["x"], ["a"], name="abs")]
    nodes += [helper.make_node("Add", ["a", "x"], [f"y{i}"], name=f"add{i}") for i in range(30)]
    made = model(nodes, [info("x")], [info("x"), *(info(f"y{i}") for i in range(30))])
    assert labels(examine(made, "fake:scale.add7=2")) == ["Add 'add7'"]


@pytest.mark.slow
def test_only_chosen_layers_are_measured(examine) -> None:
    found = examine(growing(40), "fake:scale.n7=2,scale.n30=2", nodes=re.compile("^n3[0-9]$"))
    assert [layer.node.name for layer in found.layers] == [f"n{number}" for number in range(30, 40)]
    assert labels(found) == ["Relu 'n30'"]
