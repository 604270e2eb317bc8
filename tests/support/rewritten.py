"""The same model written otherwise: other names, orders, sizes and weights, which no fingerprint may see."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import helper, numpy_helper

from biopsy.model import walk


def renamed(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Every tensor, node and graph gets another name."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    names: dict[str, str] = {"": ""}
    chance = random.Random(seed)

    def other(name: str) -> str:
        return names.setdefault(name, f"{chance.choice('pqrs')}{chance.random()}")

    for graph in walk.graphs(made):
        graph.name = other(graph.name) or "g"
        for info in (*graph.input, *graph.output, *graph.value_info):
            info.name = other(info.name)
        for weight in graph.initializer:
            weight.name = other(weight.name)
        for node in graph.node:
            node.name = f"node {chance.random()}"
            node.doc_string = "something else"
            node.input[:] = map(other, node.input)
            node.output[:] = map(other, node.output)
    return made


def permuted(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Nodes, inputs, outputs, initializers, attributes and opsets of the model in another order."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    chance = random.Random(seed)
    graph = made.graph
    for field in (graph.input, graph.output, graph.initializer, graph.value_info, made.opset_import):
        _shuffle(field, chance)
    _topologically(graph, chance)
    for node in walk.nodes(made):
        _shuffle(node.attribute, chance)
    return made


def _shuffle(field: object, chance: random.Random) -> None:
    held = list(field)  # type: ignore[call-overload]
    chance.shuffle(held)
    del field[:]  # type: ignore[attr-defined]
    field.extend(held)  # type: ignore[attr-defined]


def _topologically(graph: onnx.GraphProto, chance: random.Random) -> None:
    """The nodes in another order in which each stands behind what it reads."""
    left = list(graph.node)
    made = {info.name for info in graph.input} | {weight.name for weight in graph.initializer} | {""}
    produced = {name for node in left for name in node.output}
    order = []
    while left:
        ready = [node for node in left if all(name in made or name not in produced for name in walk.reads(node))]
        node = chance.choice(ready)
        left.remove(node)
        made.update(node.output)
        order.append(node)
    del graph.node[:]
    graph.node.extend(order)


def resized(model: onnx.ModelProto, times: int) -> onnx.ModelProto:
    """Every dimension and every kernel larger, every weight another; what axes say stays as it is."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    random_values = np.random.default_rng(times)
    axes = {name for node in walk.nodes(made) for name in node.input[1:] if node.op_type.startswith("Reduce")}
    for graph in walk.graphs(made):
        for info in (*graph.input, *graph.output, *graph.value_info):
            for dim in info.type.tensor_type.shape.dim:
                dim.dim_value = max(dim.dim_value, 1) * times
        for weight in graph.initializer:
            if weight.name not in axes:
                shape = [size * times for size in weight.dims]
                kind = helper.tensor_dtype_to_np_dtype(weight.data_type)
                values = random_values.integers(0, 9, shape).astype(kind)
                weight.CopyFrom(numpy_helper.from_array(np.asarray(values), weight.name))
    for node in walk.nodes(made):
        for attribute in node.attribute:
            if attribute.name in ("kernel_shape", "hidden_size", "split", "blocksize"):
                attribute.ints[:] = [number * times for number in attribute.ints]
            if attribute.name == "epsilon":
                attribute.f *= times
    return made


def with_constant_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every initializer as a Constant node, a copy for each node that reads it."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    graph = made.graph
    weights = {weight.name: weight for weight in graph.initializer}
    del graph.initializer[:]
    nodes = []
    for node in graph.node:
        for number, name in enumerate(node.input):
            if name in weights:
                copy = f"{name} of {len(nodes)}"
                nodes.append(helper.make_node("Constant", [], [copy], value=weights[name]))
                node.input[number] = copy
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return made


def with_identities(model: onnx.ModelProto) -> onnx.ModelProto:
    """An Identity node behind every input and before every output."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    inputs = {info.name for info in model.graph.input}
    outputs = {info.name for info in model.graph.output}
    begins = [helper.make_node("Identity", [name], [f"{name} passed"]) for name in sorted(inputs)]
    ends = [helper.make_node("Identity", [f"{name} inside"], [name]) for name in sorted(outputs)]
    del made.graph.node[:]
    made.graph.node.extend([*begins, *_copies(model), *ends])
    return made


def _copies(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    inputs = {info.name for info in model.graph.input}
    outputs = {info.name for info in model.graph.output}
    found = []
    for node in model.graph.node:
        copy = onnx.NodeProto.FromString(node.SerializeToString())
        copy.input[:] = [f"{n} passed" if n in inputs else f"{n} inside" if n in outputs else n for n in node.input]
        copy.output[:] = [f"{n} inside" if n in outputs else n for n in node.output]
        found.append(copy)
    return found
