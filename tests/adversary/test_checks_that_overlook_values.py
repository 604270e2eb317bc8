"""Checks that compare values and overlook most of what could change in them: their values are kept all the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import biopsy
from biopsy import events
from biopsy.reduction.values import FILLINGS, KINDS, constant_outputs, with_changed_outputs
from support.models import BOOL, FLOAT, INT64, info, model, weight
from support.passes import session
from support.predicates import names

Array = np.ndarray[Any, Any]

OVERLOOKING: dict[str, Callable[[Array, Array], bool]] = {
    "top-1": lambda one, other: one.argmax() == other.argmax(),
    "order of all": lambda one, other: bool((one.argsort() == other.argsort()).all()),
    "direction": lambda one, other: float(one @ other / np.linalg.norm(one) / np.linalg.norm(other)) > 0.999,
    "mean": lambda one, other: abs(one.mean() - other.mean()) < 1e-3,
    "sum of magnitudes": lambda one, other: abs(np.abs(one).sum() - np.abs(other).sum()) < 1e-3,
    "set of values": lambda one, other: bool(np.allclose(np.sort(one), np.sort(other))),
    "greatest": lambda one, other: abs(one.max() - other.max()) < 1e-3,
    "median": lambda one, other: abs(float(np.median(one) - np.median(other))) < 1e-3,
    "share of equal elements": lambda one, other: float((np.abs(one - other) < 1e-3).mean()) > 0.5,
    "first element": lambda one, other: abs(one[0] - other[0]) < 1e-3,
}
"""How a check may compare an output with its golden value: True if it takes them for equal."""


def _layers() -> onnx.ModelProto:
    """A chain in which ``culprit`` is wrong: it turns its input, which the golden values do not. It has a Cos too."""
    nodes = [
        helper.make_node("Cos", ["x"], ["a"], name="cos"),
        helper.make_node("Mul", ["a", "half"], ["b"], name="mul"),
        helper.make_node("Gather", ["b", "turn"], ["c"], name="culprit"),
        helper.make_node("Add", ["c", "row"], ["d"], name="add"),
        helper.make_node("Sub", ["d", "half"], ["y"], name="sub"),
    ]
    weights = [
        weight("half", 0.5, shape=()),
        weight("row", -0.75, 0.25, 0.125, 0.5),
        weight("turn", 3, 0, 1, 2, dtype="int64"),
    ]
    return model(nodes, [info("x", (4,))], [info("y", (4,))], weights)


def _golden(feed: dict[str, Array]) -> dict[str, Array]:
    """Of a variant that does not turn but gives something else again."""
    variant = _layers()
    variant.graph.node[2].CopyFrom(helper.make_node("Sub", ["b", "row"], ["c"], name="culprit"))
    return {**feed, **biopsy.run(variant, inputs=feed, outputs="all")[0].iterations[0].outputs}


@pytest.mark.parametrize("name", OVERLOOKING)
def test_a_check_that_compares_values_by_little_keeps_them(name: str, tmp_path: Path) -> None:
    feed = {"x": np.array([0.1, 1.5, 2.5, 0.7], np.float32)}
    golden = _golden(feed)
    agree = OVERLOOKING[name]

    def fails(candidate: onnx.ModelProto) -> bool:
        if "y" not in [entry.name for entry in candidate.graph.output]:
            return False
        fed = {entry.name: golden[entry.name] for entry in candidate.graph.input}
        return not agree(biopsy.run(candidate, inputs=fed)[0].iterations[0].outputs["y"].ravel(), golden["y"])

    told: list[object] = []
    biopsy.reduce(_layers(), fails, tmp_path / "r.onnx", takes="model", inputs=[feed], listener=told.append)
    remarks = [event.text for event in told if isinstance(event, events.Remark)]
    assert "culprit" in names(onnx.load(tmp_path / "r.onnx")), remarks
    assert [text for text in remarks if text.startswith("values     kept: a passing candidate")]


def test_a_check_that_looks_at_one_output_of_two_keeps_values(tmp_path: Path) -> None:
    """What computes the other output alone passes whatever its values are."""
    nodes = [
        helper.make_node("Abs", ["x"], ["other"], name="other"),
        helper.make_node("Neg", ["x"], ["a"], name="culprit"),
        helper.make_node("Sqrt", ["a"], ["b"], name="sqrt"),
        helper.make_node("Relu", ["b"], ["y"], name="relu"),
    ]
    original = model(nodes, [info("x", (4,))], [info("other", (4,)), info("y", (4,))])
    feed = {"x": np.array([1, 4, 9, 16], np.float32)}
    golden = {**feed, "a": feed["x"], "b": np.sqrt(feed["x"]), "y": np.sqrt(feed["x"])}

    def fails(candidate: onnx.ModelProto) -> bool:
        if "y" not in [entry.name for entry in candidate.graph.output]:
            return False
        fed = {entry.name: golden[entry.name] for entry in candidate.graph.input}
        return not np.allclose(biopsy.run(candidate, inputs=fed)[0].iterations[0].outputs["y"], golden["y"])

    biopsy.reduce(original, fails, tmp_path / "r.onnx", takes="model", inputs=[feed])
    assert "culprit" in names(onnx.load(tmp_path / "r.onnx"))


def test_a_check_that_compares_inner_tensors_alone_keeps_values(tmp_path: Path) -> None:
    """The original's output has no golden value: whoever changes only that learns nothing of the check."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], name="abs"),
        helper.make_node("Sub", ["a", "x"], ["b"], name="sub"),
        helper.make_node("Neg", ["b"], ["c"], name="neg"),
        helper.make_node("Relu", ["c"], ["d"], name="relu"),
        helper.make_node("Sigmoid", ["d"], ["y"], name="sigmoid"),
    ]
    original = model(nodes, [info("x", (4,))], [info("y", (4,))], value_info=[info(name, (4,)) for name in "abcd"])
    feed = {"x": np.array([-1, -4, 9, 16], np.float32)}
    every = {**feed, **biopsy.run(original, inputs=feed, outputs="all")[0].iterations[0].outputs}
    golden = {name: every[name] for name in "bcd"}

    def fails(candidate: onnx.ModelProto) -> bool:
        """An engine that computes Neg behind Sub wrong by 1."""
        made = {node.output[0]: node for node in candidate.graph.node}
        found = {entry.name: every[entry.name] for entry in candidate.graph.input}
        found |= biopsy.run(candidate, inputs=dict(found), outputs="all")[0].iterations[0].outputs
        for name, node in made.items():
            if node.op_type == "Neg" and node.input[0] in made and made[node.input[0]].op_type == "Sub":
                found[name] = found[name] + 1
        return any(name in made and not np.allclose(found[name], golden[name]) for name in golden)

    told: list[object] = []
    biopsy.reduce(original, fails, tmp_path / "r.onnx", takes="model", inputs=[every], listener=told.append)
    assert names(onnx.load(tmp_path / "r.onnx")) == ["sub", "neg"]
    assert [event for event in told if isinstance(event, events.Remark) and "kept" in event.text]


def test_a_check_that_compares_no_values_may_change_them(tmp_path: Path) -> None:
    def fails(candidate: onnx.ModelProto) -> bool:
        found = names(candidate)
        return "cos" in found and "sub" in found

    told: list[object] = []
    biopsy.reduce(_layers(), fails, tmp_path / "r.onnx", takes="model", listener=told.append)
    assert names(onnx.load(tmp_path / "r.onnx")) == ["cos", "sub"]
    assert not [event for event in told if isinstance(event, events.Remark) and "kept" in event.text]


@pytest.mark.parametrize("opset", [7, 9, 10, 13, 17, 21])
@pytest.mark.parametrize("elem", [FLOAT, INT64, BOOL])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_every_change_changes_the_values_and_neither_type_nor_shape(opset: int, elem: int, shape: tuple[int]) -> None:
    made = model([helper.make_node("Identity", ["x"], ["y"])], [info("x", shape, elem)], [info("y", shape, elem)],
                 opset=opset)  # fmt: skip
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    value = np.array([1, 2, 0, 3, 5, 7][: int(np.prod(shape))]).astype(dtype).reshape(shape)
    for kind in KINDS:
        changed = with_changed_outputs(made, kind)
        assert changed is not None
        (found,) = session(changed).run(["y"], {"x": value})
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        assert not np.array_equal(found, value) or (kind == "in reverse order" and value.size == 1), kind


@pytest.mark.parametrize("elem", [FLOAT, INT64, BOOL, onnx.TensorProto.BFLOAT16, onnx.TensorProto.UINT8])
def test_constants_of_every_kind_have_the_type_that_is_asked_for(elem: int) -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"])], [info("x")], [info("y")])
    wanted = info("t", ("N", 3), elem)
    found = [constant_outputs(made, [wanted.SerializeToString()], filling) for filling in FILLINGS.values()]
    values = []
    for one in found:
        assert one is not None
        onnx.checker.check_model(one, full_check=True)
        assert [entry.name for entry in one.graph.output] == ["t"]
        assert [entry.name for entry in one.graph.input] == ["x"]
        values.append(onnx.numpy_helper.to_array(one.graph.node[0].attribute[0].t))
    assert all(value.shape == (2, 3) for value in values)
    assert len({value.tobytes() for value in values}) > 1


def test_of_strings_and_unknown_ranks_no_constants_are_made() -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"])], [info("x")], [info("y")])
    for wanted in (info("t", (2,), onnx.TensorProto.STRING), info("t", None)):
        assert constant_outputs(made, [wanted.SerializeToString()], FILLINGS["ascending"]) is None


def test_where_a_change_cannot_be_made_there_is_none() -> None:
    for made in (
        model([helper.make_node("Identity", ["x"], ["y"])], [info("x", (2,), 8)], [info("y", (2,), 8)]),
        model([helper.make_node("Identity", ["x"], ["y"])], [info("x", ("N",))], [info("y", ("N",))], opset=9),
        model([helper.make_node("Identity", ["x"], ["y"])], [info("x")], [info("x")]),
    ):
        assert with_changed_outputs(made, "in reverse order") is None
