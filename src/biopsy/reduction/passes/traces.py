"""What of a model can still tell where it comes from: a walk over every field that there is, by its descriptor.

The walk knows what may stay, not what must go. So a field that a later version of ONNX brings, and one that this
version does not know at all, is told of until somebody decides about it here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from biopsy.model import walk
from biopsy.model.domains import PUBLIC_DOMAINS
from biopsy.model.tensor_type import FLOATS, STRING
from biopsy.reduction.passes.fillings import SCALARS, are_filled, are_neutral, is_filled
from biopsy.reduction.passes.schemas import opsets_of, schema_of
from biopsy.reduction.passes.vocabulary import CHOICES, QUANTIZATION_KEYS
from biopsy.reduction.passes.weights import UNNAMED

if TYPE_CHECKING:
    import onnx

Trace: TypeAlias = tuple[str, str]
"""(kind, which one): something of the original that stays. The kinds are those of ``KINDS``."""

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
"""What can stay, and why."""

_SAYS_HOW_IT_IS_BUILT = frozenset(
    {
        *("ModelProto.ir_version", "OperatorSetIdProto.version", "AttributeProto.type"),
        *("TensorProto.dims", "TensorProto.data_type", "TensorProto.data_location", "SparseTensorProto.dims"),
        *("TypeProto.Tensor.elem_type", "TypeProto.SparseTensor.elem_type", "TypeProto.Map.key_type"),
        *("TensorShapeProto.Dimension.dim_value",),
    }
)
"""Numbers that say of which version, type and size something is."""

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
_NOT_WALKED = frozenset({"TensorProto.external_data"})
"""Where weights stand beside the candidate; whoever writes a result writes it anew."""


@dataclass(frozen=True)
class _Owner:
    """The node that an attribute stands in: what it is called, and what onnx knows of its operator."""

    label: str
    schema: onnx.defs.OpSchema | None


def traces(model: onnx.ModelProto, known: Collection[str]) -> Iterator[Trace]:
    """Everything of a model that is neither neutral nor the standard's; ``known`` are names to be told elsewhere."""
    functions = {walk.function_key(function) for function in model.functions}
    yield from _Walk(opsets_of(model), functions, frozenset(known)).message(model, None)


class _Walk:
    def __init__(self, opsets: dict[str, int], functions: set[Any], known: frozenset[str]) -> None:
        self._opsets = opsets
        self._functions = functions
        self._known = known

    def message(self, message: Any, owner: _Owner | None) -> Iterator[Trace]:
        """Traces in a message and in all inside it."""
        name = _name_of(message.DESCRIPTOR)
        yield from _unknown_fields(message, name)
        if name == "NodeProto":
            owner = _Owner(_label(message), schema_of(message, self._opsets))
            yield from self._operator(message, owner)
        elif name == "AttributeProto":
            yield from self._attribute(message, owner)
        elif name == "TensorProto":
            yield from _values(message)
        elif name == "TensorAnnotation":
            yield from self._annotation(message)
            return
        for field, value in message.ListFields():
            place = f"{name}.{field.name}"
            if field.message_type is None:
                yield from self._leaf(place, value)
            elif place not in _NOT_WALKED:
                for part in (value,) if hasattr(value, "ListFields") else value:
                    yield from self.message(part, owner)

    def _leaf(self, place: str, value: Any) -> Iterator[Trace]:
        if place in _SAYS_HOW_IT_IS_BUILT or place in _TOLD_WITH_THEIR_MESSAGE:
            return
        if place in _NAMES:
            names = (value,) if isinstance(value, str) else value
            yield from (("names", name) for name in names if name and name not in self._known)
        elif place in _DOMAINS:
            if value not in PUBLIC_DOMAINS | self._known:
                yield "domains", value
        else:
            yield "fields", f"{place} {_shown(value)}"

    def _operator(self, node: onnx.NodeProto, owner: _Owner) -> Iterator[Trace]:
        if walk.operator(node) in self._functions:
            if node.op_type not in self._known:
                yield "names", node.op_type
        elif owner.schema is None:
            yield "custom operators", f"{node.domain}.{node.op_type}" if node.domain else node.op_type

    def _attribute(self, attribute: onnx.AttributeProto, owner: _Owner | None) -> Iterator[Trace]:
        schema = owner.schema if owner is not None else None
        declared = schema.attributes.get(attribute.name) if schema is not None else None
        label = f"{owner.label}.{attribute.name}" if owner is not None else attribute.name
        if declared is None and attribute.name not in self._known:
            yield "attributes", attribute.name
        default = declared.default_value if declared is not None else None
        if default is not None and default.type and default == attribute:
            return
        yield from _numbers_and_texts(attribute, label, declared is not None)

    def _annotation(self, note: onnx.TensorAnnotation) -> Iterator[Trace]:
        """Quantization parameters of a tensor: the keys are the standard's, the values are names of tensors."""
        yield from self._leaf("TensorAnnotation.tensor_name", note.tensor_name)
        for entry in note.quant_parameter_tensor_names:
            yield from _unknown_fields(entry, "StringStringEntryProto")
            yield from self._leaf("ValueInfoProto.name", entry.value)
            if entry.key not in QUANTIZATION_KEYS:
                yield "fields", f"StringStringEntryProto.key {entry.key}"


_TOLD_WITH_THEIR_MESSAGE = frozenset(
    {
        *("NodeProto.op_type", "NodeProto.domain", "AttributeProto.name"),
        *(f"AttributeProto.{field}" for field in ("f", "i", "s", "floats", "ints", "strings")),
        *(f"TensorProto.{kind}_data" for kind in ("raw", "float", "int32", "int64", "double", "uint64", "string")),
    }
)


def _numbers_and_texts(attribute: onnx.AttributeProto, label: str, is_standard: bool) -> Iterator[Trace]:
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


def _values(tensor: onnx.TensorProto) -> Iterator[Trace]:
    if is_filled(tensor):
        return
    if tensor.data_type == STRING:
        yield "texts", tensor.name or UNNAMED
    else:
        yield "values" if tensor.data_type in FLOATS else "integers", tensor.name or UNNAMED


def _unknown_fields(message: Any, name: str) -> Iterator[Trace]:
    from google.protobuf.unknown_fields import UnknownFieldSet

    unknown = UnknownFieldSet(message)
    for field in (unknown[place] for place in range(len(unknown))):
        yield "fields", f"{name}, field {field.field_number}, which this version of onnx does not know"


def _name_of(descriptor: Any) -> str:
    return re.sub(r"^onnx\.", "", descriptor.full_name)


def _label(node: onnx.NodeProto) -> str:
    return node.name or node.op_type


def _shown(value: Any) -> str:
    """A value in few words, on one line."""
    text = value if isinstance(value, str) else repr(list(value) if hasattr(value, "__len__") else value)
    return text if len(text) <= 40 else f"{text[:40]}..."
