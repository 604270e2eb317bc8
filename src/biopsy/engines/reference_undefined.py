"""Values for which the ONNX standard defines no result, by the operators that read them.

NumPy, and so float64, gives for such values what the processor gives, so it does not judge them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from biopsy.model.tensor_type import DTYPE_OF_ELEM
from biopsy.slow_imports import onnx
from biopsy.tensors.results import Array
from biopsy.tensors.types import is_float


def _attribute(node: onnx.NodeProto, name: str, default: int = 0) -> int:
    return next((each.i for each in node.attribute if each.name == name), default)


Elements: TypeAlias = Callable[[Array], Any]
"""Which elements of a value have no defined result."""

UNDEFINED = ("refused", "least", "zero", "greatest")
"""What becomes of an undefined result: the run is refused, or it is this number of its integer type."""


class UndefinedResultError(Exception):
    """A node reads values for which ONNX defines no result."""


@dataclass(frozen=True, kw_only=True)
class UndefinedRule:
    """What an operator has no defined result for, in opsets before ``until``: elements of its input number ``place``.

    ``of`` gives these elements for a node and the values of its inputs, None for one that is not known; that of
    ``place`` is. It returns None if no element is known to be undefined. With ``instead`` in their place, the result is
    defined; None if no number does that. ``elementwise``: each concerns only the elements of the result at its place,
    of which there may be more, by broadcasting.
    """

    text: str
    of: Callable[[onnx.NodeProto, Sequence[Any]], Elements | None]
    place: int = 0
    instead: int | None = 0
    elementwise: bool = True
    until: float = math.inf

    def elements(self, node: onnx.NodeProto, values: Sequence[Any]) -> Elements | None:
        """Which elements of its input have no defined result, if any value that a node reads is one."""
        read = values[self.place] if len(values) > self.place else None
        is_undefined = None if read is None else self.of(node, values)
        return is_undefined if read is not None and is_undefined and np.any(is_undefined(read)) else None


def rule_of(node: onnx.NodeProto, opset: int) -> UndefinedRule | None:
    """The rule of a node's operator, if it has one in this opset."""
    rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    return rule if rule is not None and opset < rule.until else None


def with_undefined(node: onnx.NodeProto, opset: int, run: Callable[..., Any], choice: str) -> Callable[..., Any]:
    """A node's ``run`` with its undefined results replaced by ``choice``, one of ``UNDEFINED``.

    It raises UndefinedResultError if that is "refused", or if it is not known which results are undefined.
    """
    rule = rule_of(node, opset)
    if rule is None:
        return run

    def checked(*values: Any, **context: Any) -> Any:
        is_undefined = rule.elements(node, values)
        if is_undefined is None:
            return run(*values, **context)
        if choice == "refused" or not rule.elementwise:
            of = repr(node.name) if node.name else f"of {node.output[0]!r}"
            raise UndefinedResultError(f"{node.op_type} {of} {rule.text}")
        mask, read = is_undefined(values[rule.place]), values[rule.place]
        defined = np.where(mask, read.dtype.type(rule.instead or 0), read)
        (result,) = run(*values[: rule.place], defined, *values[rule.place + 1 :], **context)
        limits = np.iinfo(result.dtype)
        instead = {"least": limits.min, "zero": 0, "greatest": limits.max}[choice]
        return (np.where(np.broadcast_to(mask, result.shape), result.dtype.type(instead), result),)

    return checked


def _outside(node: onnx.NodeProto, inputs: Sequence[Any]) -> Elements | None:
    like = inputs[1].dtype if len(inputs) > 1 and inputs[1] is not None else ""
    dtype = str(like) or DTYPE_OF_ELEM.get(_attribute(node, "to"), "")
    if not is_float(inputs[0].dtype) or not dtype.startswith(("int", "uint")):
        return None
    signed, bits = not dtype.startswith("u"), int(dtype.removeprefix("u").removeprefix("int"))
    top = 2.0 ** (bits - signed)
    low = -top if signed else 0

    def is_outside(number: Array) -> Any:
        whole = np.trunc(number.astype(np.float64))
        return ~((whole >= low) & (whole < top))

    return is_outside


def _zero(node: onnx.NodeProto, inputs: Sequence[Any]) -> Elements | None:
    return (lambda element: element == 0) if inputs[1].dtype.kind in "iu" else None


def _out_of_bounds(node: onnx.NodeProto, inputs: Sequence[Any]) -> Elements | None:
    axis, data = _attribute(node, "axis"), inputs[0]
    if data is None or not -data.ndim <= axis < data.ndim:
        return None
    size = data.shape[axis]
    return lambda index: (index < -size) | (index >= size)


def _outside_of_all_axes(node: onnx.NodeProto, inputs: Sequence[Any]) -> Elements | None:
    data, indices = inputs[:2]
    if data is None or indices.ndim == 0:
        return None
    first = _attribute(node, "batch_dims")
    sizes = np.array(data.shape[first : first + indices.shape[-1]])
    return lambda index: (index < -sizes) | (index >= sizes)


def _least(node: onnx.NodeProto, inputs: Sequence[Any]) -> Elements | None:
    return (lambda number: number == np.iinfo(number.dtype).min) if inputs[0].dtype.kind == "i" else None


def _overflowing(operation: Callable[[Array, Array], Array], place: int = 0) -> UndefinedRule:
    """The rule of an operator of two integers, the exact result of which may be outside the type of the first."""

    def of(node: onnx.NodeProto, inputs: Sequence[Any]) -> Elements | None:
        other = inputs[1 - place] if len(inputs) == 2 else None
        if other is None or inputs[0].dtype.kind not in "iu":
            return None
        limits = np.iinfo(inputs[0].dtype)

        def is_outside(read: Array) -> Any:
            first, second = (other, read) if place else (read, other)
            with np.errstate(all="ignore"):
                exact = operation(first.astype(np.longdouble), second.astype(np.longdouble))  # holds all 64 bits
            return (exact < limits.min) | (exact > limits.max)

        return is_outside

    return UndefinedRule(text="overflows its integer type", of=of, place=place)


def _too_many_bits(node: onnx.NodeProto, inputs: Sequence[Any]) -> Elements | None:
    return lambda bits: bits >= 8 * bits.dtype.itemsize


def _of_any_order(node: onnx.NodeProto, inputs: Sequence[Any]) -> Elements | None:
    return None if _attribute(node, "sorted", 1) else lambda values: np.ones(values.shape, bool)


_CAST = UndefinedRule(text="casts NaN or a value out of range to an integer type", of=_outside)
_DIVISOR = UndefinedRule(text="divides an integer by zero", of=_zero, place=1, instead=1)
_INDEX = UndefinedRule(text="has an index out of bounds", of=_out_of_bounds, place=1, elementwise=False)
_INDICES = UndefinedRule(text="has an index out of bounds", of=_outside_of_all_axes, place=1, elementwise=False)
_SHIFT = UndefinedRule(text="shifts by as many bits as the type has, or more", of=_too_many_bits, place=1, until=28)
_OPPOSITE = UndefinedRule(text="overflows: the type has no such positive number", of=_least)

RULES: Mapping[str, UndefinedRule] = {
    "Abs": _OPPOSITE,
    "Add": _overflowing(np.add),
    "BitShift": _SHIFT,
    "Cast": _CAST,
    "CastLike": _CAST,
    "Div": _DIVISOR,
    "Gather": _INDEX,
    "GatherElements": _INDEX,
    "GatherND": _INDICES,
    "Mod": _DIVISOR,
    "Mul": _overflowing(np.multiply),
    "Neg": _OPPOSITE,
    "Pow": _overflowing(np.power, 1),
    "ScatterElements": _INDEX,
    "ScatterND": _INDICES,
    "Sub": _overflowing(np.subtract, 1),
    "TopK": UndefinedRule(text="gives values in any order", of=_of_any_order, instead=None, elementwise=False),
}
