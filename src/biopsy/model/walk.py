"""Walking over a parsed model: its graphs with their bodies, its tensors, and what nodes read from around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from biopsy.model.node import FunctionKey

if TYPE_CHECKING:
    import onnx
    from google.protobuf.message import Message


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The subgraphs that stand in the attributes of a node (If, Loop, Scan), not those inside them."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def graphs_within(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """Every subgraph below ``nodes``, at any depth, outer ones first."""
    for node in nodes:
        for body in bodies(node):
            yield body
            yield from graphs_within(body.node)


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The model's graph, its training graphs, and every subgraph below them and below local functions."""
    roots = [model.graph]
    for training in model.training_info:
        roots += [training.initialization, training.algorithm]
    for root in roots:
        yield root
        yield from graphs_within(root.node)
    for function in model.functions:
        yield from graphs_within(function.node)


def nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node: of all ``graphs`` and of local functions."""
    for graph in graphs(model):
        yield from graph.node
    for function in model.functions:
        yield from function.node


def weights(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every dense initializer, those of subgraphs included."""
    return chain.from_iterable(graph.initializer for graph in graphs(model))


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor with values: initializers, the parts of sparse ones, and tensors in attributes of nodes."""
    yield from weights(model)
    for graph in graphs(model):
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for node in nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for sparse in chain(
                [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else [], attribute.sparse_tensors
            ):
                yield from (sparse.values, sparse.indices)


def every_tensor(model: Message) -> Iterator[onnx.TensorProto]:
    """Every TensorProto in a model or a part of one, in whatever order: also where ``tensors`` sees no values.

    Found by the descriptors of protobuf, so that no field can be forgotten: defaults of functions' attributes, parts of
    sparse tensors, training information, and what a later version of ONNX adds.
    """
    waiting: list[Message] = [model]
    while waiting:
        message = waiting.pop()
        if message.DESCRIPTOR.name == "TensorProto":
            yield message  # type: ignore[misc]  # a descriptor is how a message's class is told at run time
        for field, value in message.ListFields():
            if field.message_type is not None:
                waiting += value if isinstance(value, Iterable) else [value]


def reads(node: onnx.NodeProto) -> set[str]:
    """Names of the tensors that a node needs: its inputs, and what its bodies take from outside themselves."""
    found = set(node.input)
    for body in bodies(node):
        found |= captures(body)
    found.discard("")
    return found


def captures(graph: onnx.GraphProto) -> set[str]:
    """Names of the tensors that a subgraph takes from the graphs around it."""
    needed = {output.name for output in graph.output}
    for node in graph.node:
        needed |= reads(node)
    return needed - defined(graph)


def defined(graph: onnx.GraphProto) -> set[str]:
    """Names of the tensors that a graph itself holds: inputs, initializers, outputs of nodes."""
    names = {value.name for value in graph.input}
    names |= {weight.name for weight in graph.initializer}
    names |= {sparse.values.name for sparse in graph.sparse_initializer}
    for node in graph.node:
        names.update(node.output)
    return names


def named(graph: onnx.GraphProto) -> set[str]:
    """Every name of a tensor in a graph and in the subgraphs below it, "" left out."""
    found: set[str] = set()
    for each in chain([graph], graphs_within(graph.node)):
        found |= defined(each)
        found.update(output.name for output in each.output)
        found.update(name for node in each.node for name in node.input)
    found.discard("")
    return found


def free_name(wanted: str, taken: set[str]) -> str:
    """A name like ``wanted`` that is not among those ``taken``, where it stands from now on."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name)
    return name


def operator(node: onnx.NodeProto) -> FunctionKey:
    """(domain, name, overload) of a node's operator; the domain "ai.onnx" is written ""."""
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type, node.overload)


def function_key(function: onnx.FunctionProto) -> FunctionKey:
    """(domain, name, overload) of a local function, as ``operator`` gives it for the nodes that call it."""
    return ("" if function.domain == "ai.onnx" else function.domain, function.name, function.overload)


def called(model: onnx.ModelProto) -> set[FunctionKey]:
    """The local functions that the model's graphs call, directly or through other functions."""
    roots = [model.graph]
    for training in model.training_info:
        roots += [training.initialization, training.algorithm]
    local = {function_key(function): function for function in model.functions}
    return called_by(chain.from_iterable(root.node for root in roots), local)


def called_by(among: Iterable[onnx.NodeProto], local: Mapping[FunctionKey, onnx.FunctionProto]) -> set[FunctionKey]:
    """The ``local`` functions that some nodes and their bodies call, directly or through other functions."""
    waiting = [key for key in _operators(among) if key in local]
    found: set[FunctionKey] = set()
    while waiting:
        key = waiting.pop()
        if key not in found:
            found.add(key)
            waiting += [other for other in _operators(local[key].node) if other in local]
    return found


def _operators(among: Iterable[onnx.NodeProto]) -> set[FunctionKey]:
    listed = list(among)
    inner = chain.from_iterable(graph.node for graph in graphs_within(listed))
    return {operator(node) for node in chain(listed, inner)}
