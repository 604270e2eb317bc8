"""A model whose outputs are others: one change of each kind that a check which compares values could pass over.

A monotone change keeps every top-1, a change of the sign every magnitude, another order every sum, another scale every
direction, and one other element nearly every mean. No comparison of values that is of any use passes all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from biopsy.reduction.passes.editing import fresh, names_in, rename
from biopsy.reduction.passes.schemas import opsets_of
from biopsy.reduction.passes.shapes import element_count

if TYPE_CHECKING:
    import onnx

_FLOATS = frozenset({1, 10, 11})
_SIGNED = frozenset({6, 7})
_BOOL = 9

_EARLIEST = 7
"""The first opset whose arithmetic broadcasts by itself."""

_STEPS_SINCE = 10
"""The first opset whose Slice has steps, and its borders as inputs."""

_END = (1 << 31) - 1
_MOST_PLACES = 1 << 20


@dataclass
class _ChangeWriter:
    """Writes nodes that compute something from an output: of the type ``elem``, with ``count`` elements if known.

    ``taken`` are names that are not free, ``used`` the operators of the model.
    """

    graph: onnx.GraphProto
    opset: int
    taken: set[str]
    used: Collection[str]
    elem: int = 0
    count: int | None = None

    def node(self, operator: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add a node; returns the name of its output, a new one if none is given."""
        from onnx import helper

        made = output or fresh("changed", self.taken)
        name = fresh(f"{operator}_of_change", self.taken)
        self.graph.node.append(helper.make_node(operator, list(inputs), [made], name=name, **attributes))
        return made

    def constant(self, values: Sequence[int], elem: int = 7, dims: Sequence[int] | None = None) -> str:
        """A tensor of these values, as a Constant node: an initializer would be an input before IR 4."""
        from onnx import helper

        shape = [len(values)] if dims is None else list(dims)
        return self.node("Constant", [], value=helper.make_tensor("", elem, shape, list(values)))

    def part(self, flat: str, start: int, end: int) -> str:
        """The elements of a list from one place to another."""
        if self.opset < _STEPS_SINCE:
            return self.node("Slice", [flat], axes=[0], starts=[start], ends=[end])
        return self.node("Slice", [flat, self.constant([start]), self.constant([end])])

    def turned(self, flat: str) -> str:
        """A list from its end."""
        if self.opset < _STEPS_SINCE:
            return self.node("Gather", [flat, self.constant(list(reversed(range(self.count or 0))))])
        return self.node("Slice", [flat, *(self.constant([value]) for value in (-1, -_END, 0, -1))])

    def lacking(self, *operators: str) -> str:
        """The first of some operators that the model has not: a check that looks for operators is told nothing."""
        return next((name for name in operators if name not in self.used), operators[0])


Change: TypeAlias = "Callable[[_ChangeWriter, str, str], None]"
"""Adds nodes that compute the second tensor from the first."""


def _sign(write: _ChangeWriter, before: str, after: str) -> None:
    if write.elem == _BOOL:
        write.node("Not", [before], after)
    elif write.lacking("Neg", "Sub") == "Neg":
        write.node("Neg", [before], after)
    else:
        write.node("Sub", [write.constant([0], write.elem, []), before], after)


def _one_element(write: _ChangeWriter, before: str, after: str) -> None:
    """The first element becomes another: also where it is not a number."""
    flat = write.node("Reshape", [before, write.constant([-1])])
    other = write.node("Not", [write.part(flat, 0, 1)]) if write.elem == _BOOL else write.constant([177], write.elem)
    whole = write.node("Concat", [other, write.part(flat, 1, _END)], axis=0)
    write.node("Reshape", [whole, write.node("Shape", [before])], after)


def _order(write: _ChangeWriter, before: str, after: str) -> None:
    flat = write.node("Reshape", [before, write.constant([-1])])
    write.node("Reshape", [write.turned(flat), write.node("Shape", [before])], after)


def _scale(write: _ChangeWriter, before: str, after: str) -> None:
    if write.elem == _BOOL:
        write.node("Not", [before], after)
    elif write.lacking("Mul", "Add") == "Mul":
        write.node("Mul", [before, write.constant([3], write.elem, [])], after)
    else:
        write.node("Add", [before, write.node("Add", [before, before])], after)


def _curve(write: _ChangeWriter, before: str, after: str) -> None:
    """Nearly every number becomes another, and none infinite, in no fixed proportion."""
    if write.elem in _FLOATS:
        write.node(write.lacking("Cos", "Atan", "Softplus", "Erf", "Tanh"), [before], after)
    else:
        _sign(write, before, after)


KINDS: Mapping[str, Change] = {
    "of the other sign": _sign,
    "one element of each changed": _one_element,
    "in reverse order": _order,
    "three times as large": _scale,
    "put through a function": _curve,
}
"""What can be done to outputs, in the order in which it is tried."""


def with_changed_outputs(model: onnx.ModelProto, kind: str) -> onnx.ModelProto | None:
    """A copy, every output changed in one way; None if one of them cannot be."""
    made = type(model)()
    made.CopyFrom(model)
    written = {name for node in made.graph.node for name in node.output}
    types = {info.name: info.type for info in made.graph.output}
    opset = opsets_of(made).get("", 0)
    if not types or not all(name in written and _can_change(types[name], opset) for name in types):
        return None
    taken = names_in(made)
    write = _ChangeWriter(made.graph, opset, taken, {node.op_type for node in made.graph.node})
    for name, told in types.items():
        before = fresh(f"{name}_before_change", taken)
        rename(made.graph.node, {name: before})
        write.elem, write.count = told.tensor_type.elem_type, element_count(told)
        KINDS[kind](write, before, name)
    return made


def _can_change(told: onnx.TypeProto, opset: int) -> bool:
    known = told.tensor_type.elem_type in _FLOATS | _SIGNED | {_BOOL}
    count = element_count(told)
    return known and (opset >= _STEPS_SINCE or (opset >= _EARLIEST and count is not None and count <= _MOST_PLACES))
