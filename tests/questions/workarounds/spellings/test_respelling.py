"""Putting a spelling into a model: what stays, what goes, and where it is not possible."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from biopsy.diagnosis.steps.undefined import undefined_values
from biopsy.questions.workarounds.question import Patch
from biopsy.questions.workarounds.spellings.table import SPELLINGS, barriers, spellings
from questions.workarounds.spellings.proving import declined, run
from support.control_flow import body, branching, looping
from support.models import info, model, weight


def _found(made: onnx.ModelProto, name: str, place: int = 0) -> Patch:
    return next(each for each in spellings(made, [place]) if each.name == name)


def _applied(patch: Patch, made: onnx.ModelProto) -> onnx.ModelProto:
    before = made.SerializeToString(deterministic=True)
    found = patch.applied(made)
    assert found is not None
    onnx.checker.check_model(found, full_check=True)
    assert made.SerializeToString(deterministic=True) == before, "the model itself must not change"
    return found


def _operators(made: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in made.graph.node]


def _softmax(*, gives_out_exp: bool) -> onnx.ModelProto:
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], axes=[1]),
        helper.make_node("Sub", ["x", "m"], ["s"]),
        helper.make_node("Exp", ["s"], ["e"]),
        helper.make_node("ReduceSum", ["e", "axes"], ["t"]),
        helper.make_node("Div", ["e", "t"], ["y"]),
    ]
    outputs = [info("y"), *([info("e")] if gives_out_exp else [])]
    return model(nodes, [info("x")], outputs, [weight("axes", 1, dtype="int64")])


def test_what_a_spelling_has_read_goes_if_nothing_else_reads_it() -> None:
    made = _softmax(gives_out_exp=False)
    assert _operators(_applied(_found(made, "exp-as-softmax", 4), made)) == ["Softmax"]


def test_what_something_else_reads_stays() -> None:
    made = _softmax(gives_out_exp=True)
    found = _applied(_found(made, "exp-as-softmax", 4), made)
    assert _operators(found) == ["ReduceMax", "Sub", "Exp", "Softmax"]
    values = np.array([[1, 2], [-1, 3]], np.float32)
    for one, other in zip(run(made, {"x": values}), run(found, {"x": values}), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6)


def test_the_nodes_in_a_body_have_spellings_too() -> None:
    made = branching()
    patches = [each for each in spellings(made, [1]) if each.name == "neg-as-mul"]
    assert [patch.nodes for patch in patches] == [(1,)]
    found = _applied(patches[0], made)
    then = body(found, "then_branch", 1)
    assert [node.op_type for node in then.node] == ["Constant", "Mul", "Mul", "Exp"]
    feeds = {"x": np.array([[1, -2], [3, 0.5]], np.float32), "c": np.array(True)}
    np.testing.assert_array_equal(run(found, feeds)[0], run(made, feeds)[0])


def test_every_spelling_in_a_loop_gives_a_valid_model_that_computes_the_same() -> None:
    made = looping()
    feeds = {"x": np.array([[0.1, -0.2], [0.3, 0.5]], np.float32)}
    expected = run(made, feeds)
    for patch in spellings(made, range(len(made.graph.node))):
        for one, other in zip(expected, run(_applied(patch, made), feeds), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-5)


def test_spellings_can_be_applied_one_after_the_other() -> None:
    nodes = [helper.make_node("Sub", ["x", "x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    made = model(nodes, [info("x")], [info("y")])
    first, second = _found(made, "sub-as-add", 0), _found(made, "neg-as-mul", 1)
    assert _operators(_applied(second, _applied(first, made))) == ["Neg", "Add", "Constant", "Mul"]
    assert _operators(_applied(first, _applied(second, made))) == ["Neg", "Add", "Constant", "Mul"]


def test_where_the_node_is_gone_or_another_nothing_is_patched() -> None:
    made = model([helper.make_node("Neg", ["x"], ["y"])], [info("x")], [info("y")])
    patch = _found(made, "neg-as-mul")
    made.graph.node[0].op_type = "Abs"
    assert patch.applied(made) is None
    made.graph.node[0].op_type = "Neg"
    made.graph.node[0].output[0] = made.graph.output[0].name = "z"
    assert patch.applied(made) is None


def test_names_that_are_taken_are_not_used_again() -> None:
    nodes = [helper.make_node("Sub", ["x", "x"], ["y"], name="y/Neg"), helper.make_node("Abs", ["x"], ["y/Neg"])]
    made = model(nodes, [info("x")], [info("y"), info("y/Neg")])
    found = _applied(_found(made, "sub-as-add"), made)
    assert len({name for node in found.graph.node for name in node.output}) == 3


def test_weights_in_other_files_are_referred_to_as_they_were() -> None:
    made = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [info("x")],
        [info("y")],
        [weight("w", 1, 2, 3, 4, shape=(2, 2))],
    )
    stored = made.graph.initializer[0]
    stored.ClearField("raw_data")
    stored.ClearField("float_data")
    stored.data_location = TensorProto.EXTERNAL
    stored.external_data.add(key="location", value="nowhere.bin")
    for patch in spellings(made, [0]):
        found = patch.applied(made)
        assert found is not None
        assert found.graph.initializer[0] == stored


def test_a_weight_that_a_caller_may_replace_is_no_constant() -> None:
    nodes = [helper.make_node("Pow", ["x", "e"], ["y"])]
    made = model(nodes, [info("x")], [info("y")], [weight("e", 2, shape=())])
    assert not declined("pow-as-mul", made)
    made.graph.input.append(info("e", ()))
    assert declined("pow-as-mul", made)


@pytest.mark.parametrize(
    ("name", "node", "others"),
    [
        ("pow-as-mul", helper.make_node("Pow", ["x", "half"], ["y"]), [weight("half", 0.5, shape=())]),
        ("div-by-constant-as-mul", helper.make_node("Div", ["x", "zero"], ["y"]), [weight("zero", 0, shape=())]),
        ("div-by-constant-as-mul", helper.make_node("Div", ["x", "tiny"], ["y"]), [weight("tiny", 1e-39, shape=())]),
        ("gemm-as-matmul", helper.make_node("Gemm", ["x", "x", "x"], ["y"], beta=0.0), []),
        ("leaky-relu-as-max", helper.make_node("LeakyRelu", ["x"], ["y"], alpha=2.0), []),
        ("mean-as-sum", helper.make_node("ReduceMean", ["x"], ["y"], axes=[5]), []),
    ],
)  # fmt: skip
def test_where_both_are_not_equal_there_is_no_spelling(
    name: str, node: onnx.NodeProto, others: list[onnx.TensorProto]
) -> None:
    assert declined(name, model([node], [info("x")], [info("y")], others))


def test_bounds_that_cross_are_no_clip() -> None:
    nodes = [helper.make_node("Max", ["x", "low"], ["t"]), helper.make_node("Min", ["t", "high"], ["y"])]
    crossing = [weight("low", 2, shape=()), weight("high", 1, shape=())]
    assert declined("max-and-min-as-clip", model(nodes, [info("x")], [info("y")], crossing))


def _calling(body: list[onnx.NodeProto]) -> onnx.ModelProto:
    """A model that calls a function of its own, named as an operator of ONNX."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Neg", ["a"], ["b"], body, opsets)
    made = model([helper.make_node("Neg", ["x"], ["y"], domain="own")], [info("x")], [info("y")])
    made.opset_import.append(helper.make_opsetid("own", 1))
    made.functions.append(function)
    return made


def test_a_call_of_a_local_function_is_written_as_its_nodes() -> None:
    made = _calling([helper.make_node("Abs", ["a"], ["t"]), helper.make_node("Exp", ["t"], ["b"])])
    (patch,) = spellings(made, [0])
    found = _applied(patch, made)
    assert _operators(found) == ["Abs", "Exp"]
    assert patch.applied(found) is None
    feeds = {"x": np.array([[1, -2], [3, 0.5]], np.float32)}
    np.testing.assert_array_equal(run(found, feeds)[0], run(made, feeds)[0])


def test_a_function_that_calls_itself_has_no_other_spelling() -> None:
    assert spellings(_calling([helper.make_node("Neg", ["a"], ["b"], domain="own")]), [0]) == []


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        pytest.param(shape, value, marks=[] if row == column else pytest.mark.slow)
        for row, shape in enumerate((None, (), ("N", 3)))
        for column, value in enumerate((None, "text", [9, -9]))
    ],
)
def test_a_damaged_model_is_no_error(shape: tuple[int | str, ...] | None, value: object) -> None:
    names = ("axis", "axes", "perm", "split", "pads", "auto_pad", "kernel_shape", "strides", "group", "alpha", "mode")
    attributes = {} if value is None else dict.fromkeys(names, value)
    operators = {(spelling.domain, operator) for spelling in SPELLINGS for operator in spelling.operators}
    nodes = []
    for number, (domain, operator) in enumerate(sorted(operators)):
        node = helper.make_node(operator, ["x", "x", "k", "x", "k"], [f"y{number}"], domain=domain)
        node.attribute.extend(helper.make_attribute(name, each) for name, each in attributes.items())
        nodes.append(node)
    made = model(nodes, [info("x", shape)], [info("y0", shape)], [weight("k", 7, -8, dtype="int64")])
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    for patch in (*spellings(made, range(len(nodes))), *barriers(made, range(len(nodes)))):
        patch.applied(made)


def test_a_whole_number_that_no_float_holds_pads_as_it_is() -> None:
    text = '<ir_version: 9, opset_import: ["" : 18]> g (int64[2] x) => (int64[4] y) '
    weights = "<int64[2] p = {1, 1}, int64 v = {9007199254740993}> "
    made = onnx.parser.parse_model(f"{text}{weights}{{ y = Pad (x, p, v) }}")
    (found,) = run(_applied(_found(made, "pad-as-concat"), made), {"x": np.array([1, 2])})
    assert found.tolist() == [2**53 + 1, 1, 2, 2**53 + 1]


def test_a_patch_says_for_which_values_only_it_is_the_same() -> None:
    def of(operator: str, name: str) -> str:
        made = '<ir_version: 9, opset_import: ["" : 17]> g (float[2] x) => (float[n] y) '
        return _found(onnx.parser.parse_model(f"{made}{{ y = {operator} (x) }}"), name).holds

    assert "do not overflow" in of("ReduceSumSquare", "norm-as-sum")
    assert of("Relu", "relu-as-max") == of("Neg", "neg-as-mul") == ""


def test_what_would_give_another_shape_is_no_spelling() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    assert not declined("relu-as-max", model(nodes, [info("x", (2, 2))], [info("y", (2, 2))]))
    assert declined("relu-as-max", model(nodes, [info("x", (2, 2))], [info("y", (3, 3))]))


@pytest.mark.parametrize(
    ("to", "values", "is_undefined"),
    [
        (TensorProto.INT8, [-128.9, 127.9], False),
        (TensorProto.INT8, [128.0], True),
        (TensorProto.UINT8, [-0.9, 255.5], False),
        (TensorProto.UINT8, [-1.0], True),
        (TensorProto.INT32, [-(2.0**31), 2.0**31 - 128], False),
        (TensorProto.INT32, [2.0**31], True),
        (TensorProto.INT64, [np.nan], True),
        (TensorProto.INT64, [-(2.0**63)], False),
        (TensorProto.INT64, [np.inf], True),
        (TensorProto.FLOAT16, [1e9], False),
    ],
)
def test_a_cast_to_integers_is_undefined_for_what_they_do_not_hold(
    to: int, values: list[float], is_undefined: bool
) -> None:
    made = model([helper.make_node("Cast", ["x"], ["y"], to=to)], [info("x")], [info("y", elem=to)])
    given = np.resize(np.array(values, np.float32), (2, 2))
    assert any(undefined_values(made, ["Cast"], [{"x": given}])) == is_undefined
    if to != TensorProto.FLOAT16:
        (whole,) = run(_applied(_found(made, "cast-guarded"), made), {"x": given})
        np.testing.assert_array_equal(whole, np.zeros_like(whole) if is_undefined else np.trunc(given))


@pytest.mark.parametrize("operators", [["Identity", "Neg"], ["Neg", "Identity", "Abs"], ["Neg", "Identity"]])
def test_a_node_that_does_nothing_goes_where_its_neighbours_can_take_its_place(operators: list[str]) -> None:
    tensors = ["x", *(f"t{number}" for number in range(1, len(operators))), "y"]
    made = model(
        [helper.make_node(op, [tensors[at]], [tensors[at + 1]]) for at, op in enumerate(operators)],
        [info("x")],
        [info("y")],
    )
    patched = _applied(_found(made, "without-identity", operators.index("Identity")), made)
    assert _operators(patched) == [each for each in operators if each != "Identity"]
    alone = model([helper.make_node("Identity", ["x"], ["y"])], [info("x")], [info("y")])
    assert declined("without-identity", alone)
