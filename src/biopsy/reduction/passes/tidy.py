"""What no remaining node needs: weights, functions, operator sets, documentation, stale types, dead nodes, and what
exporters noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from biopsy.model import walk
from biopsy.model.parts import FunctionKey
from biopsy.model.sources import is_stack
from biopsy.reduction.passes.contract import Change, ChangeSearch
from biopsy.reduction.passes.editing import copied, drop_dead_nodes, keep_only, read_in
from biopsy.search.subset import minimize_subset
from biopsy.text import first_of

if TYPE_CHECKING:
    import onnx

_DOCUMENTED = ("doc_string", "metadata_props")
_MOST_NAMED = 2
_PRODUCER = ("producer_name", "producer_version", "domain", "model_version")


@dataclass(frozen=True)
class Removal:
    """One thing that nothing needs: what it is, and how it is taken out of a model."""

    what: str
    remove: Callable[[onnx.ModelProto], None]


def tidy(model: onnx.ModelProto) -> ChangeSearch:
    """Remove everything at once that no node needs; only if that does not reproduce, by halves.

    What is needed only by something else that goes is found once that has gone.
    """
    removals: list[Removal] = []
    rest = model
    while more := [found for found in _found_in(rest) if all(found.what != known.what for known in removals)]:
        removals += more
        rest = _without(rest, more)

    def propose(kept: Sequence[Removal]) -> Change:
        gone = [removal for removal in removals if removal not in kept]
        return Change(_without(model, gone), f"without {first_of([removal.what for removal in gone], _MOST_NAMED)}")

    yield from minimize_subset(removals, propose)


def _without(model: onnx.ModelProto, gone: Sequence[Removal]) -> onnx.ModelProto:
    made = copied(model)
    for removal in gone:
        removal.remove(made)
    return made


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
    if kind == "TensorProto":  # its values are not to be walked over
        for name in _DOCUMENTED:
            message.ClearField(name)
        return
    if kind == "TypeProto":  # none has any
        return
    kept: tuple[str, ...] = ()
    if kind == "NodeProto":  # an exporter may have noted there where the node comes from
        kept = _DOCUMENTED if is_stack(message.doc_string) else ("metadata_props",)
    for field, value in message.ListFields():
        if field.name in _DOCUMENTED:
            if field.name not in kept:
                message.ClearField(field.name)
        elif field.message_type is not None:
            for part in value if _is_repeated(value) else (value,):
                _drop_documentation(part)


def _is_repeated(value: Any) -> bool:
    return not hasattr(value, "ListFields")


def _drop_producer(model: onnx.ModelProto) -> None:
    for field in _PRODUCER:
        model.ClearField(field)


def _drop_devices(model: onnx.ModelProto) -> None:
    """Device configurations, and how nodes are spread over devices."""
    model.ClearField("configuration")
    for node in walk.nodes(model):
        node.ClearField("device_configurations")


def _drop_denotations(message: Any) -> None:
    """Words that say what a tensor or a dimension means, in every type of a message."""
    if hasattr(message, "raw_data"):
        return
    for field, value in message.ListFields():
        if field.name == "denotation":
            message.ClearField(field.name)
        elif field.message_type is not None:
            for part in value if _is_repeated(value) else (value,):
                _drop_denotations(part)


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

    def propose(kept: Sequence[int]) -> Change:
        made, gone = copied(model), set(noted) - set(kept)
        for number, node in enumerate(walk.nodes(made)):
            if number in gone:
                node.ClearField("metadata_props")
                node.ClearField("doc_string")
        return Change(made, "without what an exporter noted of nodes")

    yield from minimize_subset(noted, propose)
