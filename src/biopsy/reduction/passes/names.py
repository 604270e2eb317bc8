"""Neutral names: of tensors, nodes, graphs, functions with their domains and attributes, and symbolic dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from biopsy.model import walk
from biopsy.model.domains import PUBLIC_DOMAINS
from biopsy.model.node import FunctionKey
from biopsy.reduction.change import Change, ChangeSearch
from biopsy.reduction.passes.editing import copied
from biopsy.reduction.passes.traces import KINDS, traces
from biopsy.reduction.passes.weights import tables, values_left, weights_left
from biopsy.search.subset import minimize_subset

if TYPE_CHECKING:
    import onnx

Kind: TypeAlias = str
Name: TypeAlias = tuple[Kind, str]
Rename: TypeAlias = "Callable[[Kind, str], str]"

_NEUTRAL = {
    "tensor": "t",
    "node": "n",
    "graph": "g",
    "function": "f",
    "dimension": "d",
    "domain": "domain",  # this and what follows: of functions
    "overload": "overload",
    "attribute": "a",
}


def names(model: onnx.ModelProto) -> ChangeSearch:
    """Rename everything at once, then what can be renamed by halves. Values stay; operators and domains too."""
    neutral = _neutral_names(model)
    able = [name for name, made in neutral.items() if made != name[1]]

    def propose(kept: Sequence[Name]) -> Change:
        gone = set(able).difference(kept)
        return Change(renamed(model, {name: neutral[name] for name in gone}), f"{len(gone)} of {len(able)} names")

    yield from minimize_subset(able, propose)


def names_left(model: onnx.ModelProto) -> Sequence[str]:
    """What of a model can still tell where it comes from, all of it by name."""
    neutral = _neutral_names(model)
    found: dict[str, dict[str, None]] = {kind: {} for kind in KINDS}
    found["names"] = {name: None for (_, name), made in neutral.items() if made != name}
    told = {*values_left(model), *tables(model)}
    for kind, which in traces(model, {name for _, name in neutral}):
        if which not in told or kind not in {"values", "texts", "integers"}:
            found[kind][which] = None
    return [*weights_left(model), *(_remark(kind, which) for kind, which in found.items() if which)]


def _remark(kind: str, which: Iterable[str]) -> str:
    return f"anonymize {kind} {KINDS[kind]}: {', '.join(which)}"


def _neutral_names(model: onnx.ModelProto) -> dict[Name, str]:
    """A neutral name for each name, by the order in which they appear; the same names get the same."""
    found: dict[Name, str] = {}
    counts = dict.fromkeys(_NEUTRAL, 0)

    def note(kind: Kind, name: str) -> str:
        if name and (kind, name) not in found:
            found[kind, name] = f"{_NEUTRAL[kind]}{counts[kind]}"
            counts[kind] += 1
        return name

    _visit(copied(model), note)
    return found


def renamed(model: onnx.ModelProto, new: dict[Name, str]) -> onnx.ModelProto:
    """A copy with other names; one that is taken by a name that stays gets an underscore."""
    made = copied(model)
    stay = {name for name in _neutral_names(model) if name not in new}
    chosen = {}
    for (kind, name), wanted in new.items():
        free = wanted
        while (kind, free) in stay:
            free += "_"
        chosen[kind, name] = free
    _visit(made, lambda kind, name: chosen.get((kind, name), name))
    return made


def _visit(model: onnx.ModelProto, rename: Rename) -> None:
    """Pass every name through ``rename``, in the order of the model."""
    functions = {walk.function_key(function) for function in model.functions}
    domains = _own_domains(model, functions)
    for graph in walk.graphs(model):
        _visit_graph(graph, rename)
        _visit_nodes(graph.node, functions, domains, rename)
    for function in model.functions:
        _visit_function(function, rename)
        _visit_nodes(function.node, functions, domains, rename)
        if function.domain in domains:
            _rename(function, "domain", "domain", rename)
    for imports in (model.opset_import, *(function.opset_import for function in model.functions)):
        for entry in imports:
            if entry.domain in domains:
                _rename(entry, "domain", "domain", rename)
    for training in model.training_info:
        for binding in (*training.initialization_binding, *training.update_binding):
            _rename(binding, "key", "tensor", rename)
            _rename(binding, "value", "tensor", rename)


def _own_domains(model: onnx.ModelProto, functions: set[FunctionKey]) -> set[str]:
    """Domains of which there is nothing but functions: other operators could not be found under another domain."""
    others = {node.domain for node in walk.nodes(model) if walk.operator(node) not in functions}
    return {function.domain for function in model.functions} - others - PUBLIC_DOMAINS


def _visit_graph(graph: onnx.GraphProto, rename: Rename) -> None:
    _rename(graph, "name", "graph", rename)
    for info in (*graph.input, *graph.output, *graph.value_info):
        _visit_info(info, rename)
    for weight in graph.initializer:
        _rename(weight, "name", "tensor", rename)
    for sparse in graph.sparse_initializer:
        _visit_sparse(sparse, rename)
    for note in graph.quantization_annotation:
        _rename(note, "tensor_name", "tensor", rename)
        for entry in note.quant_parameter_tensor_names:
            _rename(entry, "value", "tensor", rename)


def _visit_function(function: onnx.FunctionProto, rename: Rename) -> None:
    _rename_all(function.input, "tensor", rename)
    _rename_all(function.output, "tensor", rename)
    for info in function.value_info:
        _visit_info(info, rename)
    _rename_all(function.attribute, "attribute", rename)
    for attribute in function.attribute_proto:
        _rename(attribute, "name", "attribute", rename)
        _visit_attribute(attribute, rename)
    _rename(function, "name", "function", rename)
    _rename(function, "overload", "overload", rename)


def _visit_nodes(nodes: Any, functions: set[FunctionKey], domains: set[str], rename: Rename) -> None:
    for node in nodes:
        _rename_all(node.input, "tensor", rename)
        _rename_all(node.output, "tensor", rename)
        _rename(node, "name", "node", rename)
        is_call = walk.operator(node) in functions
        for attribute in node.attribute:
            if is_call:
                _rename(attribute, "name", "attribute", rename)
            _rename(attribute, "ref_attr_name", "attribute", rename)
            _visit_attribute(attribute, rename)
        if is_call:
            _rename(node, "op_type", "function", rename)
            _rename(node, "overload", "overload", rename)
            if node.domain in domains:
                _rename(node, "domain", "domain", rename)


def _visit_attribute(attribute: onnx.AttributeProto, rename: Rename) -> None:
    """Names inside the value of an attribute; graphs are visited as graphs."""
    for tensor in (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors):
        _rename(tensor, "name", "tensor", rename)
    sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
    for entry in (*sparse, *attribute.sparse_tensors):
        _visit_sparse(entry, rename)
    for kind in (*([attribute.tp] if attribute.HasField("tp") else []), *attribute.type_protos):
        _visit_type(kind, rename)


def _visit_sparse(sparse: onnx.SparseTensorProto, rename: Rename) -> None:
    _rename(sparse.values, "name", "tensor", rename)
    if sparse.HasField("indices"):
        _rename(sparse.indices, "name", "tensor", rename)


def _rename(message: Any, field: str, kind: Kind, rename: Rename) -> None:
    """Rename what a field holds; one that is not there stays away."""
    name = getattr(message, field)
    if name:
        setattr(message, field, rename(kind, name))


def _rename_all(field: Any, kind: Kind, rename: Rename) -> None:
    for number, name in enumerate(field):
        field[number] = rename(kind, name)


def _visit_info(info: onnx.ValueInfoProto, rename: Rename) -> None:
    _rename(info, "name", "tensor", rename)
    _visit_type(info.type, rename)


def _visit_type(kind: onnx.TypeProto, rename: Rename) -> None:
    for inner in _types_within(kind):
        for field in (inner.tensor_type, inner.sparse_tensor_type):
            for dim in field.shape.dim:
                _rename(dim, "dim_param", "dimension", rename)


def _types_within(kind: onnx.TypeProto) -> Iterator[onnx.TypeProto]:
    """A type and, for sequences, optionals and maps, those inside it."""
    yield kind
    for field, inner in (("sequence_type", "elem_type"), ("optional_type", "elem_type"), ("map_type", "value_type")):
        if kind.HasField(field):
            yield from _types_within(getattr(getattr(kind, field), inner))
