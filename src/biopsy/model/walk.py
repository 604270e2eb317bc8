"""Walking over a parsed model: its graphs with their bodies, the order of their nodes, and how many nodes calls of
functions stand for.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.model.parts import FunctionKey
from biopsy.model.wire import BYTES, fields

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


def nodes_within(among: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Some nodes, and all in the bodies below them."""
    outer = list(among)
    return chain(outer, chain.from_iterable(graph.node for graph in graphs_within(outer)))


def _roots(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    """The model's graph, and its training graphs."""
    training = [graph for each in model.training_info for graph in (each.initialization, each.algorithm)]
    return [model.graph, *training]


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The model's graph, its training graphs, and every subgraph below them and below local functions."""
    for root in _roots(model):
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


def keep(items: MutableSequence[Any], wanted: Callable[[Any], bool]) -> None:
    """Drop the items of a repeated field that are not wanted; the others are not copied."""
    for place in reversed(range(len(items))):
        if not wanted(items[place]):
            del items[place]


_HIDDEN = "biopsy.hidden."
"""The domain of nodes that are hidden; theirs follows."""


def hide(model: onnx.ModelProto, hidden: Collection[onnx.NodeProto]) -> None:
    """Have nodes of a model be of operators that nobody knows, until ``show_again``."""
    for node in hidden:
        node.domain = f"{_HIDDEN}{node.domain}"
    for domain in sorted({node.domain for node in hidden}):
        model.opset_import.add(domain=domain, version=1)


def show_again(model: onnx.ModelProto) -> None:
    """Undo ``hide``, in the model or in one that was made of it."""
    for node in nodes(model):
        if node.domain.startswith(_HIDDEN):
            node.domain = node.domain.removeprefix(_HIDDEN)
            if not node.domain:
                node.ClearField("domain")
    keep(model.opset_import, lambda opset: not opset.domain.startswith(_HIDDEN))


def weights(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every dense initializer, those of subgraphs included."""
    return chain.from_iterable(graph.initializer for graph in graphs(model))


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor with values: initializers, the parts of sparse ones, and tensors in attributes of nodes."""
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
    local = {function_key(function): function for function in model.functions}
    return called_by(chain.from_iterable(root.node for root in _roots(model)), local)


def called_by(among: Iterable[onnx.NodeProto], local: Mapping[FunctionKey, onnx.FunctionProto]) -> set[FunctionKey]:
    """The ``local`` functions that some nodes and their bodies call, directly or through other functions."""
    waiting = [key for key in {operator(node) for node in nodes_within(among)} if key in local]
    found: set[FunctionKey] = set()
    while waiting:
        key = waiting.pop()
        if key not in found:
            found.add(key)
            waiting += [other for other in {operator(node) for node in nodes_within(local[key].node)} if other in local]
    return found


# The order of nodes in a graph: every node behind those that compute what it, or a body of it, reads.


def sort_nodes(nodes: MutableSequence[onnx.NodeProto]) -> None:
    """Put the nodes of a graph or function into topological order; those that may stand as they are keep their order.

    Nodes that wait for each other, which no valid graph has, and those behind them stay behind all others.
    """
    order = sorted_places(nodes)
    rearrange(nodes, order + sorted(set(range(len(nodes))) - set(order)))


def sorted_places(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """The places of nodes in topological order, but for those that wait for each other and those behind them.

    What a body of If, Loop or Scan captures counts as read by the node. A. B. Kahn, Topological sorting of large
    networks. CACM 5 (1962), 558-562.
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
    """Put nodes into another order of their places."""
    if list(order) != list(range(len(nodes))):
        listed = list(nodes)
        copies = [type(listed[place]).FromString(listed[place].SerializeToString()) for place in order]
        del nodes[:]
        nodes.extend(copies)


# How many nodes the calls of model-local functions stand for: a bound on what is put in their places.
#
# Functions that call each other twice at forty levels stand for 2^40 nodes, and one that calls itself, which ONNX
# does not allow, for ever more. Nothing here or in onnx could write them out.

MOST_NODES = 100_000
"""No function that stands for more nodes is written out."""

MOST_NODES_OF_ENGINES = 10_000_000
"""Engines write functions out as well, some of them for as long as there is memory: none is handed a larger one."""

_FUNCTIONS = 25  # field number in ModelProto


def require_bounded(data: bytes, path: Path | None = None) -> None:
    """Raise ModelError if a function of a serialized model stands for more nodes than any engine could write out.

    ``path`` is only named in the message.
    """
    try:
        spans = [(tag, end) for number, kind, tag, _, end in fields(data) if (number, kind) == (_FUNCTIONS, BYTES)]
        own = b"".join(data[slice(*span)] for span in spans)
    except errors.ModelError:  # another format, such as .ort, or damaged: whoever reads it tells
        return
    if not own:
        return
    import onnx

    functions = onnx.ModelProto.FromString(own).functions
    for (domain, name, _), why in unbounded(functions, MOST_NODES_OF_ENGINES).items():
        raise errors.ModelError(
            f"the model {path or 'in memory'} cannot be run: of its function '{domain}::{name}', {why}"
        )


def unbounded(functions: Iterable[onnx.FunctionProto], most: int = MOST_NODES) -> dict[FunctionKey, str]:
    """Why a function is not written out, for those that are not: they, or functions they call, are too large."""
    # The operators of all nodes of a function, its bodies included, as often as they stand there.
    calls = {function_key(function): [operator(node) for node in nodes_within(function.node)] for function in functions}
    sizes: dict[FunctionKey, float] = {}
    open_ones: dict[FunctionKey, None] = {}
    waiting = list(calls)
    while waiting:  # those that it calls first; a way that closes is endless
        key = waiting[-1]
        if key in open_ones or key in sizes:
            if key not in sizes:
                # What is still open when all that it calls has been looked at is on a way that closes.
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


# What onnx knows of an operator, asked with whatever a model says.

_LARGEST_VERSION = (1 << 31) - 1
"""onnx takes no greater one; a model may say anything."""


def schema_of(op_type: str, version: int, domain: str) -> onnx.defs.OpSchema | None:
    """The schema of an operator; None for what onnx does not know, such as a name that is no Unicode."""
    import onnx

    try:
        return onnx.defs.get_schema(op_type, min(version, _LARGEST_VERSION), domain)
    except (onnx.defs.SchemaError, TypeError, UnicodeError):
        return None
