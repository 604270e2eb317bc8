"""A known pattern is found wherever it stands, and nowhere else."""

from __future__ import annotations

import onnx
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper

from biopsy.questions.known_failures.fingerprint import Pattern
from biopsy.questions.known_failures.occurrence import occurrence_in
from biopsy.questions.known_failures.reading import pattern_of
from support.models import info, model, weight
from support.rewritten import permuted, renamed

OPERATORS = ("Relu", "Neg", "Add", "Sub")


def nodes_of(choices: list[tuple[int, int, int]], tensors: list[str], name: str) -> list[onnx.NodeProto]:
    """A node for each choice: of its operator, and of what it reads among what there is by then."""
    nodes = []
    for number, (operator, first, second) in enumerate(choices):
        op = OPERATORS[operator % len(OPERATORS)]
        read = [tensors[first % len(tensors)], tensors[second % len(tensors)]][: 2 if op in ("Add", "Sub") else 1]
        nodes.append(helper.make_node(op, read, [f"{name}{number}"]))
        tensors.append(f"{name}{number}")
    return nodes


def pattern(nodes: list[onnx.NodeProto]) -> Pattern:
    read = {name for node in nodes for name in node.input}
    ends = [info(node.output[0]) for node in nodes if node.output[0] not in read]
    return pattern_of(model(nodes, [info("x"), info("z")], ends, [weight("w", 1, 2, 3, 4, shape=(2, 2))]))


CHOICES = st.lists(st.tuples(*[st.integers(0, 50)] * 3), min_size=2, max_size=5)


@settings(max_examples=80, deadline=None)
@given(CHOICES, CHOICES, st.integers(0, 1000))
def test_a_pattern_is_found_among_other_nodes(known: list, more: list, seed: int) -> None:
    tensors = ["x", "z", "w"]
    inside = nodes_of(known, tensors, "k")
    around = nodes_of(more, tensors, "m")
    made = model([*inside, *around], [info("x"), info("z")], [info(name) for name in tensors[3:]], [])
    made.graph.initializer.append(weight("w", 1, 2, 3, 4, shape=(2, 2)))
    found = occurrence_in(pattern(inside), pattern_of(permuted(renamed(made, seed), seed)))
    assert found is not None
    assert len(found.more) == len(around)
    assert not found.essential


@settings(max_examples=80, deadline=None)
@given(CHOICES, st.data())
def test_it_is_not_found_where_one_of_its_nodes_has_another_operator(known: list, data: st.DataObject) -> None:
    nodes = nodes_of(known, ["x", "z", "w"], "k")
    wanted = pattern(nodes)
    changed = nodes[data.draw(st.integers(0, len(nodes) - 1))]
    changed.op_type = {"Relu": "Exp", "Neg": "Exp", "Add": "Mul", "Sub": "Mul"}[changed.op_type]
    assert occurrence_in(wanted, pattern(nodes)) is None


@settings(max_examples=80, deadline=None)
@given(CHOICES, st.data())
def test_it_is_not_found_where_a_node_reads_something_else(known: list, data: st.DataObject) -> None:
    nodes = nodes_of(known, ["x", "z", "w"], "k")
    wanted = pattern(nodes)
    readers = [node for node in nodes if any(name.startswith("k") for name in node.input)]
    assume(readers)
    changed = data.draw(st.sampled_from(readers))
    place = next(number for number, name in enumerate(changed.input) if name.startswith("k"))
    changed.input[place] = "fed"  # one edge less between the same operators
    made = model(nodes, [info(name) for name in ("x", "z", "fed")], [], [weight("w", 1, 2, 3, 4, shape=(2, 2))])
    made.graph.output.extend(info(node.output[0]) for node in nodes)
    assert occurrence_in(wanted, pattern_of(made)) is None


def test_it_is_found_in_itself_without_a_difference() -> None:
    nodes = nodes_of([(0, 0, 0), (2, 3, 1)], ["x", "z", "w"], "k")
    found = occurrence_in(pattern(nodes), pattern(nodes))
    assert found is not None and (found.differences, found.more) == ((), ())
