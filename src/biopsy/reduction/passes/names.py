"""The pass that gives a model neutral names, and a list of what in a model may still reveal its origin."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from biopsy.model import walk
from biopsy.model.parts import PUBLIC_DOMAINS, FunctionKey
from biopsy.model.tensor_type import FLOATS, STRING
from biopsy.reduction.passes.common import Change, ChangeSearch, copied, leave_out, opsets_of, schema_of
from biopsy.reduction.passes.weights import (
    CHOICES,
    QUANTIZATION_KEYS,
    SCALARS,
    UNNAMED,
    are_filled,
    are_neutral,
    is_filled,
    tables,
    values_left,
    weights_left,
)
from biopsy.slow_imports import onnx

Kind: TypeAlias = str
Name: TypeAlias = tuple[Kind, str]
Rename: TypeAlias = "Callable[[Kind, str], str]"

_NEUTRAL = {
    "tensor": "t",
    "node": "n",
    "graph": "g",
    "function": "f",
    "dimension": "d",
    "domain": "domain",  # this and the following: of functions
    "overload": "overload",
    "attribute": "a",
}


def names(model: onnx.ModelProto) -> ChangeSearch:
    """Rename everything at once, or by halves as much as possible. Values, operators and their domains stay."""
    neutral = _neutral_names(model)
    able = [name for name, neutral_name in neutral.items() if neutral_name != name[1]]
    yield from leave_out(
        able,
        lambda gone: Change(
            renamed(model, {name: neutral[name] for name in gone}), f"{len(gone)} of {len(able)} names"
        ),
    )


def names_left(model: onnx.ModelProto) -> Sequence[str]:
    """Lines on what in a model may still reveal its origin, each with the names."""
    neutral = _neutral_names(model)
    traces: dict[str, dict[str, None]] = {kind: {} for kind in KINDS}
    traces["names"] = {name: None for (_, name), neutral_name in neutral.items() if neutral_name != name}
    in_other_lines = {*values_left(model), *tables(model)}
    for kind, name in _Walk(model, {name for _, name in neutral}).message(model):
        if name not in in_other_lines or kind not in {"values", "texts", "integers"}:
            traces[kind][name] = None
    return [
        *weights_left(model),
        *(f"anonymize {kind} {KINDS[kind]}: {', '.join(names)}" for kind, names in traces.items() if names),
    ]


def former_names(before: onnx.ModelProto, after: onnx.ModelProto) -> dict[str, str]:
    """What ``weights_left`` names in ``after``, which the pass ``names`` has made of ``before`` -> its name there."""
    names, old_names = ([*values_left(model), *tables(model)] for model in (after, before))
    return dict(zip(names, old_names, strict=True)) if len(names) == len(old_names) else {}


def former_names_left(model: onnx.ModelProto, former: Mapping[str, str]) -> dict[str, str]:
    """Those of the ``former`` names that are of what ``weights_left`` names, and are others now."""
    left = (*values_left(model), *tables(model))
    return {name: former[name] for name in left if former.get(name, name) != name}


def _neutral_names(model: onnx.ModelProto) -> dict[Name, str]:
    """Each name -> a neutral one, numbered in the order of appearance; equal names get equal ones."""
    neutral: dict[Name, str] = {}
    counts = dict.fromkeys(_NEUTRAL, 0)

    def note(kind: Kind, name: str) -> str:
        if name and (kind, name) not in neutral:
            neutral[kind, name] = f"{_NEUTRAL[kind]}{counts[kind]}"
            counts[kind] += 1
        return name

    _visit(copied(model), note)
    return neutral


def renamed(model: onnx.ModelProto, new: dict[Name, str]) -> onnx.ModelProto:
    """A copy with new names; a new name that is taken by one that stays gets underscores."""
    result = copied(model)
    stay = {name for name in _neutral_names(model) if name not in new}
    chosen = {}
    for (kind, name), wanted in new.items():
        free = wanted
        while (kind, free) in stay:
            free += "_"
        chosen[kind, name] = free
    _visit(result, lambda kind, name: chosen.get((kind, name), name))
    return result


_NAMED_FIELDS = {
    "GraphProto": "name=graph input output value_info initializer sparse_initializer quantization_annotation",
    "ValueInfoProto": "name=tensor type",
    "TensorProto": "name=tensor",
    "SparseTensorProto": "values indices",
    "TensorAnnotation": "tensor_name=tensor quant_parameter_tensor_names",
    "StringStringEntryProto": "value=tensor",
    "NodeProto": "input=tensor output=tensor name=node",
    "AttributeProto": "t tensors sparse_tensor sparse_tensors tp type_protos",
    "FunctionProto": "input=tensor output=tensor value_info attribute=attribute",
    "TypeProto": "tensor_type sparse_tensor_type sequence_type optional_type map_type",
    "Tensor": "shape",
    "SparseTensor": "shape",
    "TensorShapeProto": "dim",
    "Dimension": "dim_param=dimension",
    "Sequence": "elem_type",
    "Optional": "elem_type",
    "Map": "value_type",
}
"""Message -> its fields that hold names (FIELD=KIND) or messages with names (FIELD), in the order of numbering.

Graphs in attributes are visited separately.
"""


def _visit(model: onnx.ModelProto, rename: Rename) -> None:
    """Pass every name through ``rename``, in the order of the model."""
    functions = {walk.function_key(function) for function in model.functions}
    # Domains with functions only: other operators cannot be found under another domain.
    others = {node.domain for node in walk.nodes(model) if walk.operator(node) not in functions}
    domains = {function.domain for function in model.functions} - others - PUBLIC_DOMAINS
    for graph in walk.graphs(model):
        _rename_in(graph, rename)
        _visit_nodes(graph.node, functions, domains, rename)
    for function in model.functions:
        _rename_in(function, rename)
        for attribute in function.attribute_proto:
            _rename_in(attribute, rename, "name=attribute")
            _rename_in(attribute, rename)
        _rename_in(function, rename, "name=function overload=overload")
        _visit_nodes(function.node, functions, domains, rename)
        if function.domain in domains:
            _rename_in(function, rename, "domain=domain")
    for entry in chain(model.opset_import, *(function.opset_import for function in model.functions)):
        if entry.domain in domains:
            _rename_in(entry, rename, "domain=domain")
    for training in model.training_info:
        for binding in (*training.initialization_binding, *training.update_binding):
            _rename_in(binding, rename, "key=tensor value=tensor")


def _visit_nodes(
    nodes: Iterable[onnx.NodeProto], functions: set[FunctionKey], domains: set[str], rename: Rename
) -> None:
    for node in nodes:
        _rename_in(node, rename)
        is_call = walk.operator(node) in functions
        for attribute in node.attribute:
            if is_call:
                _rename_in(attribute, rename, "name=attribute")
            _rename_in(attribute, rename, "ref_attr_name=attribute")
            _rename_in(attribute, rename)
        if is_call:
            _rename_in(node, rename, "op_type=function overload=overload")
            if node.domain in domains:
                _rename_in(node, rename, "domain=domain")


def _rename_in(message: Any, rename: Rename, fields: str = "") -> None:
    """Rename the content of fields of a message, by default those of ``_NAMED_FIELDS``, and of messages in them."""
    for entry in (fields or _NAMED_FIELDS[message.DESCRIPTOR.name]).split():
        field, _, kind = entry.partition("=")
        value = getattr(message, field)
        if kind and isinstance(value, str):
            if value:  # an absent field stays absent
                setattr(message, field, rename(kind, value))
        elif kind:
            value[:] = [rename(kind, name) for name in value]
        elif not hasattr(value, "ListFields"):
            for part in value:
                _rename_in(part, rename)
        elif message.HasField(field):
            _rename_in(value, rename)


Trace: TypeAlias = tuple[str, str]
"""Something of the original that stays: its kind, one of ``KINDS``, and its name."""

KINDS = {
    "names": "not replaced",
    "custom operators": "not replaced",
    "domains": "not replaced",
    "attributes": "not replaced",
    "values": "not replaced, since the failure or its check needs them",
    "texts": "not replaced",
    "numbers": "not replaced, since they say how an operator works",
    "integers": "kept: they are usually sizes, axes or indices",
    "fields": "not replaced",
}
"""The kinds of traces -> why they stay."""

_STRUCTURE = frozenset(
    {
        *("ModelProto.ir_version", "OperatorSetIdProto.version", "AttributeProto.type"),
        *("TensorProto.dims", "TensorProto.data_type", "TensorProto.data_location", "SparseTensorProto.dims"),
        *("TypeProto.Tensor.elem_type", "TypeProto.SparseTensor.elem_type", "TypeProto.Map.key_type"),
        *("TensorShapeProto.Dimension.dim_value",),
    }
)
"""Numbers that are versions, types or sizes."""

_NAMES = frozenset(
    {
        *("GraphProto.name", "NodeProto.name", "NodeProto.input", "NodeProto.output", "NodeProto.overload"),
        *("ValueInfoProto.name", "TensorProto.name", "TensorAnnotation.tensor_name", "AttributeProto.ref_attr_name"),
        *("TensorShapeProto.Dimension.dim_param",),
        *(f"FunctionProto.{field}" for field in ("name", "input", "output", "attribute", "overload")),
    }
)
"""Names that the pass ``names`` replaces."""

_DOMAINS = frozenset({"OperatorSetIdProto.domain", "FunctionProto.domain"})
_NOT_WALKED = frozenset({"TensorProto.external_data", "TensorAnnotation.quant_parameter_tensor_names"})
"""Places of external weights, which are written anew with the result, and a field that ``message`` visits itself."""


@dataclass(frozen=True)
class _Owner:
    """The node of an attribute: its name, and the schema of its operator."""

    label: str
    schema: onnx.defs.OpSchema | None


class _Walk:
    """A walk over every field of a model by its descriptor, which yields all traces of its origin.

    It knows what is harmless, not what is a trace. So fields of a later version of ONNX, and unknown ones, are traces
    until they are classified here.
    """

    def __init__(self, model: onnx.ModelProto, known: Collection[str]) -> None:
        self._opsets = opsets_of(model)
        self._functions = {walk.function_key(function) for function in model.functions}
        self._known = frozenset(known)

    def message(self, message: Any, owner: _Owner | None = None) -> Iterator[Trace]:
        """The traces in a message and the messages inside it: all that is neither neutral nor from the standard."""
        name = re.sub(r"^onnx\.", "", message.DESCRIPTOR.full_name)
        yield from _unknown_fields(message, name)
        if name == "NodeProto":
            owner = _Owner(message.name or message.op_type, schema_of(message, self._opsets))
            yield from self._operator(message, owner)
        elif name == "AttributeProto":
            yield from self._attribute(message, owner)
        elif name == "TensorProto" and not is_filled(message):
            kind = "values" if message.data_type in FLOATS else "integers"
            yield "texts" if message.data_type == STRING else kind, message.name or UNNAMED
        elif name == "TensorAnnotation":  # keys are defined by the standard, values are names of tensors
            for entry in message.quant_parameter_tensor_names:
                yield from self._annotation(entry)
        for field, value in message.ListFields():
            place = f"{name}.{field.name}"
            if field.message_type is None:
                yield from self._leaf(place, value)
            elif place not in _NOT_WALKED:
                for part in (value,) if hasattr(value, "ListFields") else value:
                    yield from self.message(part, owner)

    def _leaf(self, place: str, value: Any) -> Iterator[Trace]:
        if place in _STRUCTURE or place in _OF_THEIR_MESSAGE:
            return
        if place in _NAMES:
            names = (value,) if isinstance(value, str) else value
            yield from (("names", name) for name in names if name and name not in self._known)
        elif place in _DOMAINS:
            if value not in PUBLIC_DOMAINS | self._known:
                yield "domains", value
        else:
            text = value if isinstance(value, str) else repr(list(value) if hasattr(value, "__len__") else value)
            yield "fields", f"{place} {text if len(text) <= 40 else f'{text[:40]}...'}"

    def _operator(self, node: onnx.NodeProto, owner: _Owner) -> Iterator[Trace]:
        if walk.operator(node) in self._functions:
            if node.op_type not in self._known:
                yield "names", node.op_type
        elif owner.schema is None:
            yield "custom operators", f"{node.domain}.{node.op_type}" if node.domain else node.op_type

    def _annotation(self, entry: onnx.StringStringEntryProto) -> Iterator[Trace]:
        yield from _unknown_fields(entry, "StringStringEntryProto")
        yield from self._leaf("ValueInfoProto.name", entry.value)
        if entry.key not in QUANTIZATION_KEYS:
            yield "fields", f"StringStringEntryProto.key {entry.key}"

    def _attribute(self, attribute: onnx.AttributeProto, owner: _Owner | None) -> Iterator[Trace]:
        schema = owner.schema if owner is not None else None
        declared = schema.attributes.get(attribute.name) if schema is not None else None
        label = f"{owner.label}.{attribute.name}" if owner is not None else attribute.name
        if declared is None and attribute.name not in self._known:
            yield "attributes", attribute.name
        default = declared.default_value if declared is not None else None
        if default is not None and default.type and default == attribute:
            return
        is_standard = declared is not None
        choices = CHOICES.get(attribute.name, frozenset()) if is_standard else frozenset()
        texts = [text for text in (attribute.s, *attribute.strings) if text.decode("utf-8", "replace") not in choices]
        if not are_neutral(texts):
            yield "texts", label
        if not are_filled(attribute.floats) or (attribute.name in SCALARS and attribute.f != 1):
            yield "values", label
        elif attribute.f not in {0, 1}:
            yield "numbers", label
        if attribute.ints or attribute.i:
            yield "integers", label


_OF_THEIR_MESSAGE = frozenset(
    {
        *("NodeProto.op_type", "NodeProto.domain", "AttributeProto.name"),
        *(f"AttributeProto.{field}" for field in ("f", "i", "s", "floats", "ints", "strings")),
        *(f"TensorProto.{kind}_data" for kind in ("raw", "float", "int32", "int64", "double", "uint64", "string")),
    }
)
"""Fields that ``message`` looks at together with their message."""


def _unknown_fields(message: Any, name: str) -> Iterator[Trace]:
    from google.protobuf.unknown_fields import UnknownFieldSet

    unknown = UnknownFieldSet(message)
    for field in (unknown[place] for place in range(len(unknown))):
        yield "fields", f"{name}, field {field.field_number}, which this version of onnx does not know"
