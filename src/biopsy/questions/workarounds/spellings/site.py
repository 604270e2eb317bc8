"""The node at which another spelling may be found: the patterns that it is held against, what can be asked about it and
the graph around it, and what is written in its place.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from biopsy.model import parts, walk
from biopsy.model.external import is_external
from biopsy.model.tensor_type import Shape, TensorType, elements
from biopsy.reduction.passes.common import inferred, names_in, opsets_of

if TYPE_CHECKING:
    import numpy as np
    import onnx

FLOAT, FLOAT16, DOUBLE, BFLOAT16, INT64, INT32, BOOL = 1, 10, 11, 16, 7, 6, 9
FLOATS = frozenset({FLOAT, FLOAT16, DOUBLE, BFLOAT16})

_NEGATIVE_AXES_SINCE = 11

_OPERATOR_OF = {
    ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div", ast.Lt: "Less", ast.USub: "Neg",
}  # fmt: skip
_COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min"})

_CLOSE = 1e-5
"""How near a constant must be, relatively, to the fraction that it stands for."""

_PLACES = ""
"""Among the names of a match: the places of its nodes."""

Names: TypeAlias = "dict[str, Any]"
"""The tensors, and values of attributes, that the names in an expression stand for."""


class Unmatched(Exception):
    """A spelling does not hold here, or it cannot be told whether it does."""


def unmatched() -> NoReturn:
    """Leave a draft: the spelling is not for this node."""
    raise Unmatched


# Expressions: "x * Tanh(Softplus(x))" are nodes to look for, or to write.


def operation_in(part: ast.expr) -> tuple[str, list[ast.expr], Names] | None:
    """The operator, the operands and the attributes that a part of an expression says; None if it says none."""
    match part:
        case ast.Call(ast.Name(operator), operands, keywords):
            return operator, operands, {str(each.arg): each.value for each in keywords}
        case ast.BinOp(left, kind, right) | ast.Compare(left, [kind], [right]) if type(kind) in _OPERATOR_OF:
            return _OPERATOR_OF[type(kind)], [left, right], {}
        case ast.UnaryOp(ast.USub(), operand) if not isinstance(operand, ast.Constant):
            return "Neg", [operand], {}
    return None


class NodePattern:
    """Nodes that are looked for, such as "p = Erf(x) + 1.0; x * 0.5 * p | x * (0.5 * p)".

    ";" parts steps, which name what stands in the later ones. Any other name stands for one tensor, or for the value of
    an attribute, whose default is told: ``axis=1``. A fraction is a constant close to it, a whole number one that is
    equal. "|" parts ways to write the same. Only the operators of ``domain`` and of ONNX itself are meant.
    """

    def __init__(self, text: str, domain: str = "") -> None:
        *steps, last = ast.parse(" ".join(text.split())).body
        assert isinstance(last, ast.Expr)
        self._last, self._domain = last.value, domain
        self._steps = {ast.unparse(each.targets[0]): each.value for each in steps if isinstance(each, ast.Assign)}

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """The operators of the last node, which is the one that is replaced."""
        return tuple(
            dict.fromkeys(operation[0] for operation in map(operation_in, self._ways(self._last)) if operation)
        )

    def _ways(self, part: ast.expr) -> Iterator[ast.expr]:
        match part:
            case ast.BinOp(left, ast.BitOr(), right):
                yield from self._ways(left)
                yield from self._ways(right)
            case ast.Name(name) if name in self._steps:
                yield from self._ways(self._steps[name])
            case _:
                yield part

    def matches(self, site: Site) -> Iterator[tuple[Names, set[int]]]:
        """What its names stand for, for each way in which it is found at a site; and the places of its nodes."""
        for names in self._found(site.scope, self._last, site.node.output[0], {}):
            places = names.pop(_PLACES)
            yield names, places

    def _found(self, scope: Scope, part: ast.expr, tensor: str, names: Names) -> Iterator[Names]:
        """``names`` with those of a part, for each way in which a tensor is what it says."""
        match part:
            case ast.BinOp(left, ast.BitOr(), right):
                yield from self._found(scope, left, tensor, names)
                yield from self._found(scope, right, tensor, names)
            case ast.Name(name) if name in self._steps and name not in names:
                for known in self._found(scope, self._steps[name], tensor, names):
                    yield {**known, name: tensor}
            case ast.Name(name):
                if names.get(name, tensor) == tensor:
                    yield {**names, name: tensor}
            case ast.Constant(int() | float() as value):
                constant = scope.value_of(tensor) if tensor else None
                close = _CLOSE if isinstance(value, float) else 0
                if constant is not None and constant.size == 1 and math.isclose(constant.item(), value, rel_tol=close):
                    yield names
            case _:
                yield from self._at_node(scope, part, tensor, names)

    def _at_node(self, scope: Scope, part: ast.expr, tensor: str, names: Names) -> Iterator[Names]:
        operator, operands, attributes = operation_in(part) or unmatched()
        if tensor not in scope.producers:
            return
        site = Site(scope, scope.producers[tensor])
        domain, name, _ = walk.operator(site.node)
        exchanged = operator in _COMMUTATIVE
        if name != operator or domain not in ("", self._domain) or site.node.output[0] != tensor:
            return
        if exchanged and len(site.node.input) != len(operands):
            return
        inputs = site.inputs(len(operands))
        for order in permutations(inputs) if exchanged else [inputs]:
            ways = [names]
            for operand, read in zip(operands, order, strict=True):
                ways = [way for known in ways for way in self._found(scope, operand, read, known)]
            for known in ways:
                given = self.attributes_at(site, attributes, known)
                if given is not None:
                    yield {**known, **given, _PLACES: {*known.get(_PLACES, ()), site.place}}

    def attributes_at(self, site: Site, attributes: dict[str, ast.expr], known: Names) -> Names | None:
        """The values of attributes at a node, by name; None where a name stands for another value already."""
        given = {name: site.told(name, ast.literal_eval(default)) for name, default in attributes.items()}
        return given if all(known.get(name, value) == value for name, value in given.items()) else None


class Site:
    """The node at a place of a graph.

    What it is asked raises Unmatched where the answer is not known, so that a draft reads as if all were. A site that
    ``maker`` returns writes to the site that it was asked of.
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

    # What is there

    def require(self, holds: bool) -> None:
        """Raise Unmatched unless ``holds``."""
        if not holds:
            raise Unmatched

    def inputs(self, count: int) -> list[str]:
        """The first inputs, "" for those that are not given."""
        return [*self.node.input, *[""] * count][:count]

    def attribute(self, name: str, default: Any) -> Any:
        """The value of an attribute, texts as str; ``default`` if it is not given, rounded to float32 as ONNX does."""
        import numpy as np
        from onnx import helper

        for each in self.node.attribute:
            if each.name == name:
                self.require(not each.ref_attr_name)
                value = helper.get_attribute_value(each)
                return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return float(np.float32(default)) if isinstance(default, float) else default

    def told(self, name: str, default: Any) -> Any:
        """As ``attribute``; "axes" are those of the node, whichever way it says them."""
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
        """The shape of a tensor all of whose sizes are known."""
        return tuple(dim if isinstance(dim, int) else unmatched() for dim in self.shape(name))

    def value(self, name: str) -> np.ndarray[Any, Any]:
        """The value of a small constant."""
        value = self.scope.value_of(name) if name else None
        return value if value is not None else unmatched()

    def numbers(self, name: str) -> list[int]:
        """The value of a constant that is a list of whole numbers, or one."""
        return [int(each) for each in self.value(name).reshape(-1)]

    def single(self, name: str) -> float:
        """The value of a constant of one element."""
        value = self.value(name)
        self.require(value.size == 1)
        return float(value.reshape(-1)[0])

    def maker(self, name: str) -> Site:
        """The node of ONNX that computes a tensor, as its first output; it may go then."""
        self.require(name in self.scope.producers)
        maker = Site(self.scope, self.scope.producers[name], self)
        self.require(walk.operator(maker.node)[0] == "" and maker.node.output[0] == name)
        return maker

    def axes(self, rank: int) -> list[int] | None:
        """The axes of the node, an attribute or the second input, none negative, in order; None if not given."""
        schema = walk.schema_of(self.node.op_type, self.opset, "") or unmatched()
        given: Sequence[int] | None = self.attribute("axes", None)
        if "axes" not in schema.attributes:
            given = self.numbers(self.node.input[1]) if self.inputs(2)[1] else None
        if given is None:
            return None
        least = -rank if self.opset >= _NEGATIVE_AXES_SINCE else 0
        self.require(all(least <= axis < rank for axis in given))
        return sorted(axis % rank for axis in given)

    def is_only_output(self) -> bool:
        """Whether only the first of the node's outputs is wanted."""
        return not any(self.node.output[1:])

    # What is written

    def write(self, text: str, like: str | int = "", **names: Any) -> str:
        """Write the nodes of an expression, such as "x * Tanh(Softplus(x))"; its result.

        A name stands for a tensor, or for the value of an attribute: ``axes=axes``. A number where a tensor is wanted
        becomes a constant of the element type ``like`` or of the tensor ``like``, by default the first that is named;
        a first factor that is named and is 1 is left out, and so is what is written if something is given that is not:
        "y + bias if bias else y". ";" parts steps; all but the last are ``name = expression``.
        """
        return self.results(text, like, **names)[0]

    def results(self, text: str, like: str | int = "", **names: Any) -> list[str]:
        """As ``write``; the results that commas part in the last step."""
        known, results = names | {"": like or next(iter(names.values()))}, list[str]()
        for step in ast.parse(text).body:
            assert isinstance(step, ast.Assign | ast.Expr)
            parts = step.value.elts if isinstance(step.value, ast.Tuple) else [step.value]
            results = [self._evaluated(each, known) for each in parts]
            if isinstance(step, ast.Assign):
                known[ast.unparse(step.targets[0])] = results[0]
        return results

    def _evaluated(self, part: ast.expr, names: Names) -> Any:
        """A part of an expression: the tensor that was written for it, or its value where it is none."""
        match part:
            case ast.Name(name):
                return names[name]
            case ast.IfExp(ast.Name(wanted), body, other):
                return self._evaluated(body if names[wanted] else other, names)
            case ast.BinOp(ast.Name(factor), ast.Mult(), right) if names[factor] == 1:
                return self._evaluated(right, names)
        operation = operation_in(part)
        if operation is None:
            return ast.literal_eval(part)
        operator, operands, attributes = operation
        values = [self._evaluated(each, names) for each in operands]
        tensors = [self.scalar(each, names[""]) if isinstance(each, int | float) else each for each in values]
        return self.new(operator, *tensors, **{name: self._evaluated(each, names) for name, each in attributes.items()})

    def new(self, operator: str, *inputs: str | Sequence[int], **given: Any) -> str:
        """Write a node and return its first output; an input may be a list of whole numbers.

        Attributes that are None are left out, and those that are inputs at the model's opset are written as lists of
        int64. A Transpose that leaves the order, and a Squeeze or Unsqueeze of no axes, are not written. Raises
        Unmatched for an operator that the opset does not have.
        """
        from onnx import helper

        if (operator == "Transpose" and list(given["perm"]) == sorted(given["perm"])) or (
            operator in {"Squeeze", "Unsqueeze"} and not given["axes"]
        ):
            return str(inputs[0])
        schema = walk.schema_of(operator, self.opset, "") or unmatched()
        tensors = [each if isinstance(each, str) else self.constant(list(each), INT64) for each in inputs]
        attributes: Names = {}
        for name, value in given.items():
            if value is not None and name not in schema.attributes:
                position = [each.name for each in schema.inputs].index(name)
                tensors += [""] * (position + 1 - len(tensors))
                tensors[position] = self.constant(list(value), INT64)
            elif value is not None:
                attributes[name] = list(value) if isinstance(value, range) else value
        while tensors and not tensors[-1]:
            tensors.pop()
        name = self.free(operator)
        self.written.append(helper.make_node(operator, tensors, [name], name=name, **attributes))
        return name

    def copy(self, inputs: Sequence[str], **changed: Any) -> str:
        """Write the node again with other inputs; its first output. Attributes that are None are left out."""
        return self.copies(inputs, **changed)[0]

    def copies(self, inputs: Sequence[str], **changed: Any) -> list[str]:
        """As ``copy``; all outputs are returned, "" for those that the node does not give."""
        from onnx import helper

        names = [self.free(self.node.op_type) if name else "" for name in self.node.output]
        own = self.node.name if all(node.name != self.node.name for node in self.written) else ""
        called = own or next(name for name in names if name)
        copy = helper.make_node(self.node.op_type, inputs, names, name=called, domain=self.node.domain or None)
        copy.attribute.extend(each for each in self.node.attribute if each.name not in changed)
        copy.attribute.extend(helper.make_attribute(k, v) for k, v in changed.items() if v is not None)
        self.written.append(copy)
        return names

    def constant(self, values: Any, elem: int) -> str:
        """Write a constant of an element type."""
        import numpy as np
        from onnx import helper, numpy_helper

        name = self.free("Constant")
        tensor = numpy_helper.from_array(np.asarray(values, dtype=helper.tensor_dtype_to_np_dtype(elem)), name)
        self.written.append(helper.make_node("Constant", [], [name], name=name, value=tensor))
        return name

    def scalar(self, value: Any, like: str | int) -> str:
        """Write a constant of rank 0, once, with an element type or that of a tensor."""
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

    def forget(self) -> None:
        """Give back the names of what was written."""
        self.scope.taken.difference_update(self._names)

    def begin_anew(self) -> None:
        """Drop what was written."""
        self.forget()
        self.written.clear()
        self._scalars.clear()


Draft: TypeAlias = Callable[..., "str | Sequence[str]"]
"""Writes the other spelling of the node at a site, and returns the tensors that stand for its outputs, in order.

It takes the site, and by name what the pattern of the spelling has matched. Raises ``Unmatched`` where the spelling
does not hold, or nobody can tell whether it does.
"""


class Drafts(dict[str, Draft]):
    """The drafts of a module, by the names of their spellings."""

    def of(self, *names: str) -> Callable[[Draft], Draft]:
        """Make the function below the draft of these spellings."""

        def keep(draft: Draft) -> Draft:
            self.update(dict.fromkeys(names, draft))
            return draft

        return keep


# A graph as those see it who change some of its nodes: what makes a tensor, who reads it, its type, its value.

_MOST_ELEMENTS = 1024
"""A larger constant is a weight, and its values are not looked at."""

OUTSIDE = -1
"""Among the readers of a tensor: whoever gets the outputs of its graph."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scope:
    """A graph of a model, its main one or the body of a node, and the graph around it.

    ``told`` is the same graph with the types that can be inferred; ``taken`` are all names of the model, to which those
    of new tensors and nodes are added.
    """

    model: onnx.ModelProto
    graph: onnx.GraphProto
    told: onnx.GraphProto
    taken: set[str]
    outer: Scope | None = None

    @cached_property
    def opsets(self) -> dict[str, int]:
        """Version of each operator set that the model imports; ONNX's own is ""."""
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
        """The types of this graph's tensors that can be told."""
        types: dict[str, TensorType] = {}
        for graph in (self.told, self.graph):
            for info in (*graph.value_info, *graph.output, *graph.input):
                kind = parts.tensor_type(info.SerializeToString())
                if kind is not None and (info.name not in types or graph is self.told):
                    types[info.name] = kind
        for weight in self.graph.initializer:
            types[weight.name] = TensorType(weight.data_type, tuple(weight.dims))
        return types

    @cached_property
    def own_constants(self) -> dict[str, onnx.TensorProto]:
        """Small initializers and Constant nodes; an initializer that a caller may replace is none."""
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
        """The type of a tensor, of this graph or one around it; None if it cannot be told."""
        own = self.own_types.get(name)
        return self.outer.type_of(name) if own is None and self.outer is not None else own

    def value_of(self, name: str) -> np.ndarray[Any, Any] | None:
        """The value of a small constant; None for any other tensor."""
        from onnx import numpy_helper

        weight = self.own_constants.get(name)
        if weight is None:
            defined = name in self.own_types or name in self.producers
            return self.outer.value_of(name) if self.outer is not None and not defined else None
        return numpy_helper.to_array(weight)

    def bodies_of(self, place: int) -> Iterator[tuple[str, Scope]]:
        """The bodies of a node, each with the attribute that holds it."""
        for ours, told in zip(self.graph.node[place].attribute, self.told.node[place].attribute, strict=True):
            graphs = [(ours.g, told.g)] if ours.HasField("g") else zip(ours.graphs, told.graphs, strict=True)
            for number, (graph, twin) in enumerate(graphs):
                named = f"{ours.name}[{number}]"
                yield named, Scope(model=self.model, graph=graph, told=twin, taken=self.taken, outer=self)


def scope_of(model: onnx.ModelProto) -> Scope:
    """The main graph of a model. Types are inferred without its weights; what cannot be told is missing."""
    return Scope(model=model, graph=model.graph, told=inferred(model).graph, taken=names_in(model))


def scope_at(model: onnx.ModelProto, path: Sequence[tuple[str, str]]) -> Scope | None:
    """The graph at a path of (an output of a node, an attribute with its number); None if it is no more there."""
    scope: Scope | None = scope_of(model)
    for output, attribute in path:
        place = scope.producers.get(output) if scope is not None else None
        if scope is None or place is None:
            return None
        scope = dict(scope.bodies_of(place)).get(attribute)
    return scope
