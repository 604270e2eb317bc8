"""From a model to its pattern: operators, what they read, and the kinds of their attributes.

The rules for attributes, in the order in which they are applied (docs/explanation/fingerprints.md explains them):

1. Sizes and values (``kernel_shape``, ``hidden_size``, ``epsilon``, ...) are left out, because weights say the same. Of
   a tensor, the element type is kept.
2. Axes become ``first``, ``last`` or ``inner``, counted in the rank of what is read, also if they are the default.
3. The default of the operator's schema, and strides, pads and dilations that do nothing, are left out.
4. Element types are named; texts and ``perm`` are kept; letters of an equation are renamed in their order.
5. Other strides, pads, output_shape and the like become ``some``.
6. Any other number becomes its kind: 0, 1, ``more``, ``negative``, ``fraction``; a list becomes the kinds in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import TypeAlias
from urllib.parse import quote

from biopsy import errors
from biopsy.model import walk
from biopsy.model.infer import infer_types
from biopsy.model.parts import FunctionKey
from biopsy.model.tensor_type import DTYPE_OF_ELEM, TensorType
from biopsy.model.walk import schema_of
from biopsy.questions.known_failures.fingerprint import ABSENT, BODY, FUNCTION, Operand, Pattern, Tensor, Vertex
from biopsy.slow_imports import onnx

MOST_VERTICES = 2000
"""The most nodes and inputs of a piece, which a person should be able to read."""

_MOST_AXES = 64
_LAST_IR_WITH_INPUTS_FOR_WEIGHTS = 3

_Scope: TypeAlias = dict[str, Operand]


def pattern_of(model: onnx.ModelProto, name: str = "the model") -> Pattern:
    """The pattern of a model, which error messages call ``name``.

    Raises ModelError if it has more than 2,000 nodes and inputs, or reads a tensor that nothing computes.
    """
    size = sum(1 for _ in walk.nodes(model)) + len(model.graph.input)
    if size > MOST_VERTICES:
        raise errors.ModelError(
            f"{name} has {size:,} nodes and inputs: only a piece of at most {MOST_VERTICES:,} can be looked up",
            next_steps=["biopsy debug reduce MODEL -o piece.onnx --check ...    makes a piece of it"],
        )
    reader = _PatternReader(model, name)
    try:
        reader.read_model()
    except RecursionError as error:
        raise errors.ModelError(f"{name} has functions or bodies that are nested too deep to be looked up") from error
    vertices = [draft.finished() for draft in reader.drafts]
    read = {operand.source for vertex in vertices for operand in vertex.operands if isinstance(operand, Tensor)}
    kept = [
        place
        for place, vertex in enumerate(vertices)
        if not vertex.label.startswith("input ") or place in read or vertex.results
    ]
    return Pattern(tuple(vertices)).reordered(kept)


@dataclass(kw_only=True)
class _Draft:
    """A vertex that is not complete yet."""

    label: str
    attributes: list[str] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    bodies: list[tuple[str, int]] = field(default_factory=list)
    home: int | None = None
    results: set[int] = field(default_factory=set)

    def finished(self) -> Vertex:
        while self.operands and self.operands[-1] == ABSENT and self.label != BODY:
            self.operands.pop()
        return Vertex(
            label=self.label,
            attributes=tuple(sorted(self.attributes)),
            operands=tuple(self.operands),
            bodies=tuple(sorted(self.bodies)),
            home=self.home,
            results=tuple(sorted(self.results)),
        )


class _PatternReader:
    """Reads graphs and the bodies inside them; ``drafts`` are the vertices so far."""

    def __init__(self, model: onnx.ModelProto, name: str) -> None:
        self.drafts: list[_Draft] = []
        self._model = model
        self._name = name
        self._functions = {walk.function_key(function): function for function in model.functions}
        self._definitions: dict[FunctionKey, int] = {}
        self._opsets = _opsets(model.opset_import)
        self._tensors = _TensorFacts(model)
        self._keeps_identities = False

    def read_model(self) -> None:
        graph = self._model.graph
        self._keeps_identities = all(node.op_type in ("Identity", "Constant") for node in graph.node)
        scope: _Scope = {}
        # old models declare all weights as inputs too
        is_old = self._model.ir_version <= _LAST_IR_WITH_INPUTS_FOR_WEIGHTS
        weights = {weight.name for weight in graph.initializer} if is_old else set()
        for info in graph.input:
            if info.name not in weights:
                scope[info.name] = Tensor(self._add(_Draft(label=f"input {_type_text(info.type)}")), 0)
        self._read_nodes(graph, scope, None)
        for info in graph.output:
            operand = self._operand(info.name, scope)
            if isinstance(operand, Tensor):
                self.drafts[operand.source].results.add(operand.slot)
            else:
                self._add(_Draft(label=f"output {operand}"))

    def _add(self, draft: _Draft) -> int:
        self.drafts.append(draft)
        return len(self.drafts) - 1

    def _operand(self, name: str, scope: Mapping[str, Operand]) -> Operand:
        if not name:
            return ABSENT
        if name not in scope:
            raise errors.ModelError(f"{self._name} reads a tensor that nothing computes: {name!r:.100}")
        return scope[name]

    def _read_nodes(self, graph: onnx.GraphProto | onnx.FunctionProto, scope: _Scope, home: int | None) -> None:
        """Add the nodes of a graph to the drafts, and their outputs to ``scope``."""
        fed = {each if isinstance(each, str) else each.name for each in graph.input} & scope.keys()
        scope.update({name: constant for name, constant in _constants(graph) if name not in fed})
        added = []
        for node in graph.node:  # all first, because the nodes need not be sorted
            if not self._skips(node):
                place = self._add(_Draft(label=self._label(node), home=home))
                scope.update({name: Tensor(place, slot) for slot, name in enumerate(node.output) if name})
                added.append((node, place))
        copies = {
            node.output[0]: node.input[0]
            for node in graph.node
            if node.op_type == "Identity" and self._skips(node) and node.input and node.output
        }
        for name, source in copies.items():
            visited = {name}
            while source in copies and source not in visited:
                visited.add(source)
                source = copies[source]  # noqa: PLW2901 -- the tensor that was copied first
            scope[name] = self._operand(source, scope)
        for node, place in added:
            self._fill(self.drafts[place], node, scope, place)

    def _skips(self, node: onnx.NodeProto) -> bool:
        if node.domain not in ("", "ai.onnx"):
            return False
        return node.op_type == "Constant" or (node.op_type == "Identity" and not self._keeps_identities)

    def _label(self, node: onnx.NodeProto) -> str:
        if walk.operator(node) in self._functions:
            return FUNCTION
        domain = "" if node.domain == "ai.onnx" else f"{word(node.domain)}::" if node.domain else ""
        return f"{domain}{word(node.op_type)}"

    def _fill(self, draft: _Draft, node: onnx.NodeProto, scope: _Scope, place: int) -> None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        schema = schema_of(node.op_type, self._opsets.get(domain, 1), domain)
        facts = self._tensors if draft.home is None else _NO_FACTS
        names = {attribute.name for attribute in node.attribute}
        if schema is not None:
            names.update(schema.attributes, (formal.name for formal in schema.inputs))
        rank = None if names.isdisjoint(AXES) else facts.rank(node)
        draft.operands = [self._operand(name, scope) for name in node.input]
        key = walk.operator(node)
        if key in self._functions:
            draft.bodies.append(("definition", self._definition(key)))
            texts = (attribute_text(attribute, None, rank) for attribute in node.attribute)
            draft.attributes = [f"argument={text.partition('=')[2]}" for text in texts if text is not None]
        else:
            texts = (attribute_text(attribute, schema, rank) for attribute in node.attribute)
            draft.attributes = [text for text in texts if text is not None]
            draft.attributes += default_axes(node, schema, rank)
            _read_axes(draft, node, schema, facts)
        for attribute in node.attribute:
            inner = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
            for number, body in enumerate(inner):
                name = f"{word(attribute.name)}{number or ''}"
                draft.bodies.append((name, self._body(body, scope, self.drafts[place].home)))

    def _body(self, graph: onnx.GraphProto, outer: Mapping[str, Operand], around: int | None) -> int:
        place = self._add(_Draft(label=BODY, home=around))
        scope = dict(outer)
        for number, info in enumerate(graph.input):
            label = f"argument {number} {_type_text(info.type)}"
            scope[info.name] = Tensor(self._add(_Draft(label=label, home=place)), 0)
        self._read_nodes(graph, scope, place)
        self.drafts[place].operands = [self._operand(info.name, scope) for info in graph.output]
        return place

    def _definition(self, key: FunctionKey) -> int:
        """The vertex of a function's body, which all calls share."""
        if key in self._definitions:
            return self._definitions[key]
        function = self._functions[key]
        place = self._definitions[key] = self._add(_Draft(label=BODY))
        scope: _Scope = {}
        for number, name in enumerate(function.input):
            scope[name] = Tensor(self._add(_Draft(label=f"argument {number} any", home=place)), 0)
        outer_opsets, self._opsets = self._opsets, _opsets(function.opset_import) or self._opsets
        self._read_nodes(function, scope, place)
        self._opsets = outer_opsets
        self.drafts[place].operands = [self._operand(name, scope) for name in function.output]
        return place


class _TensorFacts:
    """Types and ranks of tensors of the main graph, and constant lists of axes; computed when first needed."""

    def __init__(self, model: onnx.ModelProto | None) -> None:
        self._model = model

    @cached_property
    def _types(self) -> dict[str, TensorType]:
        return {} if self._model is None else infer_types(self._model)

    @cached_property
    def axes(self) -> dict[str, list[int]]:
        """The values of small integer constants."""
        return {} if self._model is None else dict(_small_integers(self._model.graph))

    def rank(self, node: onnx.NodeProto, axes: int | None = None) -> int | None:
        """The rank in which a node counts its axes; None if it is not known.

        It is that of its first input; Unsqueeze adds as many dimensions as it has ``axes``.
        """
        kind = self._types.get(node.input[0]) if node.input else None
        if kind is None or kind.shape is None:
            return None
        rank = len(kind.shape)
        if node.op_type != "Unsqueeze":
            return rank
        if axes is None:
            axes = next((len(attribute.ints) for attribute in node.attribute if attribute.name == "axes"), 0)
        return rank + axes


def _read_axes(draft: _Draft, node: onnx.NodeProto, schema: onnx.defs.OpSchema | None, facts: _TensorFacts) -> None:
    """Turn axes from a constant input into the attribute that older opsets have."""
    for number, formal in enumerate(schema.inputs if schema is not None else ()):
        if formal.name in AXES and number < len(node.input) and isinstance(draft.operands[number], str):
            axes = facts.axes.get(node.input[number])
            if axes is not None:
                draft.operands[number] = ABSENT
                draft.attributes.append(f"{formal.name}={axes_text(axes, facts.rank(node, len(axes)))}")


def _small_integers(graph: onnx.GraphProto) -> Iterator[tuple[str, list[int]]]:
    stored = [(weight.name, weight) for weight in graph.initializer]
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.name == "value":
                    stored.append((node.output[0], attribute.t))
                elif attribute.name in ("value_int", "value_ints"):
                    is_list = attribute.name == "value_ints"
                    yield node.output[0], list(attribute.ints) if is_list else [attribute.i]
    for name, tensor in stored:
        if tensor.data_type not in (onnx.TensorProto.INT64, onnx.TensorProto.INT32) or tensor.data_location:
            continue
        if len(tensor.dims) <= 1 and all(0 <= size <= _MOST_AXES for size in tensor.dims):
            try:
                yield name, [int(value) for value in onnx.numpy_helper.to_array(tensor).ravel()]
            except (ValueError, TypeError):  # the tensor has too few bytes
                continue


_NO_FACTS = _TensorFacts(None)
"""Used for nodes in bodies, whose tensors may have the names of others outside."""


def _constants(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[tuple[str, str]]:
    """The names of the constants of a graph, and the words for them."""
    for weight in getattr(graph, "initializer", ()):
        yield weight.name, f"const {element_type(weight.data_type)}"
    for sparse in getattr(graph, "sparse_initializer", ()):
        yield sparse.values.name, f"const sparse-{element_type(sparse.values.data_type)}"
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx") and node.output:
            kinds = [
                element_type(each.t.data_type)
                if each.name == "value"
                else f"sparse-{element_type(each.sparse_tensor.values.data_type)}"
                if each.name == "sparse_value"
                else _OF_CONSTANT.get(each.name, "")
                for each in node.attribute
            ]
            yield node.output[0], f"const {next(filter(None, kinds), 'any')}"


_OF_CONSTANT = {
    "value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64",
    "value_string": "string", "value_strings": "string",
}  # fmt: skip


def _type_text(kind: onnx.TypeProto) -> str:
    """The element type, with the kind of container if it is not a tensor."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        return element_type(kind.tensor_type.elem_type) if kind.tensor_type.elem_type else "any"
    if which == "sparse_tensor_type":
        return f"sparse-{element_type(kind.sparse_tensor_type.elem_type)}"
    if which in ("sequence_type", "optional_type"):
        return f"{which.removesuffix('_type')}-{_type_text(getattr(kind, which).elem_type)}"
    return "map" if which == "map_type" else "any"


def _opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {"" if opset.domain == "ai.onnx" else opset.domain: opset.version for opset in imports}


SIZES = frozenset(
    {
        "kernel_shape", "hidden_size", "split", "num_outputs", "blocksize", "block_size", "k", "num_heads", "shape",
        "q_num_heads", "kv_num_heads", "num_groups", "output_size", "sample_size", "bits", "K", "N",
        "pooled_shape", "output_height", "output_width", "height", "width", "size", "onesided_length", "max_length",
    }
)  # fmt: skip
"""Attributes that are sizes."""

VALUES = frozenset({"epsilon", "seed", "ratio", "scale", "value", "values", "high", "low", "mean", "spatial_scale"})
"""Attributes that are values, like weights."""

AXES = frozenset({"axis", "axes", "batch_axis", "time_axis", "scan_input_axes", "scan_output_axes"})
"""Attributes and constant inputs that are axes."""

_TYPES = frozenset({"to", "dtype", "output_dtype", "stash_type", "detect_type", "softmax_precision", "precision"})
_EXACT = frozenset({"perm"})
_NEUTRAL: Mapping[str, int] = {"strides": 1, "dilations": 1, "pads": 0, "output_padding": 0}
_SOME = frozenset({*_NEUTRAL, "output_shape"})
_LONGEST_TEXT = 60
_SAFE = "_-.:+"


def attribute_text(attribute: onnx.AttributeProto, schema: onnx.defs.OpSchema | None, rank: int | None) -> str | None:
    """``name=value`` of an attribute; None if it is left out or a body.

    ``rank`` is that of the node's first input; None if it is not known.
    """
    name = attribute.name
    if attribute.HasField("g") or attribute.graphs:
        return None
    if name in SIZES or name in VALUES:
        if attribute.type != attribute.TENSOR or attribute.t.data_type == attribute.t.FLOAT:
            return None
        return f"{word(attribute.name)}={element_type(attribute.t.data_type)}"
    if attribute.ref_attr_name:
        return f"{word(name)}=argument"
    if name in AXES:
        return f"{word(name)}={axes_text(attribute.ints or [attribute.i], rank)}"
    neutral = _NEUTRAL.get(name)
    is_neutral = neutral is not None and all(number == neutral for number in attribute.ints)
    default = None if schema is None or name not in schema.attributes else schema.attributes[name].default_value
    fields = ("i", "f", "s", "ints", "floats")
    is_default = default and default.name and all(getattr(default, each) == getattr(attribute, each) for each in fields)
    if is_neutral or is_default:
        return None
    return f"{word(name)}={_value(attribute)}"


def default_axes(node: onnx.NodeProto, schema: onnx.defs.OpSchema | None, rank: int | None) -> Iterable[str]:
    """``name=value`` of axes that are the default, as if the node had them."""
    if schema is None:
        return
    names = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        default = attribute.default_value
        if name in AXES and name not in names and default.name:
            yield f"{word(name)}={axes_text(default.ints or [default.i], rank)}"


def axes_text(axes: Iterable[int], rank: int | None) -> str:
    """Axes as ``first``, ``last`` and ``inner``, joined by ``+``; ``none`` for no axis."""
    kinds = set()
    for axis in axes:
        from_end = axis - (rank or 0) if axis >= 0 else axis
        from_start = axis + (rank or 0) if axis < 0 else axis
        kinds.add("last" if from_end == -1 else "first" if from_start == 0 else "inner")
    return "+".join(sorted(kinds)) or "none"


def word(text: str) -> str:
    """A text of the model as one word without brackets, commas and spaces; a long text becomes its digest."""
    if len(text) > _LONGEST_TEXT:
        return f"text-{sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"
    return quote(text, safe=_SAFE, errors="replace") or "%"


def element_type(elem: int) -> str:
    """The name of an element type."""
    return DTYPE_OF_ELEM.get(elem, f"type{elem}")


def _value(attribute: onnx.AttributeProto) -> str:
    kind = attribute.type
    if attribute.name in _SOME:
        return "some"
    if attribute.name in _EXACT:
        return "-".join(map(str, attribute.ints))
    if attribute.name in _TYPES and kind == attribute.INT:
        return element_type(attribute.i)
    if kind in (attribute.INT, attribute.FLOAT):
        return _kind(attribute.i if kind == attribute.INT else attribute.f)
    if kind in (attribute.INTS, attribute.FLOATS):
        return "+".join(sorted({_kind(number) for number in (*attribute.ints, *attribute.floats)})) or "none"
    if kind == attribute.STRING:
        return _text(attribute.name, attribute.s)
    if kind == attribute.STRINGS:
        return "+".join(_text(attribute.name, text) for text in attribute.strings[:_LONGEST_TEXT]) or "none"
    if kind == attribute.TENSOR:
        return element_type(attribute.t.data_type)
    return f"kind{kind}"


def _kind(number: float) -> str:
    if number in (0, 1):
        return str(int(number))
    if not math.isfinite(number):
        return "not-finite"
    if number < 0:
        return "negative"
    return "more" if number > 1 else "fraction"


def _text(name: str, value: bytes) -> str:
    text = value.decode("utf-8", "replace")
    if name == "equation":  # of Einsum: its letters are names
        letters = dict.fromkeys(re.findall(r"[A-Za-z]", text))
        letter_of = {letter: chr(ord("a") + number % 26) for number, letter in enumerate(letters)}
        text = re.sub(r"[A-Za-z]", lambda letter: letter_of[letter[0]], text.replace(" ", ""))
    return word(text)
