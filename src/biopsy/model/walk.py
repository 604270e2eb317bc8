"""Walks over a parsed model: graphs and bodies, nodes and tensors, names, topological order, sizes of functions."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from biopsy import errors
from biopsy.model.parts import FunctionKey
from biopsy.model.wire import BYTES, fields
from biopsy.slow_imports import onnx

if TYPE_CHECKING:
    from google.protobuf.message import Message


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The subgraphs in the attributes of a node (If, Loop, Scan), without those nested in them."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def graphs_within(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """Every subgraph of the nodes at any depth, outer ones first."""
    for node in nodes:
        for body in bodies(node):
            yield body
            yield from graphs_within(body.node)


def nodes_within(among: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, and all nodes in their bodies."""
    outer = list(among)
    return chain(outer, chain.from_iterable(graph.node for graph in graphs_within(outer)))


def _roots(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    """The model's graph, and its training graphs."""
    training = [graph for each in model.training_info for graph in (each.initialization, each.algorithm)]
    return [model.graph, *training]


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The model's graph, its training graphs, and every subgraph in them and in local functions."""
    for root in _roots(model):
        yield root
        yield from graphs_within(root.node)
    for function in model.functions:
        yield from graphs_within(function.node)


def nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of the model, in all ``graphs`` and in local functions."""
    for graph in graphs(model):
        yield from graph.node
    for function in model.functions:
        yield from function.node


def keep(items: MutableSequence[Any], wanted: Callable[[Any], bool]) -> bool:
    """Remove the items of a repeated field that are not wanted, without copying the others; True if any was removed."""
    unwanted = [place for place, item in enumerate(items) if not wanted(item)]
    for place in reversed(unwanted):
        del items[place]
    return bool(unwanted)


_HIDDEN = "biopsy.hidden."
"""The prefix of the domains of hidden nodes."""


def hide(model: onnx.ModelProto, hidden: Collection[onnx.NodeProto]) -> None:
    """Give nodes of a model unknown operators, until ``show_again``."""
    for node in hidden:
        node.domain = f"{_HIDDEN}{node.domain}"
    for domain in sorted({node.domain for node in hidden}):
        model.opset_import.add(domain=domain, version=1)


def show_again(model: onnx.ModelProto) -> None:
    """Undo ``hide``, in the model or in one derived from it."""
    for node in nodes(model):
        if node.domain.startswith(_HIDDEN):
            node.domain = node.domain.removeprefix(_HIDDEN)
            if not node.domain:
                node.ClearField("domain")
    keep(model.opset_import, lambda opset: not opset.domain.startswith(_HIDDEN))


def weights(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every dense initializer, also of subgraphs."""
    return chain.from_iterable(graph.initializer for graph in graphs(model))


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor with values: initializers, parts of sparse tensors, and tensors in attributes of nodes."""
    yield from weights(model)
    sparse = list(chain.from_iterable(graph.sparse_initializer for graph in graphs(model)))
    for attribute in (attribute for node in nodes(model) for attribute in node.attribute):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        sparse += [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
        sparse += attribute.sparse_tensors
    yield from chain.from_iterable((each.values, each.indices) for each in sparse)


def every_tensor(model: Message) -> Iterator[onnx.TensorProto]:
    """Every TensorProto anywhere in a model or a part of one, in no particular order."""
    return (message for message in messages(model) if message.DESCRIPTOR.name == "TensorProto")


def messages(message: Message) -> Iterator[Any]:
    """A protobuf message and every message in it, at any depth, in no particular order.

    It follows the descriptors of protobuf, so no field can be forgotten: defaults of functions' attributes, parts of
    sparse tensors, training information, and fields of later versions of ONNX.
    """
    waiting = [message]
    while waiting:
        part = waiting.pop()
        yield part
        for field, value in part.ListFields():
            if field.message_type is not None:
                waiting += value if isinstance(value, Iterable) else [value]


def reads(node: onnx.NodeProto) -> set[str]:
    """Names of the tensors that a node reads: its inputs, and what its bodies capture."""
    names = set(node.input)
    for body in bodies(node):
        names |= captures(body)
    names.discard("")
    return names


def captures(graph: onnx.GraphProto) -> set[str]:
    """Names of the tensors that a subgraph reads from the graphs around it."""
    needed = {output.name for output in graph.output}
    for node in graph.node:
        needed |= reads(node)
    return needed - defined(graph)


def defined(graph: onnx.GraphProto) -> set[str]:
    """Names of the tensors that a graph defines: inputs, initializers, outputs of nodes."""
    names = {value.name for value in graph.input}
    names |= {weight.name for weight in graph.initializer}
    names |= {sparse.values.name for sparse in graph.sparse_initializer}
    for node in graph.node:
        names.update(node.output)
    return names


def named(graph: onnx.GraphProto) -> set[str]:
    """Every name of a tensor in a graph and in its subgraphs, without ""."""
    names: set[str] = set()
    for each in chain([graph], graphs_within(graph.node)):
        names |= defined(each)
        names.update(output.name for output in each.output)
        names.update(name for node in each.node for name in node.input)
    names.discard("")
    return names


def free_name(wanted: str, taken: set[str]) -> str:
    """A name like ``wanted`` that is not in ``taken``, to which it is added."""
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
    """(domain, name, overload) of a local function: the ``operator`` of the nodes that call it."""
    return ("" if function.domain == "ai.onnx" else function.domain, function.name, function.overload)


def called(model: onnx.ModelProto) -> set[FunctionKey]:
    """The local functions that the model's graphs call, directly or through other functions."""
    local = {function_key(function): function for function in model.functions}
    return called_by(chain.from_iterable(root.node for root in _roots(model)), local)


def called_by(among: Iterable[onnx.NodeProto], local: Mapping[FunctionKey, onnx.FunctionProto]) -> set[FunctionKey]:
    """The ``local`` functions that some nodes and their bodies call, directly or through other functions."""

    def calls(nodes: Iterable[onnx.NodeProto]) -> set[FunctionKey]:
        return {operator(node) for node in nodes_within(nodes)} & local.keys()

    return reached(calls(among), lambda key: calls(local[key].node))


_Reached = TypeVar("_Reached")


def reached(start: Iterable[_Reached], following: Callable[[_Reached], Iterable[_Reached]]) -> set[_Reached]:
    """``start``, and all that comes after one of these; ``following`` names what comes next."""
    seen, waiting = set[_Reached](), list(start)
    while waiting:
        item = waiting.pop()
        if item not in seen:
            seen.add(item)
            waiting += following(item)
    return seen


def sort_nodes(nodes: MutableSequence[onnx.NodeProto]) -> None:
    """Put the nodes of a graph or function into topological order, changing as little as possible.

    Nodes on a cycle, which no valid graph has, and those that depend on them come last.
    """
    order = sorted_places(nodes)
    rearrange(nodes, order + sorted(set(range(len(nodes))) - set(order)))


def sorted_places(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """The places of nodes in topological order, without nodes on a cycle and those that depend on them.

    A node reads what its bodies capture. Algorithm: A. B. Kahn, Topological sorting of large networks. CACM 5 (1962),
    558-562.
    """
    producer = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    behind: dict[int, list[int]] = {}
    missing = []
    for place, node in enumerate(nodes):
        before = {producer[name] for name in reads(node) if name in producer}
        missing.append(len(before))
        for other in before:
            behind.setdefault(other, []).append(place)
    ready = [place for place, number in enumerate(missing) if number == 0]
    order: list[int] = []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for other in behind.get(place, ()):
            missing[other] -= 1
            if missing[other] == 0:
                heapq.heappush(ready, other)
    return order


def rearrange(nodes: MutableSequence[onnx.NodeProto], order: Sequence[int]) -> None:
    """Put the nodes into an order, given by their present places."""
    if list(order) != list(range(len(nodes))):
        listed = list(nodes)
        copies = [type(listed[place]).FromString(listed[place].SerializeToString()) for place in order]
        del nodes[:]
        nodes.extend(copies)


# Functions that call each other twice at forty levels expand to 2^40 nodes, and one that calls itself, which ONNX does
# not allow, has no end. So the number of nodes is bounded before functions are inlined.

MOST_NODES = 100_000
"""A function that expands to more nodes is not inlined."""

MOST_NODES_OF_ENGINES = 10_000_000
"""A model with a function that expands to more nodes is given to no engine: engines inline, too."""

_FUNCTIONS = 25  # field number in ModelProto


def require_bounded(data: bytes, path: Path | None = None) -> None:
    """Raise ModelError if a function of a serialized model expands to more nodes than an engine could inline.

    ``path`` is only for the message.
    """
    try:
        spans = [(tag, end) for number, kind, tag, _, end in fields(data) if (number, kind) == (_FUNCTIONS, BYTES)]
        serialized = b"".join(data[slice(*span)] for span in spans)
    except errors.ModelError:  # another format, such as .ort, or damaged: the engine reports that
        return
    if not serialized:
        return

    functions = onnx.ModelProto.FromString(serialized).functions
    for (domain, name, _), why in unbounded(functions, MOST_NODES_OF_ENGINES).items():
        raise errors.ModelError(
            f"the model {path or 'in memory'} cannot be run: of its function '{domain}::{name}', {why}"
        )


def unbounded(functions: Iterable[onnx.FunctionProto], most: int = MOST_NODES) -> dict[FunctionKey, str]:
    """The functions that expand to more than ``most`` nodes or have no end -> the reason in words."""
    # The operators of all nodes of a function and its bodies, with repetitions.
    calls = {function_key(function): [operator(node) for node in nodes_within(function.node)] for function in functions}
    sizes: dict[FunctionKey, float] = {}
    open_ones: dict[FunctionKey, None] = {}
    waiting = list(calls)
    while waiting:  # depth first: the called functions before the caller
        key = waiting[-1]
        if key in open_ones or key in sizes:
            if key not in sizes:
                # A called function that is still open now calls this one: a cycle.
                sizes[key] = sum(1 + (sizes.get(other, math.inf) if other in calls else 0) for other in calls[key])
                del open_ones[key]
            waiting.pop()
        else:
            open_ones[key] = None
            waiting += [other for other in dict.fromkeys(calls[key]) if other in calls and other not in open_ones]
    return {
        key: "it calls itself" if size == math.inf else f"it stands for more than {most} nodes"
        for key, size in sizes.items()
        if size > most
    }


_LARGEST_VERSION = (1 << 31) - 1
"""onnx accepts no greater version, but a model may have one."""


def schema_of(op_type: str, version: int, domain: str) -> onnx.defs.OpSchema | None:
    """The schema of an operator; None if onnx does not know it, as with a name that is not Unicode."""
    try:
        return onnx.defs.get_schema(op_type, min(version, _LARGEST_VERSION), domain)
    except (onnx.defs.SchemaError, TypeError, UnicodeError):
        return None
