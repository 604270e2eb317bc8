"""Constants, random operators and the order of neighbours among the nodes of an indexed model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from biopsy.model import walk, wire
from biopsy.model.index import ModelIndex, Node
from biopsy.model.parts import FunctionKey
from biopsy.model.wire import fields, string_field
from biopsy.slow_imports import onnx
from biopsy.text import first_of


def is_constant_node(index: ModelIndex, node: int) -> bool:
    """Whether a node is a Constant."""
    return index.nodes[node].op_type == "Constant" and not index.nodes[node].domain


def constant_of_node(index: ModelIndex, tensor: int) -> bytes | None:
    """The value of a tensor that a Constant node with a plain tensor writes, serialized; None for any other tensor."""
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


RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
"""Standard operators that always give random results: other ones in each run and engine, even with a seed."""

_DROPOUT: FunctionKey = ("", "Dropout", "")


def random_nodes(index: ModelIndex) -> list[str]:
    """Labels of the random nodes in the model's order, including nodes with a random body or function.

    A Dropout is random in training mode: if its ``training_mode`` is true or unknown; before opset 7, if it has no
    ``is_test``. From opset 7 to 11 it never is.
    """
    labels = []
    for node in index.nodes:
        operators = index.operators_run(node.calls)
        names = sorted(name for domain, name, _ in operators if not domain and name in RANDOM)
        if _DROPOUT in operators and _has_training_dropout(node, operators, index):
            names.append("Dropout in training mode")
        if names:
            inside = [name for name in names if name.partition(" ")[0] != node.op_type or node.domain]
            mode = " in training mode" if node.op_type == "Dropout" and not node.domain else ""
            labels.append(f"{node.label}{mode}" + (f" ({', '.join(inside)} inside)" if inside else ""))
    return labels


def warning_of_random(index: ModelIndex) -> str | None:
    """A warning that comparing outputs of this model says nothing, since nodes are random; None if none is."""
    labels = random_nodes(index)
    if not labels:
        return None
    return (
        f"the model has random operators ({first_of(labels, 5)}): every run gives other values, whatever the seed, so "
        "comparing outputs that depend on them says nothing"
    )


def may_be_random(data: bytes) -> bool:
    """Whether a serialized model may have random nodes: a quick test before it is indexed for ``random_nodes``."""
    return any(name in data for name in (b"Random", b"Bernoulli", b"Multinomial", b"Dropout"))


def _has_training_dropout(node: Node, operators: set[FunctionKey], index: ModelIndex) -> bool:
    """Whether a node is or runs a Dropout that is, or may be, in training mode; it runs these ``operators``."""
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
    for key in operators & index.functions.keys():
        (function,) = onnx.ModelProto.FromString(index.functions[key][0]).functions
        nodes += walk.nodes_within(function.node)
    weights = [weight for body in walk.graphs_within(graph.node) for weight in body.initializer]
    truths = {**_truth_values(constants, scalars), **_truth_values(nodes, weights)}
    for dropout in (each for each in nodes if walk.operator(each) == _DROPOUT):
        if index.opset < 7:
            if not any(attribute.name == "is_test" and attribute.i for attribute in dropout.attribute):
                return True
        elif index.opset >= 12 and any(truths.get(name, True) for name in dropout.input[2:3] if name):
            return True
    return False


def _truth_values(nodes: Iterable[onnx.NodeProto], weights: Iterable[onnx.TensorProto]) -> dict[str, bool]:
    """The values of boolean constants, by the names of their tensors; of several elements, whether any is true."""
    tensors = {weight.name: weight for weight in weights}
    for node in nodes:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            tensors[node.output[0]] = node.attribute[0].t
    return {
        name: bool(onnx.numpy_helper.to_array(tensor).any())
        for name, tensor in tensors.items()
        if tensor.data_type == 9
    }


def neighbourhood_order(index: ModelIndex, nodes: Sequence[int]) -> list[int]:
    """The nodes in a topological order that follows each branch to its end before it begins the next.

    A slice of this list is far more often a connected part of the graph than a slice of the model's own order, in which
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
