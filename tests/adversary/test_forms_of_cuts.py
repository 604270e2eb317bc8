"""The form of a cut: a constant may hide the bug that the same value shows when it is fed, and the other way round."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import biopsy
from support import oracle
from support.models import BOOL, INT64, info, model, weight
from support.predicates import has, names

Predicate = Callable[[onnx.ModelProto], bool]
SAMPLE = {"x": np.full((2, 2), 1.5, np.float32), "i": np.array([[1, 2], [3, 4]], np.int64)}
FLOAT_OPS = ("Add", "Mul", "Neg", "Abs")
ANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """A random DAG of up to 9 nodes over float32 and int64 tensors [2, 2]."""
    kinds = {"x": 1, "i": INT64}
    nodes = []
    for number in range(draw(st.integers(2, 9))):
        source = draw(st.sampled_from(list(kinds)[-4:]))
        op = draw(st.sampled_from((*FLOAT_OPS, "Cast")))
        inputs, elem, attributes = [source], kinds[source], {}
        if op in {"Add", "Mul"}:
            inputs.append(draw(st.sampled_from([name for name, kind in kinds.items() if kind == elem])))
        elif op == "Cast":
            elem = 1 if elem == INT64 else INT64
            attributes = {"to": elem}
        nodes.append(helper.make_node(op, inputs, [f"t{number}"], name=f"n{number}", **attributes))
        kinds[f"t{number}"] = elem
    read = {name for node in nodes for name in node.input}
    ends = [info(name, elem=kind) for name, kind in kinds.items() if name[0] == "t" and name not in read]
    inner = [info(name, elem=kind) for name, kind in kinds.items() if name[0] == "t" and name in read]
    return model(nodes, [info("x"), info("i", elem=INT64)], ends, value_info=inner)


def structure(candidate: onnx.ModelProto) -> list[tuple[str, list[str]]]:
    """Each node with what its inputs are: a node's name, a constant, or fed."""
    made = {name: node.name for node in candidate.graph.node for name in node.output}
    constant = {entry.name for entry in candidate.graph.initializer}
    return [
        (node.name, [made.get(name, "constant" if name in constant else "fed") for name in node.input])
        for node in candidate.graph.node
    ]


@dataclass(frozen=True)
class Reads:
    """A node is there, and one of its inputs is of this kind, or computed by a node."""

    name: str
    kind: str

    def __call__(self, candidate: onnx.ModelProto) -> bool:
        other = {"constant": "fed", "fed": "constant"}[self.kind]
        return any(name == self.name and set(inputs) - {other} for name, inputs in structure(candidate))


@dataclass(frozen=True)
class Lots:
    """Holds for the original, and else by lot, from the nodes and the form of what they read: nothing is monotone."""

    whole: int
    seed: int

    def __call__(self, candidate: onnx.ModelProto) -> bool:
        found = structure(candidate)
        lot = hashlib.blake2b(repr((self.seed, found)).encode(), digest_size=1).digest()[0]
        return len(found) == self.whole or (bool(found) and lot < 80)


@st.composite
def cases(draw: st.DrawFn) -> tuple[onnx.ModelProto, Predicate]:
    original = draw(graphs())
    one, other = draw(st.sampled_from(names(original))), draw(st.sampled_from(names(original)))
    kind = draw(st.sampled_from(["constant", "fed"]))
    lots = Lots(len(original.graph.node), draw(st.integers(0, 1000)))
    both = (Reads(one, kind), Reads(other, draw(st.sampled_from(["constant", "fed"]))))
    return original, draw(st.sampled_from([Reads(one, kind), lots, lambda made: all(reads(made) for reads in both)]))


def recorded(original: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Every tensor of the original; given as a sample, it spares a reduction the run to record them."""
    marked = onnx.ModelProto.FromString(original.SerializeToString())
    marked.graph.output.extend(original.graph.value_info)
    outputs = [entry.name for entry in marked.graph.output]
    return {**SAMPLE, **dict(zip(outputs, ReferenceEvaluator(marked).run(None, SAMPLE), strict=True))}


def single_removals(result: onnx.ModelProto, values: dict[str, np.ndarray]) -> Iterator[onnx.ModelProto]:
    """Every model with one node less: cut and fed, cut and frozen, or bypassed."""
    count = len(result.graph.node)
    types = {entry.name: entry.type for entry in (*result.graph.input, *result.graph.output, *result.graph.value_info)}
    constant = {entry.name: entry.data_type for entry in result.graph.initializer}
    kinds = {**{name: kind.tensor_type.elem_type for name, kind in types.items()}, **constant}
    for number, node in enumerate(result.graph.node):
        if count > 1:
            fed = oracle.candidate(result, set(range(count)) - {number})
            yield fed
            yield frozen(fed, node.output[0], values)
        for through in node.input:
            if kinds[through] == kinds[node.output[0]]:
                made = onnx.ModelProto.FromString(result.SerializeToString())
                del made.graph.node[number]
                for reader in made.graph.node:
                    reader.input[:] = [through if name == node.output[0] else name for name in reader.input]
                yield made


def frozen(fed: onnx.ModelProto, name: str, values: dict[str, np.ndarray]) -> onnx.ModelProto:
    made = onnx.ModelProto.FromString(fed.SerializeToString())
    kept = [entry for entry in made.graph.input if entry.name != name]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    made.graph.initializer.append(numpy_helper.from_array(np.asarray(values[name]), name))
    return made


def reduced(original: onnx.ModelProto, fails: Predicate, folder: Path, **options: object) -> onnx.ModelProto:
    biopsy.reduce(original, fails, folder / "r.onnx", takes="model", allow_vacuous_check=True, **options)
    result = onnx.load(folder / "r.onnx")
    assert fails(result)
    onnx.checker.check_model(result, full_check=True)
    return result


@given(case=cases())
@ANY
def test_no_single_node_of_a_result_can_go_fed_frozen_or_bypassed(
    case: tuple[onnx.ModelProto, Predicate], tmp_path: Path
) -> None:
    original, fails = case
    if fails(original):
        values = recorded(original)
        result = reduced(original, fails, tmp_path, inputs=[values], values="free")
        for smaller in single_removals(result, values):
            assert not fails(smaller), f"{structure(result)} could be {structure(smaller)}"


@given(case=cases())
@ANY
def test_where_values_are_kept_no_single_node_can_go_fed_or_frozen_and_values_are_the_originals(
    case: tuple[onnx.ModelProto, Predicate], tmp_path: Path
) -> None:
    original, fails = case
    if not fails(original):
        return
    values = recorded(original)
    result = reduced(original, fails, tmp_path, inputs=[values], values="keep")
    count = len(result.graph.node)
    for number, node in enumerate(result.graph.node):
        if count > 1:
            fed = oracle.candidate(result, set(range(count)) - {number})
            assert not fails(fed)
            assert not fails(frozen(fed, node.output[0], values))
    feed = {entry.name: values[entry.name] for entry in result.graph.input}
    for entry, value in zip(result.graph.output, ReferenceEvaluator(result).run(None, feed), strict=True):
        np.testing.assert_array_equal(value, values[entry.name])


@pytest.mark.slow
@given(case=cases(), wanted=st.lists(st.integers(0, 8), min_size=1, max_size=5))
@ANY
def test_trying_both_forms_costs_no_more_checks_than_nodes_are_left(
    case: tuple[onnx.ModelProto, Predicate], wanted: list[int], tmp_path: Path
) -> None:
    original, _ = case
    every = names(original)
    fails = has(*(every[number % len(every)] for number in wanted))
    options = {"takes": "model", "inputs": [recorded(original)], "values": "free"}
    both = biopsy.reduce(original, fails, tmp_path / "both.onnx", **options)
    one = biopsy.reduce(original, fails, tmp_path / "one.onnx", skip_pass=("forms",), **options)
    assert len(both.nodes) == len(one.nodes)
    assert both.checks <= one.checks + len(both.nodes)


def dividing() -> onnx.ModelProto:
    """The number of elements above 100 is zero, and something is divided by it."""
    nodes = [
        helper.make_node("Greater", ["x", "hundred"], ["g"], name="greater"),
        helper.make_node("Cast", ["g"], ["c"], name="cast", to=INT64),
        helper.make_node("ReduceSum", ["c"], ["s"], name="sum", keepdims=0),
        helper.make_node("Div", ["i", "s"], ["y"], name="div"),
    ]
    inner = [info("g", elem=BOOL), info("c", elem=INT64), info("s", (), INT64)]
    inputs = [info("x"), info("i", elem=INT64)]
    return model(nodes, inputs, [info("y", elem=INT64)], [weight("hundred", 100.0)], value_info=inner)


def divides_by_no_constant(candidate: onnx.ModelProto) -> bool:
    """What an engine does that folds a division by a constant zero away."""
    return any(name == "div" and inputs[1] != "constant" for name, inputs in structure(candidate))


def test_a_divisor_that_looks_like_a_shape_is_fed_where_only_that_fails(tmp_path: Path) -> None:
    result = reduced(dividing(), divides_by_no_constant, tmp_path, inputs=[SAMPLE])
    assert structure(result) == [("div", ["fed", "fed"])]


def long_count(length: int) -> onnx.ModelProto:
    """The same with a long way of integers to the divisor."""
    made = dividing()
    steps = [helper.make_node("Neg", [f"s{at or ''}"], [f"s{at + 1}"], name=f"neg{at}") for at in range(length)]
    made.graph.node[3].input[1] = f"s{length}"
    nodes = [*made.graph.node[:3], *steps, made.graph.node[3]]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def test_a_long_way_of_frozen_integers_goes_in_few_checks(tmp_path: Path) -> None:
    found = biopsy.reduce(
        long_count(200), divides_by_no_constant, tmp_path / "r.onnx", takes="model", inputs=[SAMPLE], values="keep"
    )
    assert found.nodes == ("Div 'div'",)
    assert found.checks <= 204 + 40


@pytest.mark.parametrize("cut", ["input", "constant"])
def test_a_form_that_the_user_forces_is_never_turned(tmp_path: Path, cut: str) -> None:
    seen: list[onnx.ModelProto] = []

    def fails(candidate: onnx.ModelProto) -> bool:
        seen.append(candidate)
        return {"cast", "div"} <= set(names(candidate))

    reduced(dividing(), fails, tmp_path, inputs=[SAMPLE], cut=cut, values="keep")
    assert len(seen) > 1
    for candidate in seen:
        constant = {entry.name for entry in candidate.graph.initializer} - {"hundred"}
        fed = {entry.name for entry in candidate.graph.input} - {"x", "i"}
        assert not (constant if cut == "input" else fed)


def test_a_float_that_depends_on_inputs_is_frozen_where_only_that_fails(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="neg"),
        helper.make_node("Exp", ["a"], ["b"], name="exp"),
        helper.make_node("Mul", ["b", "b"], ["y"], name="mul"),
    ]

    def fails(candidate: onnx.ModelProto) -> bool:
        return any(name == "mul" and "fed" not in inputs for name, inputs in structure(candidate))

    result = reduced(model(nodes, [info("x")], [info("y")]), fails, tmp_path, inputs=[SAMPLE])
    assert structure(result) == [("mul", ["constant", "constant"])]


def test_a_constant_elsewhere_that_hides_the_failure_is_fed(tmp_path: Path) -> None:
    """As long as 'first' is there it does not matter what the others read; without it nothing may be constant."""
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], name="cast", to=INT64),
        helper.make_node("Neg", ["i"], ["n"], name="first"),
        helper.make_node("Add", ["c", "n"], ["y"], name="add"),
    ]
    made = model(
        nodes, [info("x"), info("i", elem=INT64)], [info("y", elem=INT64)],
        value_info=[info("c", elem=INT64), info("n", elem=INT64)],
    )  # fmt: skip

    def fails(candidate: onnx.ModelProto) -> bool:
        kept = dict(structure(candidate))
        return "add" in kept and ("first" in kept or "constant" not in kept["add"])

    assert names(reduced(made, fails, tmp_path, inputs=[SAMPLE], values="keep")) == ["add"]


def test_with_made_up_samples_nothing_that_depends_on_random_values_is_frozen(tmp_path: Path) -> None:
    seen: list[onnx.ModelProto] = []

    def fails(candidate: onnx.ModelProto) -> bool:
        seen.append(candidate)
        return {"neg", "cast"} <= set(names(candidate))

    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="neg"),
        helper.make_node("Cast", ["a"], ["b"], name="cast", to=INT64),
        helper.make_node("Abs", ["b"], ["y"], name="abs"),
    ]
    reduced(model(nodes, [info("x")], [info("y", elem=INT64)]), fails, tmp_path)
    assert not any(candidate.graph.initializer for candidate in seen)
