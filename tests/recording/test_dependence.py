"""What depends on values: a table of operators, held against what ONNX itself can prove from shapes alone."""

import warnings
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from biopsy.model.index import index_bytes
from biopsy.recording.dependence import SIZE_INPUTS, dependence, independent_of_inputs
from support.models import FLOAT, INT64, info, model

TOLD_BY_THE_SPECIFICATION_ALONE = {
    # Random, but of a shape that attributes or the input's shape give.
    *(("", name) for name in ("Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")),
    # Sequences: inference does not tell how long they are.
    *(("", f"Sequence{name}") for name in ("At", "Construct", "Erase", "Insert")),
    *(("", name) for name in ("ConcatFromSequence", "Identity", "SplitToSequence")),
    # Inference does not tell: it needs no shape, or asks for the type of the output.
    *(("", name) for name in ("GlobalLpPool", "GroupNormalization", "MaxRoiPool", "MaxUnpool", "OneHot")),
    ("", "MeanVarianceNormalization"),
}
OF_OPSET_26 = {("", "BitCast"), ("", "CumProd")}
"""Those in the table that the oldest onnx that is allowed does not have yet."""

TABLE = {
    operator: places
    for operator, places in SIZE_INPUTS.items()
    if operator not in OF_OPSET_26 or onnx.defs.onnx_opset_version() >= 26
}
ONNXS_OWN = {("", False), ("ai.onnx.ml", False)}


@cache
def proven() -> dict[tuple[str, str], bool]:
    """Of each operator in the table: whether inference tells static output shapes wherever ONNX's node tests use it.

    It is told the shapes of all inputs, and the values of none but those that the table names.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = [case for case in collect_testcases(None) if case.model is not None]
    found: dict[tuple[str, str], bool] = {}
    for case in cases:
        node = case.model.graph.node[0]
        operator = ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
        if len(case.model.graph.node) == 1 and operator in SIZE_INPUTS:
            found[operator] = found.get(operator, True) and _is_static(case, SIZE_INPUTS[operator])
    return found


def _is_static(case, places: tuple[int, ...]) -> bool:
    made = onnx.ModelProto()
    made.CopyFrom(case.model)
    feeds = dict(zip((entry.name for entry in made.graph.input), case.data_sets[0][0], strict=True))
    names = [name for number, name in enumerate(made.graph.node[0].input) if number in places]
    for name in names:
        if isinstance(feeds.get(name), np.ndarray):
            made.graph.initializer.append(numpy_helper.from_array(feeds[name], name))
    for output in made.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        told = onnx.shape_inference.infer_shapes(made, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return False
    kinds = [output.type.tensor_type for output in told.graph.output]
    return all(kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim) for kind in kinds)


@pytest.mark.slow
def test_onnx_proves_nearly_every_line_of_the_table_from_shapes_alone() -> None:
    wrong = {operator for operator, is_proven in proven().items() if not is_proven}
    assert wrong <= TOLD_BY_THE_SPECIFICATION_ALONE
    untried = {operator for operator in TABLE if operator not in proven() and not operator[0]}
    assert untried <= TOLD_BY_THE_SPECIFICATION_ALONE
    assert sum(proven().values()) >= 155


def test_the_table_names_operators_that_there_are_and_inputs_that_they_have() -> None:
    schemas = {(schema.domain, schema.name): schema for schema in onnx.defs.get_all_schemas_with_history()}
    for operator, places in TABLE.items():
        if operator[0] != "com.microsoft":
            assert operator in schemas
            versions = [entry for entry in onnx.defs.get_all_schemas_with_history() if entry.name == operator[1]]
            most = max(len(entry.inputs) for entry in versions)
            assert all(place < most for place in places), operator


@pytest.mark.parametrize(
    "name",
    [
        *("Compress", "ConstantOfShape", "If", "ImageDecoder", "Loop", "NonMaxSuppression", "NonZero", "Optional"),
        *("OptionalGetElement", "Range", "Scan", "SequenceMap", "StringNormalizer", "StringSplit", "Unique"),
    ],
)
def test_an_operator_whose_output_is_as_long_as_its_values_say_is_not_in_the_table(name: str) -> None:
    assert ("", name) not in SIZE_INPUTS


def _values_of(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], **more) -> set[str]:
    index = index_bytes(model(nodes, inputs, [info("y", None)], opset=18, **more).SerializeToString())
    return {index.names[tensor] for tensor in dependence(index).values}


def test_a_shape_that_values_made_depends_on_values_however_long_the_way() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Shape", ["r"], ["fine"]),
        helper.make_node("NonZero", ["r"], ["n"]),
        helper.make_node("Transpose", ["n"], ["t"]),
        helper.make_node("Cast", ["t"], ["f"], to=FLOAT),
        helper.make_node("Shape", ["f"], ["count"]),
        helper.make_node("ConstantOfShape", ["count"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["k"], keepdims=0),
        helper.make_node("Expand", ["r", "count"], ["e"]),
        helper.make_node("Size", ["e"], ["y"]),
    ]
    assert _values_of(nodes, [info("x")]) == {"x", "r", "n", "t", "f", "count", "zeros", "k", "e", "y"}


def test_a_size_given_by_a_shape_is_free_of_values() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Reshape", ["z", "s"], ["r"]),
        helper.make_node("Shape", ["r"], ["y"]),
    ]
    assert _values_of(nodes, [info("x"), info("z", (4,))]) == {"x", "z", "r"}


def test_an_unknown_operator_a_function_and_a_body_make_any_shape() -> None:
    function = helper.make_function(
        "here", "Shape", ["a"], ["b"], [helper.make_node("NonZero", ["a"], ["b"])], [helper.make_opsetid("", 18)]
    )
    body = helper.make_graph([helper.make_node("NonZero", ["x"], ["o"])], "body", [], [info("o", None, INT64)])
    nodes = [
        helper.make_node("Unheard", ["x"], ["u"], domain="my"),
        helper.make_node("Shape", ["u"], ["su"]),
        helper.make_node("Shape", ["x"], ["own"], domain="here"),
        helper.make_node("If", ["c"], ["i"], then_branch=body, else_branch=body),
        helper.make_node("Shape", ["i"], ["y"]),
    ]
    found = _values_of(nodes, [info("x"), info("c", (), 9)], functions=[function], domains=["here", "my"])
    assert {"su", "own", "y"} <= found


def test_an_input_of_unknown_rank_or_that_is_a_sequence_has_a_made_up_shape() -> None:
    sequence = helper.make_tensor_sequence_value_info("q", FLOAT, None)
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConcatFromSequence", ["q"], ["c"], axis=0),
        helper.make_node("Shape", ["c"], ["y"]),
    ]
    assert {"s", "y"} <= _values_of(nodes, [info("x", None), sequence])


def test_random_numbers_are_no_constants_also_inside_bodies_and_functions_that_call_themselves() -> None:
    function = helper.make_function(
        "here",
        "Noise",
        [],
        ["b"],
        [
            helper.make_node("Noise", [], ["unused"], domain="here"),
            helper.make_node("RandomNormal", [], ["b"], shape=[2, 2]),
        ],
        [helper.make_opsetid("", 18), helper.make_opsetid("here", 1)],
    )
    body = helper.make_graph([helper.make_node("RandomNormal", [], ["o"], shape=[2, 2])], "body", [], [info("o")])
    nodes = [
        helper.make_node("Constant", [], ["yes"], value_int=1),
        helper.make_node("Cast", ["yes"], ["c"], to=9),
        helper.make_node("If", ["c"], ["i"], then_branch=body, else_branch=body),
        helper.make_node("Noise", [], ["f"], domain="here"),
        helper.make_node("Add", ["i", "f"], ["y"]),
    ]
    made = model(nodes, [], [info("y", None)], functions=[function], domains=["here"])
    index = index_bytes(made.SerializeToString())
    assert {index.names[tensor] for tensor in independent_of_inputs(index)} == {"yes", "c"}
