"""What can be left out of a model: outputs, inputs, attributes and optional inputs that operators can do without, what
no node needs, and what exporters noted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

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
    keep_only,
    leave_out,
    opsets_of,
    read_in,
    schema_of,
    tell_types_anew,
)
from biopsy.search.drive import Item
from biopsy.text import first_of

if TYPE_CHECKING:
    import onnx


def outputs(model: onnx.ModelProto) -> ChangeSearch:
    """Drop outputs by halves, down to one.

    An output that is all that its node is there for stays: to drop it would be to cut the node, which has been tried.
    """
    read = {name for node in model.graph.node for name in walk.reads(node)}
    written = ([name for name in node.output if name] for node in model.graph.node)
    alone = {names[0] for names in written if len(names) == 1 and names[0] not in read}
    others = [info.name for info in model.graph.output if info.name not in alone]

    def without(gone: Sequence[str]) -> Change:
        made = copied(model)
        keep_only(made.graph.output, lambda info: info.name not in gone)
        drop_what_died(made, model)
        return Change(made, f"{len(made.graph.output)} of {len(model.graph.output)} outputs")

    yield from leave_out(others, without, at_least_one=len(others) == len(model.graph.output))


def inputs(model: onnx.ModelProto) -> ChangeSearch:
    """Drop the inputs that nothing reads, all at once, then by halves; an initializer of that name goes too."""
    read = read_in(model.graph)
    unused = [info.name for info in model.graph.input if info.name not in read]

    def without(gone: Sequence[str]) -> Change:
        made = copied(model)
        keep_only(made.graph.input, lambda info: info.name not in gone)
        keep_only(made.graph.initializer, lambda weight: weight.name not in gone)
        keep_only(made.graph.sparse_initializer, lambda weight: weight.values.name not in gone)
        return Change(made, f"without {len(gone)} of {len(model.graph.input)} inputs")

    yield from leave_out(unused, without)


def attributes(model: onnx.ModelProto) -> ChangeSearch:
    """Remove every attribute that has a default or may be missing, all at once, then by halves.

    That is what the schema does not require, or does not know; bodies stay.
    """
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
        made = copied(model)
        for place, number, name in gone:
            node = graph_at(made, place).node[number]
            keep_only(node.attribute, lambda entry: entry.name != name)  # noqa: B023 -- at once
        tell_types_anew(made)
        return made

    yield from propose_removals(model, removable, without, "attributes")


def optional_inputs(model: onnx.ModelProto) -> ChangeSearch:
    """Leave out every optional input at once, then by halves; trailing ones vanish, others become ''."""
    from onnx import defs

    opsets = opsets_of(model)
    optional: list[tuple[Place, int, int]] = []
    for place, number, node in every_node(model):
        schema = schema_of(node, opsets)
        if schema is None or any(True for _ in walk.bodies(node)):
            continue  # to leave out a Loop's trip count or condition changes more than an input
        for position, name in enumerate(node.input):
            kind = schema.inputs[position].option if position < len(schema.inputs) else None
            if name and kind == defs.OpSchema.FormalParameterOption.Optional:
                optional.append((place, number, position))

    def without(gone: Sequence[tuple[Place, int, int]]) -> onnx.ModelProto:
        made = copied(model)
        for place, number, position in gone:
            graph_at(made, place).node[number].input[position] = ""
        for place, number, _ in gone:
            inputs = graph_at(made, place).node[number].input
            while inputs and not inputs[-1]:
                del inputs[-1]
        drop_what_died(made, model)
        tell_types_anew(made)
        return made

    yield from propose_removals(model, optional, without, "optional inputs of nodes")


# The search that passes share which leave parts of nodes out: all that can go at once, then by halves.


def propose_removals(
    model: onnx.ModelProto, items: Sequence[Item], without: Callable[[Sequence[Item]], onnx.ModelProto], what: str
) -> ChangeSearch:
    """Propose the model ``without`` some of the items; what shape inference refutes by itself is never proposed.

    A model that inference refutes as it is tells nothing, and then nothing is held back.
    """
    able = list(items)
    if is_consistent(model):
        able = [item for item in able if is_consistent(without([item]))]
    yield from leave_out(able, lambda gone: Change(without(gone), f"without {len(gone)} of {len(able)} {what}"))


_DOCUMENTED = ("doc_string", "metadata_props")
_MOST_NAMED = 2


@dataclass(frozen=True)
class Removal:
    """One thing that nothing needs: what it is, and how it is taken out of a model."""

    what: str
    remove: Callable[[onnx.ModelProto], None]


def tidy(model: onnx.ModelProto) -> ChangeSearch:
    """Remove everything at once that no node needs; only if that does not reproduce, by halves.

    What is needed only by something else that goes is found once that has gone.
    """

    def without(model: onnx.ModelProto, gone: Sequence[Removal]) -> onnx.ModelProto:
        made = copied(model)
        for removal in gone:
            removal.remove(made)
        return made

    removals: list[Removal] = []
    rest = model
    while more := [each for each in _found_in(rest) if all(each.what != known.what for known in removals)]:
        removals += more
        rest = without(rest, more)
    yield from leave_out(
        removals,
        lambda gone: Change(
            without(model, gone), f"without {first_of([removal.what for removal in gone], _MOST_NAMED)}"
        ),
    )


def _found_in(model: onnx.ModelProto) -> Iterator[Removal]:
    """Each kind of thing that is there, in the order in which they are tried."""
    for what, remove in _KINDS.items():
        cleaned = copied(model)
        remove(cleaned)
        if cleaned != model:
            yield Removal(what, remove)
    read = _read_names(model)
    unused: dict[str, None] = {}
    for graph in walk.graphs(model):
        names = (*(weight.name for weight in graph.initializer), *(s.values.name for s in graph.sparse_initializer))
        unused.update((name, None) for name in names if name not in read)
    for name in unused:
        yield Removal(f"the unused weight {name!r}", partial(_drop_weight, name))
    called = walk.called(model)
    for key in dict.fromkeys(map(walk.function_key, model.functions)):
        if key not in called:
            yield Removal(f"the function {key[1]}, which is not called", partial(_drop_function, key))
    # The import of ONNX's own operators says how old a model is, and stays.
    used = {walk.operator(node)[0] for node in walk.nodes(model)} | {""}
    for domain in dict.fromkeys(_domain(entry) for entry in model.opset_import):
        if domain not in used:
            yield Removal(f"the operator set {domain}, which has no node", partial(_drop_operator_set, domain))


def _drop_documentation(message: Any) -> None:
    """Clear doc strings and metadata of a message and of all inside it, but for what exporters noted of nodes."""
    kind = message.DESCRIPTOR.name
    kept: Collection[str] = ()
    if kind == "NodeProto":  # an exporter may have noted there where the node comes from
        kept = _DOCUMENTED if is_stack(message.doc_string) else ("metadata_props",)
    for name in set(_DOCUMENTED).intersection(message.DESCRIPTOR.fields_by_name).difference(kept):
        message.ClearField(name)
    if kind not in {"TensorProto", "TypeProto"}:  # values are not to be walked over, and no type has any
        for part in _messages_in(message):
            _drop_documentation(part)


def _drop_denotations(message: Any) -> None:
    """Words that say what a tensor or a dimension means, in every type of a message."""
    if hasattr(message, "denotation"):
        message.ClearField("denotation")
    if not hasattr(message, "raw_data"):
        for part in _messages_in(message):
            _drop_denotations(part)


def _messages_in(message: Any) -> Iterator[Any]:
    for field, value in message.ListFields():
        if field.message_type is not None:
            yield from (value,) if hasattr(value, "ListFields") else value


def _drop_producer(model: onnx.ModelProto) -> None:
    for field in ("producer_name", "producer_version", "domain", "model_version"):
        model.ClearField(field)


def _drop_devices(model: onnx.ModelProto) -> None:
    """Device configurations, and how nodes are spread over devices."""
    model.ClearField("configuration")
    for node in walk.nodes(model):
        node.ClearField("device_configurations")


def _drop_stale_types(model: onnx.ModelProto) -> None:
    """Types and quantization parameters of tensors that are not there."""
    for graph in walk.graphs(model):
        there = walk.defined(graph)
        shown = {info.name for info in (*graph.input, *graph.output)}
        keep_only(graph.value_info, lambda info: info.name in there and info.name not in shown)  # noqa: B023 -- at once
        keep_only(graph.quantization_annotation, lambda entry: entry.tensor_name in there)  # noqa: B023
    for function in model.functions:
        written = {name for node in function.node for name in node.output} | set(function.input)
        keep_only(function.value_info, lambda info: info.name in written)  # noqa: B023


def _drop_dead_nodes_in_bodies(model: onnx.ModelProto) -> None:
    for body in reversed(list(walk.graphs_within(model.graph.node))):
        drop_dead_nodes(body)


_KINDS: dict[str, Callable[[onnx.ModelProto], None]] = {
    "nodes in bodies that nothing reads": _drop_dead_nodes_in_bodies,  # first: other things serve only these
    # A node that computes nothing may be there for what it does.
    "nodes that nothing reads": lambda model: drop_dead_nodes(model.graph, lambda node: any(node.output)),
    "documentation": _drop_documentation,
    "its producer": _drop_producer,
    "training": lambda model: model.ClearField("training_info"),
    "devices": _drop_devices,
    "denotations": _drop_denotations,
    "fields that onnx does not know": lambda model: model.DiscardUnknownFields(),
    "types of tensors that are not there": _drop_stale_types,
}


def _read_names(model: onnx.ModelProto) -> set[str]:
    used: set[str] = set()
    for graph in walk.graphs(model):
        used |= read_in(graph)
        used.update(
            entry.value for note in graph.quantization_annotation for entry in note.quant_parameter_tensor_names
        )
    return used


# What is removed by name stays where something reads it that was to go as well, and has not gone.


def _drop_weight(name: str, model: onnx.ModelProto) -> None:
    if name in _read_names(model):
        return
    for graph in walk.graphs(model):
        dropped = keep_only(graph.initializer, lambda weight: weight.name != name)
        dropped |= keep_only(graph.sparse_initializer, lambda weight: weight.values.name != name)
        if dropped and graph is model.graph:
            keep_only(graph.input, lambda info: info.name != name)


def _drop_function(key: FunctionKey, model: onnx.ModelProto) -> None:
    if key not in walk.called(model):
        keep_only(model.functions, lambda function: walk.function_key(function) != key)


def _drop_operator_set(domain: str, model: onnx.ModelProto) -> None:
    if all(walk.operator(node)[0] != domain for node in walk.nodes(model)):
        keep_only(model.opset_import, lambda entry: _domain(entry) != domain)


def _domain(entry: onnx.OperatorSetIdProto) -> str:
    return "" if entry.domain == "ai.onnx" else str(entry.domain)


# What exporters noted of nodes: stack traces with paths and lines of code, names of modules and of their classes.
#
# They lead back to the code that a node comes from, so every other pass leaves them alone. They also tell of it.


def exporter_notes(model: onnx.ModelProto) -> ChangeSearch:
    """Remove metadata and documentation of all nodes at once; only if that does not reproduce, by halves."""
    noted = [number for number, node in enumerate(walk.nodes(model)) if node.metadata_props or node.doc_string]

    def without(gone: Sequence[int]) -> Change:
        made = copied(model)
        nodes = list(walk.nodes(made))
        for number in gone:
            nodes[number].ClearField("metadata_props")
            nodes[number].ClearField("doc_string")
        return Change(made, "without what an exporter noted of nodes")

    yield from leave_out(noted, without)
