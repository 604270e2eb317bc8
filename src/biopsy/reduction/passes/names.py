"""Neutral names: of tensors, nodes, graphs, functions and symbolic dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from biopsy.model import walk
from biopsy.reduction.change import Change, ChangeSearch
from biopsy.reduction.passes.editing import copied, every_node
from biopsy.reduction.passes.fewest import fewest
from biopsy.reduction.passes.schemas import opsets_of, schema_of

if TYPE_CHECKING:
    import onnx

Kind: TypeAlias = str
Name: TypeAlias = tuple[Kind, str]

_NEUTRAL = {"tensor": "t", "node": "n", "graph": "g", "function": "f", "dimension": "d"}
_MOST_NAMED = 8


def names(model: onnx.ModelProto) -> ChangeSearch:
    """Rename everything at once, then what can be renamed by halves. Values stay; operators and domains too."""
    neutral = _neutral_names(model)
    able = [name for name, made in neutral.items() if made != name[1]]

    def propose(kept: Sequence[Name]) -> Change:
        gone = set(able).difference(kept)
        return Change(renamed(model, {name: neutral[name] for name in gone}), f"{len(gone)} of {len(able)} names")

    yield from fewest(able, propose)


def names_left(model: onnx.ModelProto) -> Sequence[str]:
    """What of a model can still tell where it comes from."""
    opsets = opsets_of(model)
    custom = [node for _, _, node in every_node(model) if schema_of(node, opsets) is None]
    functions = {walk.function_key(function) for function in model.functions}
    found = {
        "names": [name for (_, name), made in _neutral_names(model).items() if made != name],
        "custom operators": [
            f"{node.domain}.{node.op_type}" for node in custom if walk.operator(node) not in functions
        ],
        "domains": [function.domain for function in model.functions],
        "attributes": [attribute.name for node in custom for attribute in node.attribute],
        "texts": [tensor.name or "a constant" for tensor in walk.tensors(model) if tensor.data_type == 8],
    }
    return [_remark(what, list(dict.fromkeys(which))) for what, which in found.items() if which]


def _remark(what: str, which: list[str]) -> str:
    more = f" and {len(which) - _MOST_NAMED} more" if len(which) > _MOST_NAMED else ""
    return f"anonymize {what} not replaced: {', '.join(which[:_MOST_NAMED])}{more}"


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


def _visit(model: onnx.ModelProto, rename: Callable[[Kind, str], str]) -> None:
    """Pass every name through ``rename``, in the order of the model."""
    functions = {walk.function_key(function) for function in model.functions}
    for graph in walk.graphs(model):
        graph.name = rename("graph", graph.name)
        for info in (*graph.input, *graph.output, *graph.value_info):
            _visit_info(info, rename)
        for weight in graph.initializer:
            weight.name = rename("tensor", weight.name)
        for sparse in graph.sparse_initializer:
            sparse.values.name = rename("tensor", sparse.values.name)
        for note in graph.quantization_annotation:
            note.tensor_name = rename("tensor", note.tensor_name)
            for entry in note.quant_parameter_tensor_names:
                entry.value = rename("tensor", entry.value)
        _visit_nodes(graph.node, functions, rename)
    for function in model.functions:
        _rename_all(function.input, rename)
        _rename_all(function.output, rename)
        for info in function.value_info:
            _visit_info(info, rename)
        _visit_nodes(function.node, functions, rename)
        function.name = rename("function", function.name)


def _visit_nodes(nodes: Any, functions: set[Any], rename: Callable[[Kind, str], str]) -> None:
    for node in nodes:
        _rename_all(node.input, rename)
        _rename_all(node.output, rename)
        node.name = rename("node", node.name)
        if walk.operator(node) in functions:
            node.op_type = rename("function", node.op_type)
        for tensor in _tensors_of(node):
            tensor.name = rename("tensor", tensor.name)


def _tensors_of(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors


def _rename_all(field: Any, rename: Callable[[Kind, str], str]) -> None:
    for number, name in enumerate(field):
        field[number] = rename("tensor", name)


def _visit_info(info: onnx.ValueInfoProto, rename: Callable[[Kind, str], str]) -> None:
    info.name = rename("tensor", info.name)
    for kind in _types_within(info.type):
        kind.ClearField("denotation")
        for field in (kind.tensor_type, kind.sparse_tensor_type):
            for dim in field.shape.dim:
                dim.ClearField("denotation")
                if dim.HasField("dim_param"):
                    dim.dim_param = rename("dimension", dim.dim_param)


def _types_within(kind: onnx.TypeProto) -> Iterator[onnx.TypeProto]:
    """A type and, for sequences, optionals and maps, those inside it."""
    yield kind
    for field, inner in (("sequence_type", "elem_type"), ("optional_type", "elem_type"), ("map_type", "value_type")):
        if kind.HasField(field):
            yield from _types_within(getattr(getattr(kind, field), inner))
