"""Tensors whose type or rank nobody declares, at the border of a candidate; and bodies that are gone."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import biopsy
from biopsy import events
from biopsy.model.index import index_bytes
from biopsy.model.infer import infer_value_infos
from biopsy.recording.reference_run import Recording, ValuesInMemory
from biopsy.recording.types import CutTypes
from biopsy.reduction.problem import Border, Candidate, Problem
from support.models import BOOL, info, model, weight
from support.predicates import connected, has, names


def reduced(original: onnx.ModelProto, fails: object, folder: Path, **options: object) -> onnx.ModelProto:
    onnx.checker.check_model(original)
    biopsy.reduce(original, fails, folder / "r.onnx", takes="model", **options)
    result = onnx.load(folder / "r.onnx")
    onnx.checker.check_model(result)
    return result


def shape_unknown() -> onnx.ModelProto:
    """The rank of what Reshape computes depends on an input's values: inference cannot tell it."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="neg"),
        helper.make_node("Reshape", ["a", "to"], ["b"], name="reshape"),
        helper.make_node("Abs", ["b"], ["c"], name="abs"),
        helper.make_node("Reshape", ["c", "flat"], ["y"], name="flatten"),
    ]
    inputs = [info("x", (2, 6)), info("to", ("R",), onnx.TensorProto.INT64)]
    return model(nodes, inputs, [info("y", (12,))], [weight("flat", 12, dtype="int64")])


FEED = {"x": np.zeros((2, 6), np.float32), "to": np.array([3, 2, 2])}


@pytest.mark.parametrize("declared", [False, True], ids=["undeclared", "declared without a rank"])
@pytest.mark.parametrize("mode", ["bisect", "minimal"])
def test_an_end_of_unknown_rank_has_the_recorded_rank_and_open_sizes(tmp_path: Path, mode: str, declared: bool) -> None:
    made = shape_unknown()
    if declared:
        made.graph.value_info.extend([info("b", None), info("c", None)])
        made.graph.value_info[0].type.tensor_type.ClearField("shape")
    result = reduced(made, has("reshape"), tmp_path, mode=mode, inputs=[FEED])
    assert names(result) == ["reshape"]
    (entry,) = result.graph.output
    assert entry.type.tensor_type.elem_type == 1
    assert [dim.WhichOneof("value") for dim in entry.type.tensor_type.shape.dim] == [None] * 3


def test_a_cut_of_unknown_rank_has_the_recorded_rank(tmp_path: Path) -> None:
    result = reduced(shape_unknown(), has("abs"), tmp_path, inputs=[FEED])
    assert names(result) == ["abs"]
    (entry,) = result.graph.input
    assert [dim.dim_value for dim in entry.type.tensor_type.shape.dim] == [3, 2, 2]


def untyped(length: int) -> onnx.ModelProto:
    """Custom operators one after the other; nothing is declared between them."""
    nodes = [helper.make_node("Odd", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}", domain="my") for i in range(length)]
    return model(nodes, [info("t0")], [info(f"t{length}")], domains=["my"])


@pytest.mark.parametrize("options", [{}, {"no_reduce_inputs": True}, {"mode": "bisect"}, {"mode": "linear"}])
def test_where_nothing_is_known_of_an_end_what_reads_it_is_taken_in(tmp_path: Path, options: dict[str, object]) -> None:
    made = untyped(9)
    made.graph.value_info.append(info("t6"))
    assert names(reduced(made, has("n4"), tmp_path, **options)) == [f"n{i}" for i in range(6)]


def test_a_branch_that_is_taken_in_brings_what_it_reads(tmp_path: Path) -> None:
    """With the inputs kept, what reads an untold end reads another branch as well."""
    nodes = [
        helper.make_node("Odd", ["x"], ["a"], name="odd", domain="my"),
        helper.make_node("Neg", ["x"], ["b"], name="neg"),
        helper.make_node("Odd", ["a", "b"], ["y"], name="join", domain="my"),
        helper.make_node("Abs", ["y"], ["z"], name="abs"),
    ]
    made = model(nodes, [info("x")], [info("z")], value_info=[info("y")], domains=["my"])
    result = reduced(made, has("odd"), tmp_path, no_reduce_inputs=True)
    assert names(result) == ["odd", "neg", "join"]


def test_a_model_whose_own_outputs_have_no_rank_is_reduced_as_far_as_types_are_known(tmp_path: Path) -> None:
    made = untyped(6)
    made.graph.value_info.extend(info(f"t{i}", None) for i in range(1, 6))
    for entry in (*made.graph.value_info, *made.graph.output):
        entry.type.tensor_type.ClearField("shape")
    biopsy.reduce(made, has("n4"), tmp_path / "r.onnx", takes="model")
    assert names(onnx.load(tmp_path / "r.onnx")) == ["n4"]


def captured(*, read_as_input: bool = False) -> onnx.ModelProto:
    """What 'middle' computes is read by 'last', and by the body of an If."""
    then = helper.make_graph([helper.make_node("Neg", ["m"], ["t"])], "then", [], [info("t")])
    other = helper.make_graph([helper.make_node("Exp", ["m"], ["e"])], "else", [], [info("e")])
    nodes = [
        helper.make_node("Relu", ["x"], ["f"], name="first"),
        helper.make_node("Abs", ["f"], ["m"], name="middle"),
        helper.make_node("If", ["c"], ["i"], name="if", then_branch=then, else_branch=other),
        helper.make_node("Neg", ["m"], ["l"], name="last"),
        helper.make_node("Add", ["i", "l"], ["y"], name="add"),
    ]
    if read_as_input:
        nodes[2].op_type, nodes[2].domain, nodes[2].input[0] = "OddIf", "my", "m"
    inputs = [info("x"), *([] if read_as_input else [info("c", (), BOOL)])]
    inner = [info(name) for name in "fmil"]
    return model(nodes, inputs, [info("y")], value_info=inner, domains=["my"])


def test_a_tensor_that_only_a_body_captured_that_is_gone_is_bypassed(tmp_path: Path) -> None:
    result = reduced(captured(), connected("first", "last"), tmp_path, values="free", skip_pass=("hoist",))
    assert names(result) == ["first", "last"]


@pytest.mark.parametrize("read_as_input", [False, True])
def test_a_tensor_that_a_body_captures_that_is_there_is_not_bypassed(tmp_path: Path, read_as_input: bool) -> None:
    """Nor if the node reads it as an input too."""
    seen: list[onnx.ModelProto] = []

    def fails(candidate: onnx.ModelProto) -> bool:
        seen.append(candidate)
        return connected("first", "last")(candidate) and has("if")(candidate)

    reduced(captured(read_as_input=read_as_input), fails, tmp_path, values="free", skip_pass=("hoist", "bodies"))
    assert len(seen) > 1
    for candidate in seen:
        if "if" in names(candidate) and "middle" not in names(candidate):
            assert "m" in [entry.name for entry in candidate.graph.input]


def test_what_must_be_taken_in_is_found_looking_at_each_tensor_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a chain of custom operators needs all of it, before it and behind it."""
    index = index_bytes(untyped(1_000).SerializeToString())
    recording = Recording(index, list, Path(), lambda _: None)
    types = CutTypes(index, ValuesInMemory(), infer=False)
    problem = Problem(index, types, recording, Border(cut="input"))
    asked: list[int] = []
    told = CutTypes.is_sufficient
    monkeypatch.setattr(CutTypes, "is_sufficient", lambda self, tensor: asked.append(tensor) or told(self, tensor))
    subset, made = Problem.subset, []
    monkeypatch.setattr(Problem, "subset", lambda self, one: made.append(one) or subset(self, one))
    assert problem.closed(Candidate(tuple(range(300, 600)))) == problem.original
    assert len(asked) < 3 * len(index.nodes)
    assert len(made) < 10


def found(made: onnx.ModelProto) -> dict[str, tuple[int, list[int | str] | None]]:
    """The element type of each tensor, and its sizes; None for an unknown rank."""
    infos = infer_value_infos(made.SerializeToString(), backward=True)
    kinds = {name: onnx.ValueInfoProto.FromString(span).type.tensor_type for name, span in infos.items()}
    return {
        name: (
            kind.elem_type,
            [dim.dim_value or dim.dim_param or "?" for dim in kind.shape.dim] if kind.HasField("shape") else None,
        )
        for name, kind in kinds.items()
    }


def behind_odd(*readers: onnx.NodeProto, weights: list[onnx.TensorProto], **options: object) -> onnx.ModelProto:
    """A custom operator writes 'a', of which nothing is declared, and ``readers`` compute the output 'y' from it."""
    odd = helper.make_node("Odd", ["x"], ["a"], name="odd", domain="my")
    return model([odd, *readers], [info("x")], [info("y", **options)], weights, domains=["my"])


@pytest.mark.parametrize("wanted", ["n0", "n211", "n399"])
def test_one_custom_operator_in_a_long_chain_does_not_keep_its_neighbours(tmp_path: Path, wanted: str) -> None:
    nodes = [
        helper.make_node(
            *("Odd" if i == 211 else "Relu", [f"t{i}"], [f"t{i + 1}"]), name=f"n{i}", domain="my" if i == 211 else ""
        )
        for i in range(400)
    ]
    made = model(nodes, [info("t0", (2, "N"))], [info("t400", (2, "N"))], domains=["my"])
    result = reduced(made, has(wanted), tmp_path)
    assert names(result) == [wanted]
    assert [dim.dim_value or dim.dim_param for dim in result.graph.input[0].type.tensor_type.shape.dim] == [2, "N"]


DOUBLE = onnx.TensorProto.DOUBLE


@pytest.mark.parametrize(
    ("readers", "weights", "output", "expected"),
    [
        # The output declares it, through two type variables.
        ([("Relu", "a"), ("Neg", "b")], [], {"shape": (2, 3), "elem": DOUBLE}, (DOUBLE, [2, 3])),
        # A weight bound to the same type variable does; as Add broadcasts, ranks 0, 1 and 2 are possible.
        ([("Add", "a w"), ("Relu", "b")], [weight("w", 1, 2, 3, 4, shape=(2, 2))], {"shape": (2, 2)}, (1, None)),
        # Only a tensor of rank 2 has a shape of two numbers, and makes Add give one.
        ([("Add", "a w"), ("Shape", "b")], [weight("w", 1, 2, 3)], {"shape": (2,), "elem": 7}, (1, ["?", "?"])),
        # The operator allows a single type; its ranks differ.
        ([("Cast", "b"), ("Not", "a")], [], {"shape": (3,)}, (BOOL, [3])),
        # All inputs of Concat have one rank.
        ([("Concat", "a w"), ("Relu", "b")], [weight("w", 1, 2, shape=(1, 2))], {"shape": None}, (1, ["?", "?"])),
        # Cast takes any type, and Reshape any rank.
        ([("Cast", "a"), ("Relu", "b")], [], {"shape": (3,)}, None),
        ([("Reshape", "a to"), ("Relu", "b")], [weight("to", -1, dtype="int64")], {"shape": (6,)}, (1, None)),
    ],
    ids=["output", "weight", "shape", "operator", "ranks", "any type", "any rank"],
)  # fmt: skip
def test_only_what_all_readers_leave_as_the_single_possibility_is_a_type(
    readers: list[tuple[str, str]], weights: list[onnx.TensorProto], output: dict[str, object], expected: object
) -> None:
    attributes = {"Cast": {"to": 1}, "Concat": {"axis": 0}}
    nodes = []
    for number, (operator, reads) in enumerate(sorted(readers, key=lambda one: "a" not in one[1].split())):
        nodes.append(
            helper.make_node(operator, reads.split(), ["by"[number]], name=operator, **attributes.get(operator, {}))
        )
    made = behind_odd(*nodes, weights=weights, **output)
    if output["shape"] is None:
        made.graph.output[0].type.tensor_type.ClearField("shape")
    assert found(made).get("a") == expected


def test_types_that_contradict_each_other_tell_nothing() -> None:
    nodes = [helper.make_node("Add", ["a", "w"], ["b"]), helper.make_node("Relu", ["b"], ["y"])]
    made = behind_odd(*nodes, weights=[weight("w", 1, dtype="int32")])
    assert "a" not in found(made)


def test_a_function_of_the_model_is_not_the_operator_of_the_same_name() -> None:
    own = helper.make_function("my", "Relu", ["i"], ["o"], [helper.make_node("Odd", ["i"], ["o"], domain="my")],
                               [helper.make_opsetid("my", 1)])  # fmt: skip
    made = behind_odd(helper.make_node("Relu", ["a"], ["y"], domain="my"), weights=[])
    made.functions.append(own)
    assert "a" not in found(made)


def test_what_stays_for_want_of_a_type_is_said(tmp_path: Path) -> None:
    seen: list[events.Event] = []
    result = reduced(untyped(9), has("n4"), tmp_path, listener=seen.append)
    assert len(names(result)) == 9
    (text,) = [event.text for event in seen if isinstance(event, events.Remark) and "one by one" in event.text]
    assert text.startswith("9 nodes could not be left out one by one: the types of tensors between them, such as 't1'")
    assert "value_info" in text


@pytest.mark.parametrize("declared", [True, False])
def test_nothing_is_said_where_types_are_known_or_hold_nothing_together(tmp_path: Path, declared: bool) -> None:
    made = untyped(3)
    made.graph.value_info.extend(info(f"t{i}") for i in ([1, 2] if declared else [1]))
    seen: list[events.Event] = []
    reduced(made, has("n0"), tmp_path, listener=seen.append)
    assert not any(isinstance(event, events.Remark) and "one by one" in event.text for event in seen)
