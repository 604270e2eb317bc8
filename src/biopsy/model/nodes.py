"""Questions about the nodes of an indexed model: which hold constants, which give random results, and which order
keeps neighbours together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from biopsy.model import walk, wire
from biopsy.model.index import ModelIndex, Node
from biopsy.model.parts import FunctionKey
from biopsy.model.wire import fields, string_field
from biopsy.text import first_of

if TYPE_CHECKING:
    import onnx


def is_constant_node(index: ModelIndex, node: int) -> bool:
    """Whether a node is a Constant: another way to write a weight."""
    return index.nodes[node].op_type == "Constant" and not index.nodes[node].domain


def constant_of_node(index: ModelIndex, tensor: int) -> bytes | None:
    """The serialized TensorProto that a Constant node with a plain tensor writes; None for any other tensor."""
    producer = index.producer.get(tensor)
    if producer is None or not is_constant_node(index, producer):
        return None
    span = index.node_spans[producer]
    node = next(fields(span))
    for number, _, _, start, end in fields(span, node[3], node[4]):
        if number != 5:  # NodeProto.attribute
            continue
        for of_attribute, kind, _, value, stop in fields(span, start, end):
            if of_attribute == 5 and kind == wire.BYTES:  # AttributeProto.t, under a new name, which is field 8
                kept = [span[tag:to] for inner, _, tag, _, to in fields(span, value, stop) if inner != 8]
                return b"".join((*kept, string_field(8, wire.raw(index.names[tensor]))))
        return None
    return None


# Nodes whose results are random, and so another with every run and in every engine, whatever their seed says.

RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
"""Operators of the standard that are random always."""

_DROPOUT: FunctionKey = ("", "Dropout", "")


def random_nodes(index: ModelIndex) -> list[str]:
    """What a person calls the random nodes, in the model's order; of a body or function, the node that runs it.

    A Dropout is random in training mode: if its ``training_mode`` is true, or nobody knows, and before opset 7 without
    ``is_test``. From opset 7 to 11 it never is.
    """
    found = []
    for node in index.nodes:
        called = _called(node.calls, index)
        names = sorted(name for domain, name, _ in called if not domain and name in RANDOM)
        if _DROPOUT in called and _trains(node, called, index):
            names.append("Dropout in training mode")
        if names:
            inside = [name for name in names if name.partition(" ")[0] != node.op_type or node.domain]
            mode = " in training mode" if node.op_type == "Dropout" and not node.domain else ""
            found.append(f"{node.label}{mode}" + (f" ({', '.join(inside)} inside)" if inside else ""))
    return found


def random_words(index: ModelIndex) -> str | None:
    """That a comparison of such a model says nothing, with its random nodes; None if it has none."""
    found = random_nodes(index)
    if not found:
        return None
    return (
        f"the model has random operators ({first_of(found, 5)}): every run gives other values, whatever the seed, so "
        "comparing them says nothing"
    )


def may_be_random(data: bytes) -> bool:
    """Whether a serialized model names a random operator anywhere: quick, to find out if a closer look is worth it."""
    return any(name in data for name in (b"Random", b"Bernoulli", b"Multinomial", b"Dropout"))


def _called(calls: Iterable[FunctionKey], index: ModelIndex) -> frozenset[FunctionKey]:
    """Operators that are run, those of functions and of the functions that they call included."""
    found: set[FunctionKey] = set()
    waiting = list(calls)
    while waiting:
        key = waiting.pop()
        if key not in found:
            found.add(key)
            if key in index.functions:
                waiting += index.functions[key][1].calls
    return frozenset(found)


def _trains(node: Node, called: frozenset[FunctionKey], index: ModelIndex) -> bool:
    """Whether a Dropout that a node is, or runs, is in training mode as far as anybody knows."""
    import onnx

    producers = (index.producer[tensor] for tensor in node.reads if tensor in index.producer)
    spans = [index.node_spans[number] for number in producers if index.nodes[number].op_type == "Constant"]
    constants = [constant for span in spans for constant in onnx.GraphProto.FromString(span).node]
    scalars = [
        onnx.TensorProto.FromString(index.buffer[weight.start : weight.end])
        for weight in (index.weights[tensor] for tensor in node.reads if tensor in index.weights)
        if not weight.sparse and not weight.external and weight.end - weight.start < 200
    ]
    graph = onnx.GraphProto.FromString(index.node_spans[node.number])
    nodes = list(walk.nodes_within(graph.node))
    for key in called & index.functions.keys():
        (function,) = onnx.ModelProto.FromString(index.functions[key][0]).functions
        nodes += walk.nodes_within(function.node)
    weights = [weight for body in walk.graphs_within(graph.node) for weight in body.initializer]
    known = {**_known(constants, scalars), **_known(nodes, weights)}
    for dropout in (each for each in nodes if walk.operator(each) == _DROPOUT):
        if index.opset < 7:
            if not any(attribute.name == "is_test" and attribute.i for attribute in dropout.attribute):
                return True
        elif index.opset >= 12 and any(known.get(name, True) for name in dropout.input[2:3] if name):
            return True
    return False


def _known(nodes: Iterable[onnx.NodeProto], weights: Iterable[onnx.TensorProto]) -> dict[str, bool]:
    """Truth values of constants, by the names of their tensors."""
    from onnx import numpy_helper

    tensors = {weight.name: weight for weight in weights}
    for node in nodes:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            tensors[node.output[0]] = node.attribute[0].t
    return {
        name: bool(numpy_helper.to_array(tensor).any()) for name, tensor in tensors.items() if tensor.data_type == 9
    }


def neighbourhood_order(index: ModelIndex, nodes: Sequence[int]) -> list[int]:
    """The nodes in a topological order that follows a branch to its end before it begins the next.

    A piece of this list is a connected part of the graph far more often than a piece of the model's own order, where
    exporters interleave branches. Nodes on a cycle, which no valid model has, come last.
    """
    kept = set(nodes)
    producer, consumers = index.producer, index.consumers
    waiting = {
        node: len({producer[tensor] for tensor in index.node_reads[node] if producer.get(tensor, -1) in kept} - {node})
        for node in nodes
    }
    ready = [node for node in reversed(nodes) if waiting[node] == 0]
    order: list[int] = []
    while ready:
        node = ready.pop()
        order.append(node)
        followers = {
            follower for tensor in index.node_writes[node] for follower in consumers.get(tensor, ()) if follower in kept
        }
        for follower in sorted(followers - {node}, reverse=True):
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    if len(order) < len(kept):
        placed = set(order)
        order += [node for node in nodes if node not in placed]
    return order
