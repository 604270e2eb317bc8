"""The pattern of a known bug: the nodes on which an engine fails, and conditions on their tensors. People write it as
text, and it is searched for in a piece.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any, TypeAlias

from biopsy.model import walk
from biopsy.model.tensor_type import DTYPE_OF_ELEM
from biopsy.questions.known_failures.reading import SIZES, VALUES
from biopsy.questions.workarounds.spellings.site import (
    Names,
    NodePattern,
    Scope,
    Site,
    Unmatched,
    scope_of,
    unmatched,
)
from biopsy.reduction.passes.common import copied
from biopsy.slow_imports import onnx

MOST_STEPS = 20_000
"""The greatest number of nodes that a look-up compares, which takes some tenths of a second."""

_LONGEST = 2_000
_ABSENT = "none"
"""The operand that stands for an input that is left out."""

_IR_WITH_FED_INITIALIZERS = 4
_AXES = frozenset({"axis", "axes"})
_ELEMENT_TYPES = frozenset({"to", "dtype", "output_dtype"})

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda left, right: left in right, ast.NotIn: lambda left, right: left not in right,
}  # fmt: skip


class SearchLimitError(Exception):
    """The search for a pattern would take too many steps."""


@dataclass(frozen=True, kw_only=True)
class Occurrence:
    """A place where a piece has a pattern. ``more`` are the operators of the piece's other nodes.

    ``unknown`` are the conditions that the piece leaves open, such as one on a size that it does not declare.
    """

    more: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class FailurePattern(NodePattern):
    """Nodes as in a ``NodePattern``, such as "Clip(Relu(x), low, high)", and conditions on their tensors.

    An attribute must have the given value, or one of a set: ``ReduceMean(x, keepdims=0)``, ``ConvTranspose(x, w,
    auto_pad={SAME_UPPER, SAME_LOWER})``. A node without the attribute has its default; None matches only such a node.
    Axes can be counted from either end.

    Conditions compare facts about tensors: ``x.type in {int8, int32}``, ``low.is_constant``, ``slope.rank == 1``,
    ``x.shape[-1] != slope.size``, ``k.value > 0``; joined by ``and``, ``or`` and ``not``. ``r.readers`` is the number
    of nodes that read a tensor, plus 1 if it is an output; ``b.is_given`` is false for an input that is left out;
    ``r.siblings`` is the number of other results of the node that computes a tensor, and ``x.opset`` the version of
    ONNX's operators.
    """

    def __init__(self, nodes: str, conditions: Sequence[str] = (), domain: str = "") -> None:
        """Raises ValueError, with a message of one line, for a text that is not a pattern or not a condition."""
        self.text, self.conditions = " ".join(nodes.split()), tuple(conditions)
        for text in (self.text, *self.conditions):
            if len(text) > _LONGEST:
                raise ValueError(f"it has more than {_LONGEST:,} characters: {text:.60}")
        try:
            super().__init__(nodes, domain)
            names = {part.id for part in ast.walk(ast.parse(self.text)) if isinstance(part, ast.Name)}
            self._parsed = {text: ast.parse(text, mode="eval").body for text in self.conditions}
        except (SyntaxError, AssertionError, RecursionError, MemoryError) as error:
            raise ValueError(f"not understood: {self.text:.80}") from error
        if not self.operators:
            raise ValueError(f"no operator is looked for: {self.text:.80}")
        for text, condition in self._parsed.items():
            _require_understood(condition, names, text)
        self._steps_left = MOST_STEPS

    def occurrence_in(self, scope: Scope, *, may_be_lone: bool = False) -> Occurrence | None:
        """The place in a piece that leaves the fewest conditions open; None if the piece does not have the pattern.

        A pattern of a single node must be the whole piece: in a larger one, the node alone proves too little, unless it
        ``may_be_lone``. Raises SearchLimitError after ``MOST_STEPS`` steps.
        """
        self._steps_left = MOST_STEPS
        nodes = {place for place, node in enumerate(scope.graph.node) if not _is_constant_node(node)}
        best: Occurrence | None = None
        for place in sorted(nodes):
            node = scope.graph.node[place]
            if node.op_type not in self.operators or not node.output:
                continue
            site = Site(scope, place)
            for names, places in self._matches_at(site):
                more = tuple(scope.graph.node[other].op_type for other in sorted(nodes - places))
                answers = {text: _answer(condition, site, names) for text, condition in self._parsed.items()}
                if False in answers.values() or (more and len(places) == 1 and not may_be_lone):
                    continue
                unknown = tuple(text for text, answer in answers.items() if answer is None)
                if best is None or len(unknown) < len(best.unknown):
                    best = Occurrence(more=more, unknown=unknown)
        return best

    def _matches_at(self, site: Site) -> Iterator[tuple[Names, set[int]]]:
        """The matches at a node; none where a fact that decides is not known, or the model is damaged."""
        try:
            yield from self.matches(site)
        except (Unmatched, ArithmeticError, LookupError, TypeError, ValueError):
            return

    def _matches(self, scope: Scope, part: ast.expr, tensor: str, names: Names) -> Iterator[Names]:
        if isinstance(part, ast.Name) and part.id == _ABSENT:
            yield from [] if tensor else [names]
        else:
            yield from super()._matches(scope, part, tensor, names)

    def _at_node(self, scope: Scope, part: ast.expr, tensor: str, names: Names) -> Iterator[Names]:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise SearchLimitError
        yield from super()._at_node(scope, part, tensor, names)

    def attributes_at(self, site: Site, attributes: dict[str, ast.expr], known: Names) -> Names | None:
        """An empty dict if the node's attributes have the given values; None if they do not."""
        del known
        for name, wanted in attributes.items():
            allowed = _constant(wanted)
            allowed = allowed if isinstance(allowed, frozenset) else {allowed}
            if _attribute(site, name, allowed) not in allowed:
                return None
        return {}


def _attribute(site: Site, name: str, allowed: set[Any] | frozenset[Any]) -> Any:
    """The value of an attribute as a pattern would write it; axes are counted from the same end as in ``allowed``."""
    schema = walk.schema_of(site.node.op_type, site.opset, site.node.domain)
    given = {attribute.name for attribute in site.node.attribute}
    if name in _AXES:
        axes = _axes_input(site) if name == "axes" else None
        axes = _given_or_default(site, name, schema) if axes is None else axes
        return None if axes is None else _as_counted(site, axes if isinstance(axes, list) else [axes], allowed)
    value = _given_or_default(site, name, schema) if name in given or None not in allowed else None
    if name in _ELEMENT_TYPES:
        return DTYPE_OF_ELEM.get(int(value or 0))
    return tuple(value) if isinstance(value, list) else value


def _as_counted(site: Site, axes: Sequence[int], allowed: set[Any] | frozenset[Any]) -> Any:
    """Axes from the end from which the allowed ones are counted, as far as the rank is known; a single one bare."""
    kind = site.scope.type_of(site.inputs(1)[0])
    rank = 0 if kind is None or kind.shape is None else len(kind.shape)
    wanted = {axis for each in allowed for axis in (each if isinstance(each, tuple) else [each])}
    counted = [next((each for each in (axis, axis - rank, axis + rank) if each in wanted), axis) for axis in axes]
    return counted[0] if len(counted) == 1 else tuple(sorted(counted))


def _given_or_default(site: Site, name: str, schema: onnx.defs.OpSchema | None) -> Any:
    default = None
    if schema is not None and name in schema.attributes and schema.attributes[name].default_value.name:
        default = onnx.helper.get_attribute_value(schema.attributes[name].default_value)
    value = site.attribute(name, default)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _constant(part: ast.expr) -> Any:
    """The value of a constant part of a pattern; a bare word is a string. Raises Unmatched for any other part."""
    match part:
        case ast.Name(word):
            return word
        case ast.Set(elements):
            return frozenset(map(_constant, elements))
        case ast.Tuple(elements):
            return tuple(map(_constant, elements))
        case ast.Constant(value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return -value
    return unmatched()


# Conditions

_Answer: TypeAlias = "bool | None"
"""Whether a condition holds; None if the piece leaves that open."""


def _is_constant(scope: Scope, tensor: str) -> bool:
    """Whether a tensor has one value for all inputs: an initializer that nobody can feed, or a Constant."""
    fed = {info.name for info in scope.graph.input} if scope.model.ir_version >= _IR_WITH_FED_INITIALIZERS else set()
    held = {weight.name for weight in scope.graph.initializer} - fed
    place = scope.producers.get(tensor)
    return tensor in held or (place is not None and _is_constant_node(scope.graph.node[place]))


def _is_constant_node(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and node.domain in ("", "ai.onnx")


_FACTS: Mapping[str, Callable[[Site, str], Any]] = {
    "type": lambda site, tensor: DTYPE_OF_ELEM.get(site.elem(tensor)),
    "rank": lambda site, tensor: site.rank(tensor),
    "size": lambda site, tensor: math.prod(site.dims(tensor)),
    "shape": lambda site, tensor: site.shape(tensor),
    "value": lambda site, tensor: site.value(tensor).item(),
    "is_constant": lambda site, tensor: _is_constant(site.scope, tensor),
    "is_given": lambda _, tensor: bool(tensor),
    "readers": lambda site, tensor: len(site.scope.readers.get(tensor, ())),
    "siblings": lambda site, tensor: sum(map(bool, site.scope.graph.node[site.scope.producers[tensor]].output)) - 1,
    "opset": lambda site, _: site.opset,
}


def _answer(condition: ast.expr, site: Site, names: Names) -> _Answer:
    match condition:
        case ast.BoolOp(kind, parts):
            answers = [_answer(part, site, names) for part in parts]
            decisive = isinstance(kind, ast.Or)
            return decisive if decisive in answers else None if None in answers else not decisive
        case ast.UnaryOp(ast.Not(), part):
            answer = _answer(part, site, names)
            return None if answer is None else not answer
    try:
        if isinstance(condition, ast.Compare):
            left, right = (_value(part, site, names) for part in (condition.left, condition.comparators[0]))
            return _COMPARISONS[type(condition.ops[0])](left, right)
        return bool(_value(condition, site, names))
    except (Unmatched, LookupError, TypeError, ValueError):
        return None


def _value(part: ast.expr, site: Site, names: Names) -> Any:
    """The value of one side of a comparison. Raises Unmatched if the piece leaves it open."""
    match part:
        case ast.Attribute(ast.Name(name), fact):
            return _FACTS[fact](site, names.get(name, ""))
        case ast.Subscript(inner, index):
            value = _value(inner, site, names)[_constant(index)]
            return value if isinstance(value, int) else unmatched()
    return _constant(part)


def _require_understood(condition: ast.expr, names: set[str], text: str) -> None:
    """Raise ValueError unless a condition has the known syntax and is about tensors with these names."""

    def understood(part: ast.expr, *, is_side: bool = False) -> bool:
        match part:
            case ast.BoolOp(_, parts):
                return not is_side and all(map(understood, parts))
            case ast.UnaryOp(ast.Not(), inner):
                return not is_side and understood(inner)
            case ast.Compare(left, [kind], [right]):
                sides = (left, right)
                return type(kind) in _COMPARISONS and not is_side and all(understood(s, is_side=True) for s in sides)
            case ast.Attribute(ast.Name(name), fact):
                return name in names and fact in _FACTS
            case ast.Subscript(ast.Attribute(ast.Name(), "shape") as inner, index):
                return understood(inner) and isinstance(_constant(index), int)
        _constant(part)
        return is_side

    try:
        is_understood = understood(condition)
    except Unmatched:
        is_understood = False
    if not is_understood:
        raise ValueError(f"the condition {text!r:.80} is not understood")


# The piece in which patterns are searched for, and a piece written as a pattern.


def scope_of_piece(model: onnx.ModelProto) -> Scope:
    """The main graph of a piece without its Identity nodes, in which patterns are searched for."""
    return scope_of(_without_copies(model))


def _without_copies(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with readers of an Identity reading its input instead; unchanged if it has no other nodes."""
    graph = model.graph
    copies = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Identity" and not node.domain and node.input and node.output
    }
    if not copies or all(node.op_type in ("Identity", "Constant") for node in graph.node):
        return model
    bare = copied(model)
    computed = {name for node in bare.graph.node for name in node.output}

    def source_of(name: str) -> str:
        passed = {name}
        while name in copies and copies[name] not in passed:
            name = copies[name]
            passed.add(name)
        return name

    for info in bare.graph.output:
        if source_of(info.name) in computed:
            info.name = source_of(info.name)
    outputs = {info.name for info in bare.graph.output}
    for node in bare.graph.node:
        node.input[:] = map(source_of, node.input)
    walk.keep(bare.graph.node, lambda node: not (node.output and node.output[0] in copies.keys() - outputs))
    return bare


@dataclass(frozen=True, kw_only=True)
class PatternText:
    """A pattern as it is written in an entry of a catalogue: see ``FailurePattern``."""

    nodes: str
    where: tuple[str, ...] = ()
    domain: str = ""


def pattern_text(scope: Scope) -> PatternText | None:
    """A piece written as a pattern; None if that is impossible, so that the pattern would not find the piece again.

    It is if the piece has bodies, functions, operators of two domains besides ONNX's own, or more than one result, or
    if it is damaged.
    """
    try:
        text = _pattern_text(scope)
        found = text and FailurePattern(text.nodes, text.where, text.domain).occurrence_in(scope)
    except (Unmatched, SearchLimitError, ArithmeticError, LookupError, TypeError, ValueError):
        return None
    return text if found == Occurrence() else None


def _pattern_text(scope: Scope) -> PatternText | None:
    bare = scope.model
    nodes = [node for node in bare.graph.node if not _is_constant_node(node)]
    domains = {node.domain for node in nodes} - {"", "ai.onnx"}
    results = [node for node in nodes if not any(name in other.input for name in node.output for other in nodes)]
    is_plain = all(
        node.op_type.isidentifier()
        and not any(node.output[1:])
        and not any(each.HasField("g") or each.graphs or each.ref_attr_name for each in node.attribute)
        for node in nodes
    )
    if not is_plain or len(results) != 1 or len(domains) > 1 or bare.functions:
        return None
    names: dict[str, str] = {"": _ABSENT}
    steps, conditions = list[str](), list[str]()
    order = walk.sorted_places(bare.graph.node)
    for place in order:
        node = bare.graph.node[place]
        if _is_constant_node(node):
            continue
        axes = _axes_input(Site(scope, place))
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        attributes |= {} if axes is None else {"axes": axes}
        operands = []
        for name in node.input if axes is None else node.input[:1]:
            if name not in names:
                is_constant = _is_constant(scope, name)
                names[name] = f"{'c' if is_constant else 'x'}{len(names)}"
                kind = scope.type_of(name)
                conditions += [] if kind is None else [f"{names[name]}.type == {DTYPE_OF_ELEM[kind.elem]}"]
                conditions += [f"{names[name]}.is_constant"] if is_constant else []
            operands.append(names[name])
        texts = {name: _written(name, value) for name, value in attributes.items() if name not in SIZES | VALUES}
        call = f"{node.op_type}({', '.join([*operands, *(f'{name}={text}' for name, text in texts.items() if text)])})"
        names[node.output[0]] = f"n{len(names)}"
        steps.append(call if node == results[0] else f"{names[node.output[0]]} = {call}")
    return PatternText(nodes="; ".join(steps), where=tuple(conditions), domain=next(iter(domains), ""))


def _axes_input(site: Site) -> list[int] | None:
    """The axes of a node whose operator reads them as its second input, if that is a constant."""
    schema = walk.schema_of(site.node.op_type, site.opset, site.node.domain)
    if schema is None or len(schema.inputs) < 2 or schema.inputs[1].name != "axes":
        return None
    value = site.scope.value_of(site.inputs(2)[1])
    return None if value is None else [int(axis) for axis in value.reshape(-1)]


def _written(name: str, value: Any) -> str:
    """The value of an attribute as it is written in a pattern; "" if a pattern cannot express it."""
    if name in _ELEMENT_TYPES:
        return DTYPE_OF_ELEM.get(value, "")
    if isinstance(value, bytes):
        text = value.decode("utf-8", "replace")
        return text if text.isidentifier() and not iskeyword(text) else repr(text)
    if isinstance(value, list) and all(isinstance(each, int | float) for each in value):
        return repr(
            value[0] if name == "axes" and len(value) == 1 else tuple(sorted(value) if name == "axes" else value)
        )
    return repr(value) if isinstance(value, int | float) else ""
