"""Cutting a subgraph out of a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from biopsy import errors
from biopsy.model.extract import Wanted, extract
from biopsy.model.index import ModelIndex, index_bytes

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL


def tensor(name: str, shape=(2, 3), elem: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, shape)


def index_of(nodes, inputs, outputs, weights=(), functions=(), folder: Path | None = None, **more) -> ModelIndex:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights), **more)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=9)
    return index_bytes(model.SerializeToString(), folder)


def chain() -> ModelIndex:
    """x -> Mul w -> a -> Add v -> b -> Relu -> y, and b -> Neg -> z."""
    return index_of(
        [
            helper.make_node("Mul", ["x", "w"], ["a"], name="mul"),
            helper.make_node("Add", ["a", "v"], ["b:0"], name="add"),
            helper.make_node("Relu", ["b:0"], ["y"], name="relu"),
            helper.make_node("Neg", ["b:0"], ["z"], name="neg"),
        ],
        [tensor("x", ["N", 3])],
        [tensor("y", None), tensor("z", None)],
        [numpy_helper.from_array(np.full(3, 2, np.float32), "w"), numpy_helper.from_array(np.ones(3, np.float32), "v")],
    )


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def types(infos) -> list[tuple[str, int, list]]:
    return [
        (info.name, info.type.tensor_type.elem_type,
         [dim.dim_param or dim.dim_value for dim in info.type.tensor_type.shape.dim])
        for info in infos
    ]  # fmt: skip


def run(model: onnx.ModelProto, feeds: dict) -> list[np.ndarray]:
    onnx.checker.check_model(model, full_check=True)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def test_the_part_between_inputs_and_outputs_computes_the_same() -> None:
    part = extract(chain(), [Wanted("a")], [Wanted("y")])
    assert operators(part) == ["Add", "Relu"]
    assert [weight.name for weight in part.graph.initializer] == ["v"]
    (found,) = run(part, {"a": np.array([[1, -2, 3]], np.float32)})
    np.testing.assert_array_equal(found, [[2, 0, 4]])


def test_auto_takes_types_from_the_model_or_from_inference() -> None:
    part = extract(chain(), [Wanted("a")], [Wanted("b:0")])
    assert types(part.graph.input) == [("a", FLOAT, ["N", 3])]
    assert types(part.graph.output) == [("b:0", FLOAT, ["N", 3])]


def test_a_given_type_or_shape_is_used() -> None:
    part = extract(chain(), [Wanted("a", (5, 3), FLOAT)], [Wanted("y", elem=FLOAT)])
    assert types(part.graph.input) == [("a", FLOAT, [5, 3])]
    part = extract(chain(), [Wanted("a", (5, 3))], [Wanted("y")])
    assert types(part.graph.input) == [("a", FLOAT, [5, 3])]
    part = extract(chain(), [Wanted("a", elem=TensorProto.FLOAT16)], [Wanted("y")])
    assert types(part.graph.input) == [("a", TensorProto.FLOAT16, ["N", 3])]


def test_without_inputs_or_outputs_the_models_own_stay() -> None:
    part = extract(chain(), outputs=[Wanted("a")])
    assert operators(part) == ["Mul"]
    assert [info.name for info in part.graph.input] == ["x"]
    part = extract(chain(), [Wanted("b:0")])
    assert operators(part) == ["Relu", "Neg"]
    assert [info.name for info in part.graph.output] == ["y", "z"]
    assert operators(extract(chain())) == ["Mul", "Add", "Relu", "Neg"]


def test_a_requested_input_that_nothing_needs_is_still_an_input() -> None:
    part = extract(chain(), [Wanted("x"), Wanted("a")], [Wanted("y")])
    assert [info.name for info in part.graph.input] == ["x", "a"]


def test_a_weight_that_is_asked_for_as_an_input_has_no_default_left() -> None:
    part = extract(chain(), [Wanted("a"), Wanted("v")], [Wanted("y")])
    assert not part.graph.initializer
    run(part, {"a": np.ones((1, 3), np.float32), "v": np.ones(3, np.float32)})


def test_an_unknown_tensor_is_refused_with_the_nearest_names() -> None:
    for inputs, outputs in (([Wanted("b0")], None), (None, [Wanted("b0")])):
        with pytest.raises(errors.UsageError, match="'b0'") as caught:
            extract(chain(), inputs, outputs)
        assert "b:0" in caught.value.next_steps[0]


def test_an_output_that_needs_more_than_is_given_names_what_is_missing() -> None:
    with pytest.raises(errors.UsageError, match="'x'") as caught:
        extract(chain(), [Wanted("b:0")], [Wanted("a")])
    assert "x:auto:auto" in caught.value.next_steps[0]


def test_an_unknown_type_must_be_given() -> None:
    index = index_of(
        [helper.make_node("Odd", ["x"], ["o"], domain="odd"), helper.make_node("Relu", ["o"], ["y"])],
        [tensor("x")], [tensor("y")],
    )  # fmt: skip
    with pytest.raises(errors.UsageError, match="'o'") as caught:
        extract(index, [Wanted("o")])
    assert "--inputs 'o:[1,3]:float32'" in caught.value.next_steps[0]
    assert types(extract(index, [Wanted("o", (2, 3), FLOAT)]).graph.input) == [("o", FLOAT, [2, 3])]
    assert types(extract(index, outputs=[Wanted("o", elem=FLOAT)]).graph.output) == [("o", FLOAT, [])]


def test_a_sequence_can_be_cut_at() -> None:
    index = index_of(
        [helper.make_node("SequenceConstruct", ["x", "x"], ["s"]), helper.make_node("SequenceLength", ["s"], ["y"])],
        [tensor("x")], [tensor("y", [], TensorProto.INT64)],
    )  # fmt: skip
    assert extract(index, [Wanted("s")]).graph.input[0].type.HasField("sequence_type")


def test_tensors_that_bodies_capture_are_needed() -> None:
    body = helper.make_graph([helper.make_node("Mul", ["a", "w"], ["t"])], "body", [], [tensor("t")])
    index = index_of(
        [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body),
        ],
        [tensor("x"), tensor("flag", [], BOOL)],
        [tensor("y")],
        [numpy_helper.from_array(np.full(3, 2, np.float32), "w")],
    )
    assert operators(extract(index)) == ["Relu", "If"]
    part = extract(index, [Wanted("a"), Wanted("flag")])
    assert operators(part) == ["If"]
    (found,) = run(part, {"a": np.ones((2, 3), np.float32), "flag": np.array(True)})
    np.testing.assert_array_equal(found, np.full((2, 3), 2))
    with pytest.raises(errors.UsageError, match="'x'"):
        extract(index, [Wanted("flag")])


def test_only_local_functions_that_are_called_stay() -> None:
    def function(name: str, node: onnx.NodeProto, *domains: str) -> onnx.FunctionProto:
        opsets = [helper.make_opsetid(domain, 17 if domain == "" else 1) for domain in domains]
        return helper.make_function("mine", name, ["p"], ["q"], [node], opsets)

    index = index_of(
        [
            helper.make_node("Outer", ["x"], ["a"], domain="mine"),
            helper.make_node("Other", ["a"], ["y"], domain="mine"),
        ],
        [tensor("x")],
        [tensor("y")],
        functions=[
            function("Outer", helper.make_node("Inner", ["p"], ["q"], domain="mine"), "mine"),
            function("Inner", helper.make_node("Relu", ["p"], ["q"]), ""),
            function("Other", helper.make_node("Neg", ["p"], ["q"]), ""),
        ],
    )
    part = extract(index, outputs=[Wanted("a")])
    assert {function.name for function in part.functions} == {"Outer", "Inner"}
    run(part, {"x": np.ones((2, 3), np.float32)})


def test_a_node_kept_for_another_output_does_not_also_compute_an_input() -> None:
    index = index_of(
        [helper.make_node("Split", ["x"], ["a", "b"], axis=0), helper.make_node("Sub", ["a", "b"], ["y"])],
        [tensor("x")],
        [tensor("y", [1, 3])],
    )
    part = extract(index, [Wanted("x"), Wanted("a")])
    (found,) = run(part, {"x": np.ones((2, 3), np.float32), "a": np.full((1, 3), 5, np.float32)})
    np.testing.assert_array_equal(found, [[4, 4, 4]])


def test_unread_inputs_are_removed_with_their_defaults() -> None:
    index = index_of(
        [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "v"], ["y"])],
        [tensor("x"), tensor("w", [3]), tensor("v", [3])],
        [tensor("y")],
        [numpy_helper.from_array(np.ones(3, np.float32), "w"), numpy_helper.from_array(np.ones(3, np.float32), "v")],
    )
    part = extract(index, outputs=[Wanted("a")])
    assert [info.name for info in part.graph.input] == ["x", "w"]
    assert [weight.name for weight in part.graph.initializer] == ["w"]
