"""The findings of a lint, and rules on the form of a graph that hold for every engine.

The rules are from ONNX's IR.md: names are unique (single static assignment), nodes are sorted, opsets are imported.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from biopsy.model import walk
from biopsy.model.known_names import listed
from biopsy.model.sources import NodeSource
from biopsy.model.tensor_type import DTYPE_OF_ELEM
from biopsy.records import plain_of
from biopsy.slow_imports import onnx

Level: TypeAlias = Literal["exception", "warning", "info"]
"""An exception means that the model is invalid or does not run. With a warning or info it is usable."""

RULES, CHECKER, INFERENCE, LOADER = "biopsy", "onnx_checker", "onnx_shape_inference", "onnx_loader"
"""Sources of entries. Engines are sources by their name, except for those in ``ENGINE_SOURCES``."""

ENGINE_SOURCES = {"onnxrt": "onnxruntime"}


@dataclass(frozen=True, kw_only=True)
class LintEntry:
    """One finding. ``nodes`` are numbers of nodes of the main graph; empty if it is about the whole model."""

    level: Level
    source: str
    message: str
    nodes: tuple[int, ...] = ()


@dataclass(kw_only=True)
class Report:
    """All findings. ``names`` are those of the nodes; ``ran`` are the nodes that ran in the engine.

    ``sources`` say where the nodes with findings come from, if an exporter noted that.
    """

    names: Sequence[str] = ()
    entries: list[LintEntry] = field(default_factory=list)
    ran: set[int] = field(default_factory=set)
    sources: Mapping[int, NodeSource] = field(default_factory=dict)

    def add(self, entries: Iterable[LintEntry]) -> None:
        """Add entries that are not there yet."""
        known = set(self.entries)
        for entry in entries:
            if entry not in known:
                known.add(entry)
                self.entries.append(entry)

    @property
    def failing(self) -> set[int]:
        """Nodes that an exception names."""
        return {node for entry in self.entries if entry.level == "exception" for node in entry.nodes}

    @property
    def passing(self) -> set[int]:
        """Nodes that the engine ran and that no exception names."""
        return self.ran - self.failing

    @property
    def is_valid(self) -> bool:
        """Whether there is no exception."""
        return all(entry.level != "exception" for entry in self.entries)

    def as_json(self) -> Mapping[str, Any]:
        """The report as a tree for ``json``."""
        return {
            "summary": {"passing": self._named(self.passing), "failing": self._named(self.failing)},
            "lint_entries": [self._entry(entry) for entry in self.entries],
        }

    def _named(self, nodes: Iterable[int]) -> list[str]:
        return list(dict.fromkeys(self.names[node] for node in sorted(nodes)))

    def _entry(self, entry: LintEntry) -> dict[str, Any]:
        tree = plain_of(entry, "level source message")
        return {**tree, "nodes": self._named(entry.nodes)} if entry.nodes else tree


def node_names(nodes: Iterable[tuple[str, str]]) -> list[str]:
    """The names of nodes in a report, from their names and operators: ``Relu #3`` for one without a name."""
    return [name or f"{op_type} #{number}" for number, (name, op_type) in enumerate(nodes)]


_PREFIXES = (
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : ",
    r"^(Load model from .* failed|Failed to load model with error|Error|Exception during (loading|initialization)):",
    r"^This is an invalid model\.",
    r"^(Error in Node|In Node), ?.*, Error ",
    r"^Node ?\(.*\) Op ?\(.*\) \[\w+\]",
    r"^Non-zero status code returned while running .* Status Message:",
)
"""The prefixes of ONNX Runtime's messages, in the order in which they follow each other."""


def plain_message(message: str) -> str:
    """The message in one line, without ONNX Runtime's prefixes unless it consists of them."""
    text = " ".join(message.split())
    for prefix in _PREFIXES:
        text = re.sub(prefix, "", text).strip() or text
    return text


def entries(model: onnx.ModelProto) -> Iterator[LintEntry]:
    """The findings of all rules, in order."""
    for rule in _RULES:
        yield from rule(model)


def _entry(level: Level, message: str, nodes: Iterable[int] = ()) -> LintEntry:
    return LintEntry(level=level, source=RULES, message=message, nodes=tuple(nodes))


def _numbers_by_name(names: Iterable[tuple[int, Iterable[str]]]) -> dict[str, list[int]]:
    """The numbers that come with each name, except for the empty name."""
    numbers: dict[str, list[int]] = {}
    for number, names_of_number in names:
        for name in filter(None, names_of_number):
            numbers.setdefault(name, []).append(number)
    return numbers


def _duplicate_names(model: onnx.ModelProto) -> Iterator[LintEntry]:
    graph = model.graph
    for name, numbers in _numbers_by_name((number, [node.name]) for number, node in enumerate(graph.node)).items():
        if len(numbers) > 1:
            yield _entry("exception", f"{len(numbers)} nodes are called {name!r}: {numbers}", numbers)
    for kind, names in _named_tensors(graph).items():
        for name, times in Counter(filter(None, names)).items():
            if times > 1:
                yield _entry("exception", f"{times} {kind}s are called {name!r}")
    given = {value.name for value in graph.input} | set(_weight_names(graph))
    for name, numbers in _numbers_by_name((number, node.output) for number, node in enumerate(graph.node)).items():
        if name in given:
            yield _entry("exception", f"{name!r} is computed, but is an input or initializer too", numbers)
        elif len(numbers) > 1:
            yield _entry("exception", f"{name!r} is computed {len(numbers)} times", numbers)


def _empty_names(model: onnx.ModelProto) -> Iterator[LintEntry]:
    graph = model.graph
    if not graph.name:
        yield _entry("warning", "the graph has no name, which ONNX requires")
    for kind, names in _named_tensors(graph).items():
        if not all(names):
            yield _entry("exception", f"an {kind} has no name")
    for number, node in enumerate(graph.node):
        if not node.op_type:
            yield _entry("exception", "the node has no operator", [number])
        if not any(node.output):
            yield _entry("warning", "the node computes nothing: it has no output", [number])
    unnamed = [number for number, node in enumerate(graph.node) if not node.name]
    if unnamed:
        yield _entry("info", f"{len(unnamed)} of {len(graph.node)} nodes have no name: they are named by their numbers")


def _inputs(model: onnx.ModelProto) -> Iterator[LintEntry]:
    """Inputs without an element type, and those whose default value (an initializer) has another type or shape."""
    declared = {value.name: value.type.tensor_type for value in model.graph.input if value.type.HasField("tensor_type")}
    for name, kind in declared.items():
        if not kind.elem_type:
            yield _entry("exception", f"the input {name!r} has no element type")
    for weight in model.graph.initializer:
        if weight.name not in declared or not declared[weight.name].elem_type:
            continue
        kind = declared[weight.name]
        if kind.elem_type != weight.data_type:
            types = (DTYPE_OF_ELEM.get(elem, str(elem)) for elem in (kind.elem_type, weight.data_type))
            yield _entry("exception", "the input {!r} is {}, its default value {}".format(weight.name, *types))
        elif kind.HasField("shape") and (
            len(kind.shape.dim) != len(weight.dims)
            or any(  # for ONNX Runtime, a negative size is an open one
                dim.HasField("dim_value") and dim.dim_value >= 0 and dim.dim_value != size
                for dim, size in zip(kind.shape.dim, weight.dims, strict=True)
            )
        ):
            message = f"the default value of the input {weight.name!r} has another shape: {list(weight.dims)}"
            yield _entry("exception", message)


def _missing_producers(model: onnx.ModelProto) -> Iterator[LintEntry]:
    known = walk.defined(model.graph)
    for number, node in enumerate(model.graph.node):
        missing = sorted(walk.reads(node) - known)
        if missing:
            yield _entry("exception", f"it reads what nothing computes: {listed(missing)}", [number])
    for value in model.graph.output:
        if value.name and value.name not in known:
            yield _entry("exception", f"nothing computes the output {value.name!r}")


def _order(model: onnx.ModelProto) -> Iterator[LintEntry]:
    nodes = model.graph.node
    writer = {name: number for number, node in enumerate(nodes) for name in filter(None, node.output)}
    reads = [{writer[name]: name for name in walk.reads(node) if name in writer} for node in nodes]
    cycles = _cycles(reads)
    in_cycle = {number for cycle in cycles for number in cycle}
    for cycle in cycles:
        nodes_stand = "a node stands" if len(cycle) == 1 else f"{len(cycle)} nodes stand"
        yield _entry("exception", f"{nodes_stand} in a circle: each waits for what the next computes", cycle)
    for number, sources in enumerate(reads):
        late = sorted(name for source, name in sources.items() if source > number and number not in in_cycle)
        if late:
            yield _entry("exception", f"not sorted: it comes before what computes {listed(late)}", [number])


def _cycles(reads: Sequence[Collection[int]]) -> list[list[int]]:
    """The strongly connected components that have a cycle, by S. R. Kosaraju's algorithm."""
    readers: list[list[int]] = [[] for _ in reads]
    for node, sources in enumerate(reads):
        for source in sources:
            readers[source].append(node)
    ended: list[int] = []
    seen: set[int] = set()
    waiting = [(root, False) for root in range(len(reads))]
    while waiting:
        node, is_done = waiting.pop()
        if is_done:
            ended.append(node)
        elif node not in seen:
            seen.add(node)
            waiting += [(node, True), *((source, False) for source in reads[node])]
    components = []
    for root in reversed(ended):
        component, more = [], [root]
        while more:
            node = more.pop()
            if node in seen:
                seen.remove(node)
                component.append(node)
                more += readers[node]
        if len(component) > 1 or (component and root in reads[root]):
            components.append(sorted(component))
    return sorted(components)


def _opsets(model: onnx.ModelProto) -> Iterator[LintEntry]:
    imported = Counter(_domain(opset.domain) for opset in model.opset_import)
    for domain, times in imported.items():
        if times > 1:
            yield _entry("warning", f"the opset of domain {domain!r} is imported {times} times")
    lacking: dict[str, list[int]] = {}
    for number, node in enumerate(model.graph.node):
        inner = [other for graph in walk.graphs_within([node]) for other in graph.node]
        for domain in {_domain(each.domain) for each in (node, *inner)} - set(imported):
            lacking.setdefault(domain, []).append(number)
    for domain, numbers in sorted(lacking.items()):
        yield _entry("exception", f"no opset is imported for the domain {domain!r}", numbers)
    for function in model.functions:
        known = {_domain(opset.domain) for opset in function.opset_import}
        for domain in sorted({_domain(node.domain) for node in function.node} - known):
            name = f"{function.domain}::{function.name}"
            yield _entry("exception", f"function {name!r} imports no opset for the domain {domain!r}")


def _domain(domain: str) -> str:
    return domain or "ai.onnx"


def _unused(model: onnx.ModelProto) -> Iterator[LintEntry]:
    graph = model.graph
    used, weights = _used(graph), _weight_names(graph)
    inputs = [value.name for value in graph.input if value.name not in weights]
    for kind, names in (("Input", inputs), ("Initializer", weights)):
        for name in names:
            if name and name not in used:
                yield _entry("warning", f"{kind}: {name!r} does not affect outputs, can be removed.")
    for number, node in enumerate(graph.node):
        if used.isdisjoint(filter(None, node.output)):
            yield _entry("warning", "Does not affect outputs, can be removed.", [number])
    unknown = sorted({value.name for value in graph.value_info} - walk.defined(graph) - {""})
    if unknown:
        yield _entry("warning", f"value_info names tensors that do not exist: {listed(unknown)}")
    called = walk.called(model)
    for function in model.functions:
        if walk.function_key(function) not in called:
            yield _entry("warning", f"Function: '{function.domain}::{function.name}' is never called.")


def _used(graph: onnx.GraphProto) -> set[str]:
    """Tensors that the outputs depend on, and the outputs themselves."""
    writers = {name: node for node in graph.node for name in filter(None, node.output)}
    used = {value.name for value in graph.output}
    waiting = list(used)
    while waiting:
        node = writers.get(waiting.pop())
        if node is not None:
            new = walk.reads(node) - used
            used |= new
            waiting += new
    return used


def _shadowed(model: onnx.ModelProto) -> Iterator[LintEntry]:
    outer = walk.defined(model.graph)
    for number, node in enumerate(model.graph.node):
        shadowed = sorted({name for body in walk.bodies(node) for name in _shadowing(body, outer)})
        if shadowed:
            message = f"a body of the node defines again what is defined outside: {listed(shadowed)}"
            yield _entry("warning", message, [number])


def _shadowing(graph: onnx.GraphProto, outer: set[str]) -> Iterator[str]:
    own = walk.defined(graph) - {""}
    yield from own & outer
    for node in graph.node:
        for body in walk.bodies(node):
            yield from _shadowing(body, outer | own)


def _bodies(model: onnx.ModelProto) -> Iterator[LintEntry]:
    """Bodies of If, Loop and Scan that compute a tensor twice or are not sorted."""
    for number, node in enumerate(model.graph.node):
        for graph in walk.graphs_within([node]):
            written = Counter(name for inner in graph.node for name in inner.output if name)
            twice = sorted(name for name, times in written.items() if times > 1)
            if twice:
                yield _entry("exception", f"a body of the node computes more than once: {listed(twice)}", [number])
            place = {name: at for at, inner in enumerate(graph.node) for name in inner.output if name}
            late = {
                name for at, inner in enumerate(graph.node) for name in walk.reads(inner) if place.get(name, -1) >= at
            }
            if late:
                message = f"a body of the node is not sorted: it reads {listed(sorted(late))} too early"
                yield _entry("exception", message, [number])


def _named_tensors(graph: onnx.GraphProto) -> dict[str, list[str]]:
    """The names of a graph's inputs, outputs and initializers."""
    inputs, outputs = ([value.name for value in values] for values in (graph.input, graph.output))
    return {"input": inputs, "output": outputs, "initializer": _weight_names(graph)}


def _weight_names(graph: onnx.GraphProto) -> list[str]:
    sparse = [weight.values.name for weight in graph.sparse_initializer]
    return [*(weight.name for weight in graph.initializer), *sparse]


_RULES: tuple[Callable[[onnx.ModelProto], Iterator[LintEntry]], ...] = (
    _duplicate_names,
    _empty_names,
    _inputs,
    _missing_producers,
    _order,
    _opsets,
    _bodies,
    _shadowed,
    _unused,
)
