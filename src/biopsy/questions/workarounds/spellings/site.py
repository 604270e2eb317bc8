"""The node to write in another spelling: patterns to find it, facts about it and its graph, and the nodes to write."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Any, NoReturn, TypeAlias

from biopsy.model import parts, walk
from biopsy.model.external import is_external
from biopsy.model.tensor_type import Shape, TensorType, elements
from biopsy.reduction.passes.common import inferred, names_in, opsets_of
from biopsy.slow_imports import np, onnx

FLOAT, FLOAT16, DOUBLE, BFLOAT16, INT64, INT32, BOOL = 1, 10, 11, 16, 7, 6, 9
FLOATS = frozenset({FLOAT, FLOAT16, DOUBLE, BFLOAT16})

_NEGATIVE_AXES_SINCE = 11

_OPERATOR_OF = {
    ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div", ast.Lt: "Less", ast.USub: "Neg",
}  # fmt: skip
_COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min"})

_TOLERANCE = 1e-5
"""The relative difference allowed between a constant and the fraction in a pattern."""

_PLACES = ""
"""The key, among the names of a match, of the places of its nodes."""

Names: TypeAlias = "dict[str, Any]"
"""The tensors and attribute values that the names in an expression stand for."""


class Unmatched(Exception):
    """A spelling does not hold here, or it is not known whether it does."""


def unmatched() -> NoReturn:
    """Raise Unmatched, as an expression."""
    raise Unmatched


def operation_in(part: ast.expr) -> tuple[str, list[ast.expr], Names] | None:
    """The operator, operands and attributes of a part of an expression; None if it is not an operation."""
    match part:
        case ast.Call(ast.Name(operator), operands, keywords):
            return operator, operands, {str(each.arg): each.value for each in keywords}
        case ast.BinOp(left, kind, right) | ast.Compare(left, [kind], [right]) if type(kind) in _OPERATOR_OF:
            return _OPERATOR_OF[type(kind)], [left, right], {}
        case ast.UnaryOp(ast.USub(), operand) if not isinstance(operand, ast.Constant):
            return "Neg", [operand], {}
    return None


class NodePattern:
    """Nodes to find, such as "p = Erf(x) + 1.0; x * 0.5 * p | x * (0.5 * p)".

    ";" separates steps, which name parts of later ones. Any other name stands for a tensor, or for the value of an
    attribute with its default: ``axis=1``. A fraction matches a constant close to it, an integer one that is equal.
    "|" separates alternatives. Operators are those of ``domain`` and of ONNX itself.
    """

    def __init__(self, text: str, domain: str = "") -> None:
        *steps, last = ast.parse(" ".join(text.split())).body
        assert isinstance(last, ast.Expr)
        self._last, self._domain = last.value, domain
        self._steps = {ast.unparse(each.targets[0]): each.value for each in steps if isinstance(each, ast.Assign)}

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """The operators of the last node, which is the one that is replaced."""
        operations = map(operation_in, self._alternatives(self._last))
        return tuple(dict.fromkeys(operation[0] for operation in operations if operation))

    def _alternatives(self, part: ast.expr) -> Iterator[ast.expr]:
        match part:
            case ast.BinOp(left, ast.BitOr(), right):
                yield from self._alternatives(left)
                yield from self._alternatives(right)
            case ast.Name(name) if name in self._steps:
                yield from self._alternatives(self._steps[name])
            case _:
                yield part

    def matches(self, site: Site) -> Iterator[tuple[Names, set[int]]]:
        """All matches at a site: what the names stand for, and the places of the nodes."""
        for names in self._matches(site.scope, self._last, site.node.output[0], {}):
            places = names.pop(_PLACES)
            yield names, places

    def _matches(self, scope: Scope, part: ast.expr, tensor: str, names: Names) -> Iterator[Names]:
        """``names`` with those of a part, for each way in which it matches a tensor."""
        match part:
            case ast.BinOp(left, ast.BitOr(), right):
                yield from self._matches(scope, left, tensor, names)
                yield from self._matches(scope, right, tensor, names)
            case ast.Name(name) if name in self._steps and name not in names:
                for known in self._matches(scope, self._steps[name], tensor, names):
                    yield {**known, name: tensor}
            case ast.Name(name):
                if names.get(name, tensor) == tensor:
                    yield {**names, name: tensor}
            case ast.Constant(int() | float() as value):
                constant = scope.value_of(tensor) if tensor else None
                tolerance = _TOLERANCE if isinstance(value, float) else 0
                if (
                    constant is not None
                    and constant.size == 1
                    and math.isclose(constant.item(), value, rel_tol=tolerance)
                ):
                    yield names
            case _:
                yield from self._at_node(scope, part, tensor, names)

    def _at_node(self, scope: Scope, part: ast.expr, tensor: str, names: Names) -> Iterator[Names]:
        operator, operands, attributes = operation_in(part) or unmatched()
        if tensor not in scope.producers:
            return
        site = Site(scope, scope.producers[tensor])
        domain, name, _ = walk.operator(site.node)
        is_commutative = operator in _COMMUTATIVE
        if name != operator or domain not in ("", self._domain) or site.node.output[0] != tensor:
            return
        if is_commutative and len(site.node.input) != len(operands):
            return
        inputs = site.inputs(len(operands))
        for order in permutations(inputs) if is_commutative else [inputs]:
            matches = [names]
            for operand, read in zip(operands, order, strict=True):
                matches = [match for known in matches for match in self._matches(scope, operand, read, known)]
            for known in matches:
                values = self.attributes_at(site, attributes, known)
                if values is not None:
                    yield {**known, **values, _PLACES: {*known.get(_PLACES, ()), site.place}}

    def attributes_at(self, site: Site, attributes: dict[str, ast.expr], known: Names) -> Names | None:
        """The values of attributes at a node, by name; None if a name stands for another value already."""
        values = {name: site.attribute_or_axes(name, ast.literal_eval(default)) for name, default in attributes.items()}
        return values if all(known.get(name, value) == value for name, value in values.items()) else None


class Site:
    """The node at a place of a graph.

    Its methods raise Unmatched if the answer is not known, so drafts need not handle that. A site that ``producer``
    returns writes to the site of the reader.
    """

    def __init__(self, scope: Scope, place: int, reader: Site | None = None) -> None:
        self.scope = scope
        self.place = place
        self.node = scope.graph.node[place]
        self.opset = scope.opsets.get("", 1)
        self.absorbed: set[int] = reader.absorbed if reader else set()
        self.absorbed.add(place)
        self.written: list[onnx.NodeProto] = reader.written if reader else []
        self._names: set[str] = reader._names if reader else set()
        self._scalars: dict[tuple[float, int], str] = {}

    def require(self, holds: bool) -> None:
        """Raise Unmatched unless ``holds``."""
        if not holds:
            raise Unmatched

    def inputs(self, count: int) -> list[str]:
        """The first ``count`` inputs, "" for those that are not given."""
        return [*self.node.input, *[""] * count][:count]

    def attribute(self, name: str, default: Any) -> Any:
        """The value of an attribute, texts as str; ``default``, rounded to float32 like attributes, if not given."""
        for each in self.node.attribute:
            if each.name == name:
                self.require(not each.ref_attr_name)
                value = onnx.helper.get_attribute_value(each)
                return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return float(np.float32(default)) if isinstance(default, float) else default

    def attribute_or_axes(self, name: str, default: Any) -> Any:
        """The value of an attribute; for "axes", those of the node, which may be an input."""
        return self.axes(self.rank(self.node.input[0])) if name == "axes" else self.attribute(name, default)

    def kind(self, name: str) -> TensorType:
        """The type of a tensor."""
        return self.scope.type_of(name) or unmatched()

    def elem(self, name: str) -> int:
        """The element type of a tensor."""
        return self.kind(name).elem

    def is_float(self, name: str) -> bool:
        """Whether a tensor has one of the floating-point types."""
        return self.elem(name) in FLOATS

    def shape(self, name: str) -> Shape:
        """The shape of a tensor of known rank."""
        shape = self.kind(name).shape
        return shape if shape is not None else unmatched()

    def rank(self, name: str) -> int:
        """The rank of a tensor."""
        return len(self.shape(name))

    def dims(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor of known sizes."""
        return tuple(dim if isinstance(dim, int) else unmatched() for dim in self.shape(name))

    def value(self, name: str) -> np.ndarray[Any, Any]:
        """The value of a small constant."""
        value = self.scope.value_of(name) if name else None
        return value if value is not None else unmatched()

    def numbers(self, name: str) -> list[int]:
        """The values of an integer constant."""
        return [int(each) for each in self.value(name).reshape(-1)]

    def single(self, name: str) -> float:
        """The value of a constant of one element."""
        value = self.value(name)
        self.require(value.size == 1)
        return float(value.reshape(-1)[0])

    def producer(self, name: str) -> Site:
        """The node of ONNX that computes a tensor, as its first output; it is absorbed."""
        self.require(name in self.scope.producers)
        producer = Site(self.scope, self.scope.producers[name], self)
        self.require(walk.operator(producer.node)[0] == "" and producer.node.output[0] == name)
        return producer

    def axes(self, rank: int) -> list[int] | None:
        """The axes of the node, an attribute or the second input, sorted, none negative; None if not given."""
        schema = walk.schema_of(self.node.op_type, self.opset, "") or unmatched()
        axes: Sequence[int] | None = self.attribute("axes", None)
        if "axes" not in schema.attributes:
            axes = self.numbers(self.node.input[1]) if self.inputs(2)[1] else None
        if axes is None:
            return None
        least = -rank if self.opset >= _NEGATIVE_AXES_SINCE else 0
        self.require(all(least <= axis < rank for axis in axes))
        return sorted(axis % rank for axis in axes)

    def is_only_output(self) -> bool:
        """Whether the node has only its first output."""
        return not any(self.node.output[1:])

    def may_give(self, result: str) -> bool:
        """Whether the node can go: what reads its only output can read ``result``, or ``result`` can have its name."""
        output, readers = self.node.output[0], self.scope.readers
        is_inner = result in self.scope.producers and OUTSIDE not in readers.get(result, ())
        return self.is_only_output() and (OUTSIDE not in readers.get(output, ()) or is_inner)

    def write(self, text: str, like: str | int = "", **names: Any) -> str:
        """Write the nodes of an expression, such as "x * Tanh(Softplus(x))"; returns the result.

        A name stands for a tensor, or for the value of an attribute: ``axes=axes``. A number as an operand becomes a
        constant of the element type ``like`` or that of the tensor ``like``, by default the first of ``names``. A first
        factor that is a name for 1 is omitted. In "y + bias if bias else y", ``bias`` decides which part is written.
        ";" separates steps; all but the last are ``name = expression``.
        """
        return self.results(text, like, **names)[0]

    def results(self, text: str, like: str | int = "", **names: Any) -> list[str]:
        """Write the nodes of an expression whose last step has several results, separated by commas."""
        known, results = names | {"": like or next(iter(names.values()))}, list[str]()
        for step in ast.parse(text).body:
            assert isinstance(step, ast.Assign | ast.Expr)
            parts = step.value.elts if isinstance(step.value, ast.Tuple) else [step.value]
            results = [self._evaluate(each, known) for each in parts]
            if isinstance(step, ast.Assign):
                known[ast.unparse(step.targets[0])] = results[0]
        return results

    def _evaluate(self, part: ast.expr, names: Names) -> Any:
        """Write a part of an expression and return its tensor; the value of a part that is not a tensor."""
        match part:
            case ast.Name(name):
                return names[name]
            case ast.IfExp(ast.Name(condition), body, other):
                return self._evaluate(body if names[condition] else other, names)
            case ast.BinOp(ast.Name(factor), ast.Mult(), right) if names[factor] == 1:
                return self._evaluate(right, names)
        operation = operation_in(part)
        if operation is None:
            return ast.literal_eval(part)
        operator, operands, attributes = operation
        values = [self._evaluate(each, names) for each in operands]
        tensors = [self.scalar(each, names[""]) if isinstance(each, int | float) else each for each in values]
        return self.new(operator, *tensors, **{name: self._evaluate(each, names) for name, each in attributes.items()})

    def new(self, operator: str, *inputs: str | Sequence[int], **values: Any) -> str:
        """Write a node and return its first output; an input may be a list of integers.

        ``values`` are those of attributes; None is left out, and an attribute that is an input at the model's opset
        becomes a list of int64. A Transpose that keeps the order, and a Squeeze or Unsqueeze of no axes, are not
        written. Raises Unmatched for an operator that the opset does not have.
        """
        if (operator == "Transpose" and list(values["perm"]) == sorted(values["perm"])) or (
            operator in {"Squeeze", "Unsqueeze"} and not values["axes"]
        ):
            return str(inputs[0])
        schema = walk.schema_of(operator, self.opset, "") or unmatched()
        tensors = [each if isinstance(each, str) else self.constant(list(each), INT64) for each in inputs]
        attributes: Names = {}
        for name, value in values.items():
            if value is not None and name not in schema.attributes:
                position = [each.name for each in schema.inputs].index(name)
                tensors += [""] * (position + 1 - len(tensors))
                tensors[position] = self.constant(list(value), INT64)
            elif value is not None:
                attributes[name] = list(value) if isinstance(value, range) else value
        while tensors and not tensors[-1]:
            tensors.pop()
        name = self.free(operator)
        self.written.append(onnx.helper.make_node(operator, tensors, [name], name=name, **attributes))
        return name

    def copy(self, inputs: Sequence[str], **changed: Any) -> str:
        """Write the node again with other inputs and ``changed`` attributes (None: without it); its first output."""
        return self.copies(inputs, **changed)[0]

    def copies(self, inputs: Sequence[str], **changed: Any) -> list[str]:
        """Like ``copy``, but all outputs are returned, "" for those that the node does not have."""
        names = [self.free(self.node.op_type) if name else "" for name in self.node.output]
        own = self.node.name if all(node.name != self.node.name for node in self.written) else ""
        node_name = own or next(name for name in names if name)
        copy = onnx.helper.make_node(self.node.op_type, inputs, names, name=node_name, domain=self.node.domain or None)
        copy.attribute.extend(each for each in self.node.attribute if each.name not in changed)
        copy.attribute.extend(onnx.helper.make_attribute(k, v) for k, v in changed.items() if v is not None)
        self.written.append(copy)
        return names

    def constant(self, values: Any, elem: int) -> str:
        """Write a constant of an element type."""
        name = self.free("Constant")
        tensor = onnx.numpy_helper.from_array(
            np.asarray(values, dtype=onnx.helper.tensor_dtype_to_np_dtype(elem)), name
        )
        self.written.append(onnx.helper.make_node("Constant", [], [name], name=name, value=tensor))
        return name

    def scalar(self, value: Any, like: str | int) -> str:
        """Write a constant of rank 0, only once, of the element type ``like`` or that of the tensor ``like``."""
        elem = self.elem(like) if isinstance(like, str) else like
        if (value, elem) not in self._scalars:
            self._scalars[value, elem] = self.constant(value, elem)
        return self._scalars[value, elem]

    def sliced(self, x: str, start: int, end: int, axis: int) -> str:
        """Write a Slice along one axis."""
        return self.new("Slice", x, starts=[start], ends=[end], axes=[axis])

    def turned(self, x: str, rank: int) -> str:
        """Write a Transpose of the last two axes."""
        self.require(rank >= 2)
        return self.new("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])

    def free(self, operator: str) -> str:
        """A free name for the result of an operator."""
        stem = next(name for name in self.node.output if name)
        name = walk.free_name(f"{stem}/{operator}", self.scope.taken)
        self._names.add(name)
        return name

    def free_names(self) -> None:
        """Free the names of the written nodes for others."""
        self.scope.taken.difference_update(self._names)

    def reset(self) -> None:
        """Discard the written nodes."""
        self.free_names()
        self.written.clear()
        self._scalars.clear()


Draft: TypeAlias = Callable[..., Any]
"""A function that takes a site and, by name, what the pattern of a spelling has matched.

If the spelling has a text, it returns whether the spelling holds, or a dict of further names for the text. Otherwise it
writes the nodes, and returns the tensors that replace the outputs of the node: one, or a list of them. It raises
``Unmatched`` if the spelling does not hold, or that is not known.
"""


class Drafts(dict[str, Draft]):
    """The drafts of a module, by the names of their spellings."""

    def of(self, *names: str) -> Callable[[Draft], Draft]:
        """Make the decorated function the draft of these spellings."""

        def keep(draft: Draft) -> Draft:
            self.update(dict.fromkeys(names, draft))
            return draft

        return keep


_MOST_ELEMENTS = 1024
"""A constant with more elements is a weight, whose value is not looked at."""

OUTSIDE = -1
"""Stands, among the readers of a tensor, for the users of the graph's outputs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scope:
    """A graph of a model: the main one, or the body of a node, with the graph around it (``outer``).

    ``typed`` is the same graph with inferred types; ``taken`` are all names in the model, including those of new
    tensors and nodes.
    """

    model: onnx.ModelProto
    graph: onnx.GraphProto
    typed: onnx.GraphProto
    taken: set[str]
    outer: Scope | None = None

    @cached_property
    def opsets(self) -> dict[str, int]:
        """Domain -> version of the operator set that the model imports; "" is ONNX's own."""
        return opsets_of(self.model) if self.outer is None else self.outer.opsets

    @cached_property
    def producers(self) -> dict[str, int]:
        """Tensor -> the place of the node that computes it."""
        return {name: place for place, node in enumerate(self.graph.node) for name in node.output if name}

    @cached_property
    def readers(self) -> dict[str, set[int]]:
        """Tensor -> the places of the nodes that read it, bodies included, and OUTSIDE."""
        readers: dict[str, set[int]] = {info.name: {OUTSIDE} for info in self.graph.output}
        for place, node in enumerate(self.graph.node):
            for name in walk.reads(node):
                readers.setdefault(name, set()).add(place)
        return readers

    @cached_property
    def own_types(self) -> dict[str, TensorType]:
        """The types of this graph's tensors, as far as they are known."""
        types: dict[str, TensorType] = {}
        for graph in (self.typed, self.graph):
            for info in (*graph.value_info, *graph.output, *graph.input):
                kind = parts.tensor_type(info.SerializeToString())
                if kind is not None and (info.name not in types or graph is self.typed):
                    types[info.name] = kind
        for weight in self.graph.initializer:
            types[weight.name] = TensorType(weight.data_type, tuple(weight.dims))
        return types

    @cached_property
    def own_constants(self) -> dict[str, onnx.TensorProto]:
        """The values of small initializers and Constant nodes, except for initializers that a caller may replace."""
        replaceable = {info.name for info in self.graph.input} if self.model.ir_version >= 4 else frozenset[str]()
        constants = {weight.name: weight for weight in self.graph.initializer if weight.name not in replaceable}
        for node in self.graph.node:
            if node.op_type == "Constant" and walk.operator(node)[0] == "" and node.output:
                constants.update((node.output[0], each.t) for each in node.attribute if each.name == "value")
        return {
            name: each
            for name, each in constants.items()
            if (not is_external(each) and elements(each.dims) <= _MOST_ELEMENTS)
        }

    def type_of(self, name: str) -> TensorType | None:
        """The type of a tensor of this graph or one around it; None if it is not known."""
        own = self.own_types.get(name)
        return self.outer.type_of(name) if own is None and self.outer is not None else own

    def value_of(self, name: str) -> np.ndarray[Any, Any] | None:
        """The value of a small constant; None for any other tensor."""
        weight = self.own_constants.get(name)
        if weight is None:
            defined = name in self.own_types or name in self.producers
            return self.outer.value_of(name) if self.outer is not None and not defined else None
        return onnx.numpy_helper.to_array(weight)

    def bodies_of(self, place: int) -> Iterator[tuple[str, Scope]]:
        """The bodies of a node, each with its attribute and number: ``then_branch[0]``."""
        attributes = zip(self.graph.node[place].attribute, self.typed.node[place].attribute, strict=True)
        for attribute, twin in attributes:
            is_graph = attribute.HasField("g")
            graphs = [(attribute.g, twin.g)] if is_graph else zip(attribute.graphs, twin.graphs, strict=True)
            for number, (graph, typed) in enumerate(graphs):
                body = Scope(model=self.model, graph=graph, typed=typed, taken=self.taken, outer=self)
                yield f"{attribute.name}[{number}]", body


def scope_of(model: onnx.ModelProto) -> Scope:
    """The main graph of a model, with the types that can be inferred without its weights."""
    return Scope(model=model, graph=model.graph, typed=inferred(model).graph, taken=names_in(model))


def scope_at(model: onnx.ModelProto, path: Sequence[tuple[str, str]]) -> Scope | None:
    """The graph at a path of outputs of nodes and attributes with numbers; None if it is not there any more."""
    scope: Scope | None = scope_of(model)
    for output, attribute in path:
        place = scope.producers.get(output) if scope is not None else None
        if scope is None or place is None:
            return None
        scope = dict(scope.bodies_of(place)).get(attribute)
    return scope
