"""Minimality: once a reduction has ended, no single node can go, by cut or by bypass, with the failure staying.

Judged by plain protobuf, not by the reducer's own code: random graphs, and failures monotone and not.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

import biopsy
from support import oracle
from support.models import chain, info, model, weight
from support.predicates import connected, has, has_any, names

Predicate = Callable[[onnx.ModelProto], bool]

OPS = ("Add", "Mul", "Max", "Relu", "Neg")


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """A random DAG of up to 14 nodes; every tensor is float32 [2, 2]."""
    count = draw(st.integers(2, 14))
    tensors = ["x", "z"]
    nodes = []
    for number in range(count):
        op = draw(st.sampled_from(OPS))
        arity = 2 if op in OPS[:3] else 1
        near = tensors[-4:]  # long graphs rather than wide ones
        inputs = draw(st.lists(st.sampled_from(near), min_size=arity, max_size=arity))
        attributes = {"gamma": 1.0} if draw(st.integers(0, 5)) == 0 else {}
        nodes.append(helper.make_node(op, inputs, [f"t{number}"], name=f"n{number}", **attributes))
        tensors.append(f"t{number}")
    read = {name for node in nodes for name in node.input}
    ends = [f"t{number}" for number in range(count) if f"t{number}" not in read]
    return model(nodes, [info("x"), info("z")], [info(name) for name in ends])


def single_removals(result: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """Every model that has one node less: cut, or bypassed by one of its inputs."""
    count = len(result.graph.node)
    for number in range(count):
        if count > 1:
            yield oracle.candidate(result, set(range(count)) - {number})
        node = result.graph.node[number]
        for through in node.input:
            yield bypassed(result, number, node.output[0], through)


def bypassed(result: onnx.ModelProto, number: int, output: str, through: str) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(result)
    del made.graph.node[number]
    for node in made.graph.node:
        for place, name in enumerate(node.input):
            if name == output:
                node.input[place] = through
    return made


def assert_one_minimal(result: onnx.ModelProto, fails: Predicate) -> None:
    assert fails(result)
    for smaller in single_removals(result):
        assert not fails(smaller), f"{names(result)} could be {names(smaller)}"


def reduced(original: onnx.ModelProto, fails: Predicate, folder: Path, **options: object) -> onnx.ModelProto:
    biopsy.reduce(original, fails, folder / "r.onnx", takes="model", values="free", **options)
    return onnx.load(folder / "r.onnx")


def at_least(count: int, wanted: list[str]) -> Predicate:
    return lambda candidate: len(set(wanted) & set(names(candidate))) >= count


def without(wanted: str, unwanted: str) -> Predicate:
    """The first is there and the second is not, or both are there with everything else: not monotone."""
    return lambda candidate: (
        wanted in names(candidate) and (unwanted not in names(candidate) or len(candidate.graph.node) > 3)
    )


def op_with_attribute(candidate: onnx.ModelProto) -> bool:
    return any(node.attribute for node in candidate.graph.node)


def op_reading(op_type: str, other: str) -> Predicate:
    """A node of one operator reads what a node of another computes: what a fusion looks for."""

    def fails(candidate: onnx.ModelProto) -> bool:
        made = {name for node in candidate.graph.node if node.op_type == other for name in node.output}
        return any(node.op_type == op_type and made & set(node.input) for node in candidate.graph.node)

    return fails


@st.composite
def cases(draw: st.DrawFn) -> tuple[onnx.ModelProto, Predicate]:
    """A graph with a failure that the graph has."""
    original = draw(graphs())
    every = names(original)
    pick = st.sampled_from(every)
    one, other = draw(pick), draw(pick)
    five = draw(st.lists(pick, min_size=1, max_size=5, unique=True))
    fails = draw(
        st.sampled_from(
            [
                has(one, other),
                has_any(one, other),
                without(one, other),
                at_least(min(3, len(five)), five),
                connected(one, other),
                op_with_attribute,
                op_reading(draw(st.sampled_from(OPS)), draw(st.sampled_from(OPS))),
            ]
        )
    )
    return original, fails


@pytest.mark.slow
@given(case=cases())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_single_node_of_a_result_can_go(case: tuple[onnx.ModelProto, Predicate], tmp_path: Path) -> None:
    original, fails = case
    if fails(original):
        assert_one_minimal(reduced(original, fails, tmp_path), fails)


@pytest.mark.slow
@given(case=cases())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_same_reduction_gives_the_same_file(case: tuple[onnx.ModelProto, Predicate], tmp_path: Path) -> None:
    original, fails = case
    if fails(original):
        assert reduced(original, fails, tmp_path) == reduced(original, fails, tmp_path)


@pytest.mark.slow
@given(original=graphs(), data=st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_two_needed_nodes_exactly_two_are_left(
    original: onnx.ModelProto, data: st.DataObject, tmp_path: Path
) -> None:
    one = data.draw(st.sampled_from(names(original)))
    other = data.draw(st.sampled_from(names(original)))
    assert set(names(reduced(original, has(one, other), tmp_path))) == {one, other}


def test_what_stands_between_two_connected_nodes_is_bypassed(tmp_path: Path) -> None:
    result = reduced(chain(200), connected("n20", "n170"), tmp_path)
    assert names(result) == ["n20", "n170"]
    assert result.graph.node[1].input[0] == result.graph.node[0].output[0]


def test_where_values_are_kept_what_connects_them_stays(tmp_path: Path) -> None:
    biopsy.reduce(chain(50), connected("n20", "n30"), tmp_path / "r.onnx", takes="model", values="keep")
    assert names(onnx.load(tmp_path / "r.onnx")) == [f"n{number}" for number in range(20, 31)]


@pytest.mark.parametrize("length", [10, 100, 1000, 10_000])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_one_culprit_costs_one_logarithm_and_ten_checks(tmp_path: Path, length: int, place: float) -> None:
    culprit = f"n{round(place * (length - 1))}"
    result = biopsy.reduce(chain(length), has(culprit), tmp_path / "r.onnx", takes="model")
    assert result.nodes == (f"Relu '{culprit}'",)
    assert result.checks <= math.ceil(math.log2(length)) + 10


@pytest.mark.slow
@pytest.mark.parametrize("length", [100, 1000, 10_000])
@pytest.mark.parametrize("places", [(0.0, 1.0), (0.1, 0.9), (0.4, 0.5), (0.99, 1.0)])
def test_two_culprits_far_apart_cost_two_logarithms_and_21_checks(
    tmp_path: Path, length: int, places: tuple[float, float]
) -> None:
    culprits = [f"n{round(place * (length - 1))}" for place in places]
    result = biopsy.reduce(chain(length), has(*culprits), tmp_path / "r.onnx", takes="model")
    assert len(result.nodes) == 2
    assert result.checks <= 2 * math.ceil(math.log2(length)) + 21


@pytest.mark.slow
def test_three_culprits_among_ten_thousand_nodes_cost_at_most_70_checks(tmp_path: Path) -> None:
    result = biopsy.reduce(chain(10_000), has("n123", "n5000", "n9876"), tmp_path / "r.onnx", takes="model")
    assert result.kept == (123, 5000, 9876)
    assert result.checks <= 70


def shifted(length: int) -> onnx.ModelProto:
    """A chain of Add with weights, so that a probe has something to change."""
    nodes = [helper.make_node("Add", [f"t{i}", f"w{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(length)]
    weights = [weight(f"w{i}", float(i + 1)) for i in range(length)]
    return model(nodes, [info("t0")], [info(f"t{length}")], weights)


def test_a_golden_value_check_is_not_fooled_by_a_bypass(tmp_path: Path) -> None:
    """Golden values of a variant in which one layer adds something else: bypassed nodes would fail by themselves."""
    import numpy as np

    original, variant = shifted(12), shifted(12)
    variant.graph.initializer[7].CopyFrom(weight("w7", 100.0))
    feed = {"t0": np.zeros((2, 2), np.float32)}
    golden = {**feed, **biopsy.run(variant, inputs=feed, outputs="all")[0].iterations[0].outputs}

    def fails(candidate: onnx.ModelProto) -> bool:
        fed = {entry.name: golden[entry.name] for entry in candidate.graph.input}
        return not biopsy.compare(biopsy.run(candidate, inputs=fed)[0], golden).passed

    result = biopsy.reduce(original, fails, tmp_path / "r.onnx", takes="model", inputs=[feed])
    assert result.kept == (7,)


def test_a_check_of_the_last_output_alone_is_not_fooled_by_a_bypass(tmp_path: Path) -> None:
    """It passes whatever lacks that output, and a weight that decides nothing may change without being noticed."""
    import numpy as np

    nodes = [
        helper.make_node("Neg", ["x"], ["q"], name="culprit"),
        helper.make_node("Greater", ["x", "hundred"], ["c"], name="greater"),
        helper.make_node("Tanh", ["q"], ["t"], name="tanh"),
        helper.make_node("Sigmoid", ["q"], ["s"], name="sigmoid"),
        helper.make_node("Where", ["c", "s", "t"], ["w"], name="where"),
        helper.make_node("Softplus", ["w"], ["v"], name="softplus"),
        helper.make_node("Abs", ["v"], ["y"], name="abs"),
    ]
    original = model(nodes, [info("x", (4,))], [info("y", (4,))], [weight("hundred", 100.0, shape=())])
    variant = onnx.ModelProto.FromString(original.SerializeToString())
    variant.graph.node[0].op_type = "Cos"
    feed = {"x": np.array([200, -3, 300, 1], np.float32)}
    golden = {**feed, **biopsy.run(variant, inputs=feed, outputs="all")[0].iterations[0].outputs}

    def fails(candidate: onnx.ModelProto) -> bool:
        if "y" not in [entry.name for entry in candidate.graph.output]:
            return False
        fed = {entry.name: golden[entry.name] for entry in candidate.graph.input}
        return not biopsy.compare(biopsy.run(candidate, inputs=fed)[0], {"y": golden["y"]}).passed

    for mode in ("bisect", "linear", "minimal"):
        biopsy.reduce(original, fails, tmp_path / "r.onnx", takes="model", mode=mode)
        assert "culprit" in names(onnx.load(tmp_path / "r.onnx")), mode


def test_the_probe_finds_that_a_structural_check_may_be_bypassed(tmp_path: Path) -> None:
    told: list[object] = []
    biopsy.reduce(shifted(40), connected("n5", "n30"), tmp_path / "r.onnx", takes="model", listener=told.append)
    assert names(onnx.load(tmp_path / "r.onnx")) == ["n5", "n30"]
    assert any(getattr(event, "stage", "") == "values" for event in told)
