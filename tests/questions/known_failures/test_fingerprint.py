"""Pieces that differ in names, order, sizes and weights alone have the same fingerprint, and others have not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from biopsy import errors
from biopsy.cli.demo import demonstration_model
from biopsy.questions.known_failures.fingerprint import Fingerprint, fingerprint_of
from biopsy.questions.known_failures.reading import pattern_of
from support.known_pieces import PIECES
from support.measured import cpu_seconds
from support.models import info, model, weight
from support.rewritten import permuted, renamed, resized, with_constant_nodes, with_identities

UNARY = ("Relu", "Neg", "Exp", "Sigmoid")
BINARY = ("Add", "Mul", "Sub", "MatMul")


def fingerprint(made: onnx.ModelProto) -> Fingerprint:
    return fingerprint_of(pattern_of(made))


@st.composite
def random_models(draw: st.DrawFn) -> onnx.ModelProto:
    """Graphs of up to eight nodes over two inputs and a weight; what nobody reads is an output."""
    tensors = ["x", "y", "w"]
    nodes = []
    for number in range(draw(st.integers(1, 8))):
        if draw(st.booleans()):
            node = helper.make_node(draw(st.sampled_from(UNARY)), [draw(st.sampled_from(tensors))], [f"t{number}"])
        else:
            read = [draw(st.sampled_from(tensors)) for _ in range(2)]
            node = helper.make_node(draw(st.sampled_from(BINARY)), read, [f"t{number}"])
        nodes.append(node)
        tensors.append(f"t{number}")
    read = {name for node in nodes for name in node.input}
    ends = [name for name in tensors[3:] if name not in read]
    return model(nodes, [info("x"), info("y")], [info(name) for name in ends], [weight("w", 1, 2, 3, 4, shape=(2, 2))])


REWRITINGS: Sequence[Callable[[onnx.ModelProto], onnx.ModelProto]] = (
    lambda made: renamed(made, 1),
    lambda made: permuted(made, 2),
    lambda made: resized(made, 3),
    with_constant_nodes,
    with_identities,
    lambda made: with_identities(with_constant_nodes(resized(permuted(renamed(made, 3), 4), 2))),
)


@settings(max_examples=60, deadline=None)
@given(random_models(), st.integers(0, 1000))
def test_names_order_sizes_and_weights_have_no_part_in_it(made: onnx.ModelProto, seed: int) -> None:
    expected = fingerprint(made)
    for rewriting in REWRITINGS:
        assert fingerprint(permuted(renamed(rewriting(made), seed), seed)).digest == expected.digest


@pytest.mark.parametrize("name", PIECES)
def test_nor_have_they_in_that_of_a_real_piece(name: str) -> None:
    piece = next(iter(PIECES[name].members.values()))
    for rewriting in REWRITINGS:
        assert fingerprint(rewriting(piece)).digest == fingerprint(piece).digest


@settings(max_examples=100, deadline=None)
@given(random_models(), random_models())
def test_it_is_the_same_if_and_only_if_the_graphs_are_isomorphic(one: onnx.ModelProto, other: onnx.ModelProto) -> None:
    assert (fingerprint(one).digest == fingerprint(other).digest) == isomorphic(one, other)


def isomorphic(one: onnx.ModelProto, other: onnx.ModelProto) -> bool:
    """By trying all ways to pair the nodes: what is told of a node is its operator, what it reads, what reads it."""
    if len(one.graph.node) != len(other.graph.node):
        return False
    both = list(one.graph.node), list(other.graph.node)
    return any(_pairs(*both, {"w": "w", "x": x, "y": y}, one, other) for x, y in ("xy", "yx"))


def _pairs(
    ones: list[onnx.NodeProto],
    others: list[onnx.NodeProto],
    name_of: dict[str, str],
    one: onnx.ModelProto,
    other: onnx.ModelProto,
) -> bool:
    if not ones:
        return True
    first = ones[0]
    wanted = [name_of[name] for name in first.input]
    for node in others:
        ends = [{info.name for info in each.graph.output} for each in (one, other)]
        fits = node.op_type == first.op_type and list(node.input) == wanted
        if fits and (first.output[0] in ends[0]) == (node.output[0] in ends[1]):
            rest = [each for each in others if each is not node]
            if _pairs(ones[1:], rest, {**name_of, first.output[0]: node.output[0]}, one, other):
                return True
    return False


def test_that_of_a_model_of_458_nodes_takes_less_than_a_second() -> None:
    made = demonstration_model()
    assert cpu_seconds(lambda: fingerprint(made)) < 1
    assert fingerprint(made).digest == fingerprint(permuted(renamed(made, 1), 1)).digest


# What matters


def one_node(op: str, *inputs: str, elem: int = TensorProto.FLOAT, opset: int = 18, **attributes: object) -> str:
    node = helper.make_node(op, list(inputs) or ["x"], ["y"], **attributes)
    held = [weight("w", 1, 2, 3, 4, shape=(2, 2)), weight("axes", -1, shape=(1,), dtype="int64")]
    inputs = [info("x", (2, 3, 4), elem), info("z", (2, 3, 4), elem)]
    return fingerprint(model([node], inputs, [info("y", None, elem)], held, opset=opset)).digest


UNLIKE = [
    (one_node("Relu"), one_node("Neg")),
    (one_node("Relu"), one_node("Relu", elem=TensorProto.FLOAT16)),
    (one_node("Sub", "x", "w"), one_node("Sub", "w", "x")),
    (one_node("Sub", "x", "w"), one_node("Sub", "x", "z")),
    (one_node("Sub", "x", "x"), one_node("Sub", "x", "z")),
    (one_node("ReduceMean", "x", "axes"), one_node("ReduceMean", "x", "axes", keepdims=0)),
    (one_node("Softmax", axis=-1), one_node("Softmax", axis=1)),
    (one_node("Softmax", axis=0), one_node("Softmax", axis=1)),
    (one_node("Conv", "x", "w", auto_pad="SAME_UPPER"), one_node("Conv", "x", "w")),
    (one_node("Conv", "x", "w", auto_pad="SAME_UPPER"), one_node("Conv", "x", "w", auto_pad="SAME_LOWER")),
    (one_node("Conv", "x", "w", group=1), one_node("Conv", "x", "w", group=3)),
    (one_node("Conv", "x", "w", pads=[1, 1]), one_node("Conv", "x", "w")),
    (one_node("Conv", "x", "w", strides=[2]), one_node("Conv", "x", "w")),
    (one_node("Cast", to=TensorProto.FLOAT16), one_node("Cast", to=TensorProto.INT32)),
    (one_node("Transpose", perm=[0, 2, 1]), one_node("Transpose", perm=[2, 1, 0])),
    (one_node("Clip", "x", "w"), one_node("Clip", "x", "", "w")),
    (one_node("Gelu", opset=20), one_node("Gelu", opset=20, approximate="tanh")),
    (one_node("LeakyRelu"), one_node("LeakyRelu", alpha=0.0)),
    (one_node("Einsum", equation="abc->acb"), one_node("Einsum", equation="abc->cba")),
    (one_node("ConvTranspose", "x", "w"), one_node("ConvTranspose", "x", "w", output_shape=[9])),
    (one_node("Relu"), one_node("Relu", domain="com.microsoft")),
    (
        one_node("ConstantOfShape", "axes"),
        one_node("ConstantOfShape", "axes", value=numpy_helper.from_array(np.zeros(1, np.int64))),
    ),
]

ALIKE = [
    (one_node("Relu"), one_node("Relu", domain="ai.onnx")),
    (one_node("ReduceMean", "x", "axes"), one_node("ReduceMean", "x", "axes", keepdims=1)),
    (one_node("ReduceMean", "x", "axes"), one_node("ReduceMean", axes=[-1], opset=17)),
    (one_node("ReduceMean", axes=[2], opset=17), one_node("ReduceMean", axes=[-1], opset=17)),
    (one_node("Softmax"), one_node("Softmax", axis=2)),
    (one_node("Conv", "x", "w", kernel_shape=[3]), one_node("Conv", "x", "w", kernel_shape=[5])),
    (one_node("Conv", "x", "w", strides=[1]), one_node("Conv", "x", "w")),
    (one_node("Conv", "x", "w", pads=[0, 0]), one_node("Conv", "x", "w")),
    (one_node("Conv", "x", "w", pads=[1, 2]), one_node("Conv", "x", "w", pads=[3, 3])),
    (one_node("Conv", "x", "w", group=2), one_node("Conv", "x", "w", group=3)),
    (one_node("ConvTranspose", "x", "w", output_shape=[7]), one_node("ConvTranspose", "x", "w", output_shape=[9])),
    (one_node("Clip", "x", "w", ""), one_node("Clip", "x", "w")),
    (one_node("Einsum", equation="abc->acb"), one_node("Einsum", equation="i j k -> i k j")),
    (
        one_node("ConstantOfShape", "axes"),
        one_node("ConstantOfShape", "axes", value=numpy_helper.from_array(np.ones(1, np.float32))),
    ),
    (one_node("LayerNormalization", "x", "w", epsilon=1e-6), one_node("LayerNormalization", "x", "w")),
]


@pytest.mark.parametrize(("one", "other"), UNLIKE)
def test_graphs_that_differ_in_what_matters_have_different_ones(one: str, other: str) -> None:
    assert one != other


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_graphs_that_differ_in_sizes_or_in_how_they_are_written_have_the_same(one: str, other: str) -> None:
    assert one == other


def test_a_tensor_that_is_an_output_too_is_told() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Neg", ["t"], ["y"])]
    plain, marked = model(nodes, [info("x")], [info("y")]), model(nodes, [info("x")], [info("y"), info("t")])
    assert fingerprint(plain).digest != fingerprint(marked).digest


def test_a_weight_that_may_be_fed_is_an_input_unless_the_model_is_of_the_old_form() -> None:
    fed = model([helper.make_node("Add", ["x", "w"], ["y"])], [info("x"), info("w")], [info("y")], [weight("w", 1.0)])
    assert "const" not in fingerprint(fed).text
    fed.ir_version = 3
    assert "const float32" in fingerprint(fed).text


def test_a_model_of_identities_alone_keeps_them() -> None:
    made = model([helper.make_node("Identity", ["x"], ["y"])], [info("x")], [info("y")])
    assert "Identity" in fingerprint(made).text


# Bodies and functions


def conditional(first: str, second: str, names: str = "ab") -> onnx.ModelProto:
    """An If whose branches read the same outer tensor."""
    bodies = [
        helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [info(name)])
        for op, name in zip((first, second), names, strict=True)
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
    return model([node], [info("c", (), TensorProto.BOOL), info("x")], [info("y")])


def test_what_stands_in_bodies_and_in_which_belongs_to_it() -> None:
    found = fingerprint(conditional("Relu", "Neg"))
    assert found.digest == fingerprint(renamed(conditional("Relu", "Neg"), 1)).digest
    assert found.digest == fingerprint(conditional("Relu", "Neg", "pq")).digest
    assert found.digest != fingerprint(conditional("Neg", "Relu")).digest
    assert found.digest != fingerprint(conditional("Relu", "Relu")).digest


def with_function(name: str, op: str) -> onnx.ModelProto:
    function = helper.make_function(
        "own", name, ["a"], ["b"], [helper.make_node(op, ["a"], ["b"])], [helper.make_opsetid("", 18)]
    )
    node = helper.make_node(name, ["x"], ["y"], domain="own")
    return model([node], [info("x")], [info("y")], functions=[function], domains=["own"])


def test_a_function_of_the_model_is_what_it_computes_and_not_its_name() -> None:
    found = fingerprint(with_function("Mine", "Relu"))
    assert found.digest == fingerprint(with_function("Yours", "Relu")).digest
    assert found.digest != fingerprint(with_function("Mine", "Neg")).digest
    assert "Mine" not in found.text


def test_functions_that_call_each_other_too_deep_are_refused() -> None:
    made = with_function("f0", "Relu")
    made.graph.node[0].op_type = "f900"
    for number in range(1, 901):
        function = made.functions.add()
        function.CopyFrom(made.functions[0])
        function.name, function.node[0].op_type, function.node[0].domain = f"f{number}", f"f{number - 1}", "own"
    with pytest.raises(errors.ModelError, match="nested too deep"):
        fingerprint(made)


def test_a_function_that_calls_itself_has_an_end() -> None:
    made = with_function("Mine", "Relu")
    made.functions[0].node[0].op_type, made.functions[0].node[0].domain = "Mine", "own"
    assert fingerprint(made).text


# Symmetry, size, damage


def branches(count: int, length: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", [f"t{branch}_{place}" if place else "x"], [f"t{branch}_{place + 1}"])
        for branch in range(count)
        for place in range(length)
    ]
    return model(nodes, [info("x")], [info(f"t{branch}_{length}") for branch in range(count)])


def differences(count: int) -> onnx.ModelProto:
    """Each of so many inputs minus each other one: all inputs are alike, whichever is looked at first."""
    pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
    nodes = [helper.make_node("Sub", [f"x{one}", f"x{other}"], [f"y{one}_{other}"]) for one, other in pairs]
    ends = [info(node.output[0]) for node in nodes]
    return model(nodes, [info(f"x{number}") for number in range(count)], ends)


@pytest.mark.parametrize(("count", "length"), [(100, 1), (20, 20), (2, 200)])
def test_many_equal_branches_cost_no_more_than_other_nodes(count: int, length: int) -> None:
    made = branches(count, length)
    assert cpu_seconds(lambda: fingerprint(made)) < 1
    assert fingerprint(made).digest == fingerprint(permuted(renamed(made, 1), 1)).digest


def test_what_is_very_symmetrical_takes_no_longer() -> None:
    made = differences(14)
    assert cpu_seconds(lambda: fingerprint(made)) < 2
    expected = fingerprint(made).digest
    assert fingerprint(permuted(renamed(made, 1), 1)).digest == expected
    assert fingerprint(differences(13)).digest != expected


def test_a_model_that_is_no_piece_is_refused() -> None:
    with pytest.raises(errors.ModelError, match="only a piece of at most 2,000"):
        fingerprint(branches(1, 2001))


def test_a_tensor_that_nothing_makes_is_named() -> None:
    with pytest.raises(errors.ModelError, match="'lost'"):
        fingerprint(model([helper.make_node("Relu", ["lost"], ["y"])], [info("x")], [info("y")]))


def test_nodes_that_read_each_other_in_a_circle_have_an_end() -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    assert fingerprint(model(nodes, [info("x")], [info("b")])).text


ODD_NAMES = ["Op (x", "a, b", "x = Relu(y)", "-> output", "[body]", "const float32", "\n", "é\x1b["]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_no_name_of_an_operator_or_attribute_can_be_taken_for_anything_else(name: str) -> None:
    node = helper.make_node(name, ["x"], ["y"], domain="own", **{name: name, "other": "b c"})
    found = fingerprint(model([node], [info("x")], [info("y")], domains=["own"]))
    assert found.text.isascii() and found.text.isprintable() is False and "\x1b" not in found.text
    assert len(found.text.splitlines()) == 2


def test_weights_that_say_a_wrong_size_are_never_read() -> None:
    made = model([helper.make_node("ReduceSum", ["x", "axes"], ["y"])], [info("x")], [info("y")])
    made.graph.initializer.append(TensorProto(name="axes", data_type=TensorProto.INT64, dims=[3], raw_data=b"1"))
    assert "ReduceSum(x1, const int64)" in fingerprint(made).text


def test_numbers_of_real_weights_are_not_in_it() -> None:
    secret = numpy_helper.from_array(np.array([31415.0], np.float32), "w")
    made = model([helper.make_node("Add", ["x", "w"], ["y"])], [info("x")], [info("y")], [secret])
    assert "31415" not in fingerprint(made).text
