"""Passes that remove parts of a model: outputs, inputs, attributes, optional inputs, unused parts, exporters' notes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from biopsy.model import walk
from biopsy.model.parts import FunctionKey
from biopsy.model.sources import is_stack
from biopsy.reduction.passes.common import (
    Change,
    ChangeSearch,
    Place,
    copied,
    drop_dead_nodes,
    drop_what_died,
    every_node,
    graph_at,
    is_consistent,
    leave_out,
    opsets_of,
    read_in,
    refresh_types,
    schema_of,
)
from biopsy.search.drive import Item
from biopsy.slow_imports import onnx
from biopsy.text import first_of


def outputs(model: onnx.ModelProto) -> ChangeSearch:
    """Remove outputs by halves, down to one.

    An output that is the only use of its node stays: without it, the node would be removed, which has been tried.
    """
    read = {name for node in model.graph.node for name in walk.reads(node)}
    written = ([name for name in node.output if name] for node in model.graph.node)
    alone = {names[0] for names in written if len(names) == 1 and names[0] not in read}
    others = [info.name for info in model.graph.output if info.name not in alone]

    def without(gone: Sequence[str]) -> Change:
        reduced = copied(model)
        walk.keep(reduced.graph.output, lambda info: info.name not in gone)
        drop_what_died(reduced, model)
        return Change(reduced, f"{len(reduced.graph.output)} of {len(model.graph.output)} outputs")

    yield from leave_out(others, without, at_least_one=len(others) == len(model.graph.output))


def inputs(model: onnx.ModelProto) -> ChangeSearch:
    """Remove unread inputs, with initializers of the same name, all at once, then by halves."""
    read = read_in(model.graph)
    unused = [info.name for info in model.graph.input if info.name not in read]

    def without(gone: Sequence[str]) -> Change:
        reduced = copied(model)
        walk.keep(reduced.graph.input, lambda info: info.name not in gone)
        walk.keep(reduced.graph.initializer, lambda weight: weight.name not in gone)
        walk.keep(reduced.graph.sparse_initializer, lambda weight: weight.values.name not in gone)
        return Change(reduced, f"without {len(gone)} of {len(model.graph.input)} inputs")

    yield from leave_out(unused, without)


def attributes(model: onnx.ModelProto) -> ChangeSearch:
    """Remove every attribute that the schema does not require or know, all at once, then by halves; bodies stay."""
    opsets = opsets_of(model)
    removable: list[tuple[Place, int, str]] = []
    for place, number, node in every_node(model):
        schema = schema_of(node, opsets)
        if schema is not None:
            required = {name for name, known in schema.attributes.items() if known.required}
            removable += (
                (place, number, attribute.name)
                for attribute in node.attribute
                if not (attribute.HasField("g") or attribute.graphs or attribute.name in required)
            )

    def without(gone: Sequence[tuple[Place, int, str]]) -> onnx.ModelProto:
        reduced = copied(model)
        for place, number, name in gone:
            node = graph_at(reduced, place).node[number]
            walk.keep(node.attribute, lambda entry: entry.name != name)  # noqa: B023 -- at once
        refresh_types(reduced)
        return reduced

    yield from propose_removals(model, removable, without, "attributes")


def optional_inputs(model: onnx.ModelProto) -> ChangeSearch:
    """Leave out all optional inputs of nodes at once, then by halves; trailing ones vanish, others become ''."""
    opsets = opsets_of(model)
    optional: list[tuple[Place, int, int]] = []
    for place, number, node in every_node(model):
        schema = schema_of(node, opsets)
        if schema is None or any(True for _ in walk.bodies(node)):
            continue  # without its trip count or condition, a Loop may not end
        for position, name in enumerate(node.input):
            kind = schema.inputs[position].option if position < len(schema.inputs) else None
            if name and kind == onnx.defs.OpSchema.FormalParameterOption.Optional:
                optional.append((place, number, position))

    def without(gone: Sequence[tuple[Place, int, int]]) -> onnx.ModelProto:
        reduced = copied(model)
        for place, number, position in gone:
            graph_at(reduced, place).node[number].input[position] = ""
        for place, number, _ in gone:
            inputs = graph_at(reduced, place).node[number].input
            while inputs and not inputs[-1]:
                del inputs[-1]
        drop_what_died(reduced, model)
        refresh_types(reduced)
        return reduced

    yield from propose_removals(model, optional, without, "optional inputs of nodes")


def propose_removals(
    model: onnx.ModelProto, items: Sequence[Item], without: Callable[[Sequence[Item]], onnx.ModelProto], what: str
) -> ChangeSearch:
    """Propose the model ``without`` all items, then by halves.

    An item whose removal shape inference refutes is never removed, unless it refutes the model itself.
    """
    able = list(items)
    if is_consistent(model):
        able = [item for item in able if is_consistent(without([item]))]
    yield from leave_out(able, lambda gone: Change(without(gone), f"without {len(gone)} of {len(able)} {what}"))


_DOCUMENTED = ("doc_string", "metadata_props")
_MOST_NAMED = 2


Remove: TypeAlias = "Callable[[onnx.ModelProto], None]"
"""Removes an unused part of a model."""


def tidy(model: onnx.ModelProto) -> ChangeSearch:
    """Remove all unused parts at once, or by halves as many as possible.

    Parts that are only used by other unused parts are removed, too.
    """

    def without(model: onnx.ModelProto, gone: Iterable[str]) -> onnx.ModelProto:
        reduced = copied(model)
        for what in gone:
            removals[what](reduced)
        return reduced

    removals: dict[str, Remove] = {}
    reduced = model
    while new := {what: remove for what, remove in _unused_parts(reduced) if what not in removals}:
        removals |= new
        reduced = without(reduced, new)
    yield from leave_out(
        list(removals), lambda gone: Change(without(model, gone), f"without {first_of(gone, _MOST_NAMED)}")
    )


def _unused_parts(model: onnx.ModelProto) -> Iterator[tuple[str, Remove]]:
    """The unused parts that the model has, as descriptions, in the order in which they are removed."""
    for what, remove in _KINDS.items():
        cleaned = copied(model)
        remove(cleaned)
        if cleaned != model:
            yield what, remove
    read = _read_names(model)
    unused: dict[str, None] = {}
    for graph in walk.graphs(model):
        names = (*(weight.name for weight in graph.initializer), *(s.values.name for s in graph.sparse_initializer))
        unused.update((name, None) for name in names if name not in read)
    for name in unused:
        yield f"the unused weight {name!r}", partial(_drop_weight, name)
    called = walk.called(model)
    for key in dict.fromkeys(map(walk.function_key, model.functions)):
        if key not in called:
            yield f"the function {key[1]}, which is not called", partial(_drop_function, key)
    # The import of ONNX's own operators stays.
    used = {walk.operator(node)[0] for node in walk.nodes(model)} | {""}
    for domain in dict.fromkeys(_domain(entry) for entry in model.opset_import):
        if domain not in used:
            yield f"the operator set {domain}, which has no node", partial(_drop_operator_set, domain)


def _drop_documentation(model: onnx.ModelProto) -> None:
    """Clear doc strings and metadata of all messages in a model, except exporters' notes on nodes."""
    for message in walk.messages(model):
        kept: Collection[str] = ()
        if message.DESCRIPTOR.name == "NodeProto":
            kept = _DOCUMENTED if is_stack(message.doc_string) else ("metadata_props",)
        for name in set(_DOCUMENTED).intersection(message.DESCRIPTOR.fields_by_name).difference(kept):
            message.ClearField(name)


def _clear(fields: Collection[str], model: onnx.ModelProto) -> None:
    """Clear these fields in all messages that have them."""
    for message in walk.messages(model):
        for name in set(fields).intersection(message.DESCRIPTOR.fields_by_name):
            message.ClearField(name)


def _drop_producer(model: onnx.ModelProto) -> None:
    for field in ("producer_name", "producer_version", "domain", "model_version"):
        model.ClearField(field)


def _drop_stale_types(model: onnx.ModelProto) -> None:
    """Remove types of tensors that do not exist or are inputs or outputs, and unused quantization parameters."""
    for graph in walk.graphs(model):
        defined = walk.defined(graph)
        ends = {info.name for info in (*graph.input, *graph.output)}
        walk.keep(graph.value_info, lambda info: info.name in defined and info.name not in ends)  # noqa: B023 -- at once
        walk.keep(graph.quantization_annotation, lambda entry: entry.tensor_name in defined)  # noqa: B023
    for function in model.functions:
        written = {name for node in function.node for name in node.output} | set(function.input)
        walk.keep(function.value_info, lambda info: info.name in written)  # noqa: B023


def _drop_dead_nodes_in_bodies(model: onnx.ModelProto) -> None:
    for body in reversed(list(walk.graphs_within(model.graph.node))):
        drop_dead_nodes(body)


_KINDS: dict[str, Remove] = {
    "nodes in bodies that nothing reads": _drop_dead_nodes_in_bodies,  # first: other parts may only serve these
    # A node without outputs may have side effects.
    "nodes that nothing reads": lambda model: drop_dead_nodes(model.graph, lambda node: any(node.output)),
    "documentation": _drop_documentation,
    "its producer": _drop_producer,
    "training": lambda model: model.ClearField("training_info"),
    "devices": partial(_clear, {"configuration", "device_configurations"}),
    "denotations": partial(_clear, {"denotation"}),
    "fields that onnx does not know": lambda model: model.DiscardUnknownFields(),
    "types of tensors that are not there": _drop_stale_types,
}


def _read_names(model: onnx.ModelProto) -> set[str]:
    names: set[str] = set()
    for graph in walk.graphs(model):
        names |= read_in(graph)
        names.update(
            entry.value for note in graph.quantization_annotation for entry in note.quant_parameter_tensor_names
        )
    return names


# The following functions do nothing if the part is used: its user was to be removed, too, and was not.


def _drop_weight(name: str, model: onnx.ModelProto) -> None:
    if name in _read_names(model):
        return
    for graph in walk.graphs(model):
        dropped = walk.keep(graph.initializer, lambda weight: weight.name != name)
        dropped |= walk.keep(graph.sparse_initializer, lambda weight: weight.values.name != name)
        if dropped and graph is model.graph:
            walk.keep(graph.input, lambda info: info.name != name)


def _drop_function(key: FunctionKey, model: onnx.ModelProto) -> None:
    if key not in walk.called(model):
        walk.keep(model.functions, lambda function: walk.function_key(function) != key)


def _drop_operator_set(domain: str, model: onnx.ModelProto) -> None:
    if all(walk.operator(node)[0] != domain for node in walk.nodes(model)):
        walk.keep(model.opset_import, lambda entry: _domain(entry) != domain)


def _domain(entry: onnx.OperatorSetIdProto) -> str:
    return "" if entry.domain == "ai.onnx" else str(entry.domain)


def exporter_notes(model: onnx.ModelProto) -> ChangeSearch:
    """Remove metadata and documentation of all nodes, or by halves of as many as possible.

    These notes lead to the code that a node comes from, so no other pass removes them; but they also reveal that code.
    """
    noted = [number for number, node in enumerate(walk.nodes(model)) if node.metadata_props or node.doc_string]

    def without(gone: Sequence[int]) -> Change:
        reduced = copied(model)
        nodes = list(walk.nodes(reduced))
        for number in gone:
            nodes[number].ClearField("metadata_props")
            nodes[number].ClearField("doc_string")
        return Change(reduced, "without what an exporter noted of nodes")

    yield from leave_out(noted, without)
