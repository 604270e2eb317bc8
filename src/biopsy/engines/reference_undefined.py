"""Values for which the ONNX standard defines no result, or no single one, by the operators that read them.

NumPy, and so float64, gives for such values what the processor gives, so it does not judge them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias

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


Masks: TypeAlias = "tuple[Array, ...]"
"""For each result of a node, which of its elements are undefined."""


@dataclass(frozen=True, kw_only=True)
class AmbiguityRule:
    """What an operator leaves open for some values: the standard does not say which of several results it gives.

    ``may_be`` tells from a node, and the element type and the shape of its first input (None if not known), whether
    there may be such values. ``of`` gives for a node, the values of its inputs and its ``run`` the results, and which
    elements are left open. With ``places``, an integer result is a place in the first input.
    """

    text: str
    may_be: Callable[[onnx.NodeProto, str, Sequence[object] | None], bool]
    of: Callable[[onnx.NodeProto, Sequence[Any], Callable[..., Any]], tuple[Sequence[Any], Masks]]
    places: bool = False

    def number(self, dtype: np.dtype[Any], read: Array, choice: str) -> Any:
        """The number of a type that stands for an undefined element."""
        if dtype.kind == "b" or choice == "zero":
            return dtype.type(choice == "greatest")
        if self.places and dtype.kind in "iu":
            return dtype.type(read.size - 1 if choice == "greatest" else 0)
        limits = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
        return dtype.type(limits.min if choice == "least" else limits.max)


def ambiguity_of(node: onnx.NodeProto) -> AmbiguityRule | None:
    """The rule for what a node's operator leaves open, if it has one."""
    return AMBIGUITIES.get(node.op_type) if node.domain in ("", "ai.onnx") else None


def _refuse(node: onnx.NodeProto, text: str) -> NoReturn:
    of = repr(node.name) if node.name else f"of {next(filter(None, node.output), '')!r}"
    raise UndefinedResultError(f"{node.op_type} {of} {text}")


def with_undefined(node: onnx.NodeProto, opset: int, run: Callable[..., Any], choice: str) -> Callable[..., Any]:
    """A node's ``run`` with its undefined results replaced by ``choice``, one of ``UNDEFINED``.

    It raises UndefinedResultError if that is "refused", or if it is not known which results are undefined.
    """
    ambiguity, rule = ambiguity_of(node), rule_of(node, opset)
    if ambiguity is not None:
        run = _with_ambiguity(node, ambiguity, run, choice)
    if rule is None:
        return run

    def checked(*values: Any, **context: Any) -> Any:
        is_undefined = rule.elements(node, values)
        if is_undefined is None:
            return run(*values, **context)
        if choice == "refused" or not rule.elementwise:
            _refuse(node, rule.text)
        mask, read = is_undefined(values[rule.place]), values[rule.place]
        defined = np.where(mask, read.dtype.type(rule.instead or 0), read)
        (result,) = run(*values[: rule.place], defined, *values[rule.place + 1 :], **context)
        limits = np.iinfo(result.dtype)
        instead = {"least": limits.min, "zero": 0, "greatest": limits.max}[choice]
        return (np.where(np.broadcast_to(mask, result.shape), result.dtype.type(instead), result),)

    return checked


def _with_ambiguity(
    node: onnx.NodeProto, rule: AmbiguityRule, run: Callable[..., Any], choice: str
) -> Callable[..., Any]:
    def checked(*values: Any, **context: Any) -> Any:
        read = values[0]
        if not isinstance(read, np.ndarray) or not rule.may_be(node, str(read.dtype), read.shape):
            return run(*values, **context)
        results, masks = rule.of(node, values, lambda *given: run(*given, **context))
        if not any(mask.any() for mask in masks):
            return results
        if choice == "refused" or any(each.dtype.kind not in "biuf" for each in results):
            _refuse(node, rule.text)
        numbers = [rule.number(each.dtype, read, choice) for each in results]
        return tuple(np.where(mask, number, each) for mask, number, each in zip(masks, numbers, results, strict=True))

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


def _written_twice(node: onnx.NodeProto, values: Sequence[Any], run: Callable[..., Any]) -> tuple[Sequence[Any], Masks]:
    """Which elements of a ScatterElements or ScatterND get several values that differ."""
    (result,), (data, indices, updates) = run(*values), values[:3]
    if node.op_type == "ScatterND":
        places = tuple(
            np.moveaxis(indices, -1, 0) % np.reshape(data.shape[: indices.shape[-1]], (-1, *[1] * (indices.ndim - 1)))
        )
    else:
        axis = _attribute(node, "axis") % data.ndim
        open_places: list[Any] = list(np.indices(indices.shape, sparse=True))
        open_places[axis] = indices % data.shape[axis]
        places = tuple(np.broadcast_to(each, indices.shape) for each in open_places)
    times, updates = np.zeros(data.shape, np.int64), np.asarray(updates)
    np.add.at(times, places, 1)
    mask = times > 1
    if mask.any() and data.dtype.kind in "biuf":
        least, greatest = (np.array(result, copy=True) for _ in range(2))
        np.minimum.at(least, places, updates)
        np.maximum.at(greatest, places, updates)
        mask &= least != greatest
    return (result,), (mask,)


def _of_no_values(node: onnx.NodeProto, values: Sequence[Any], run: Callable[..., Any]) -> tuple[Sequence[Any], Masks]:
    """Which elements of a reduction are of an empty set of values: all or none."""
    data, axes = values[0], next((each.ints for each in node.attribute if each.name == "axes"), None)
    axes = values[1] if len(values) > 1 and values[1] is not None else axes
    is_all = (axes is None or len(axes) == 0) and not _attribute(node, "noop_with_empty_axes")
    reduced = range(data.ndim) if is_all else [int(axis) % data.ndim for axis in (() if axes is None else axes)]
    if all(data.shape[axis] for axis in reduced):
        results = run(*values)
        return results, (np.zeros(results[0].shape, bool),)
    shape = [1 if axis in reduced else size for axis, size in enumerate(data.shape)]
    results = run(np.ones(shape, data.dtype), *values[1:])
    return results, (np.ones(results[0].shape, bool),)


def _of_nan(node: onnx.NodeProto, values: Sequence[Any], run: Callable[..., Any]) -> tuple[Sequence[Any], Masks]:
    """Which results of ArgMax, ArgMin or TopK are of several values along their axis of which one is NaN."""
    results, data = [np.asarray(each) for each in run(*values)], values[0]
    axis = _attribute(node, "axis", -1 if node.op_type == "TopK" else 0) % max(data.ndim, 1)
    mask = np.isnan(data).any(axis=axis, keepdims=True) & (data.shape[axis] > 1)
    return results, tuple(
        np.broadcast_to(mask if each.ndim == data.ndim else mask.squeeze(axis), each.shape) for each in results
    )


def _of_equals(node: onnx.NodeProto, values: Sequence[Any], run: Callable[..., Any]) -> tuple[Sequence[Any], Masks]:
    """Which Indices of a MaxPool are of one of several equal values.

    They are those that differ if, of equal values, the first or the last one counts as the greatest.
    """
    results, (data, *_) = run(*values), values
    flat, places = data.ravel(), np.arange(data.size)
    chosen = []
    for order in (np.lexsort((places, flat)), np.lexsort((-places, flat))):
        ranks = np.empty(data.size)
        ranks[order] = places
        chosen.append(run(ranks.reshape(data.shape))[1])
    return results, (np.zeros(results[0].shape, bool), chosen[0] != chosen[1])


def _may_be_empty(node: onnx.NodeProto, dtype: str, shape: Sequence[object] | None) -> bool:
    return shape is None or any(not isinstance(size, int) or size == 0 for size in shape)


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

_OVERWRITTEN = AmbiguityRule(
    text="writes several values to one element",
    may_be=lambda node, dtype, shape: all(
        each.s in (b"", b"none") for each in node.attribute if each.name == "reduction"
    ),
    of=_written_twice,
)
_NAN = AmbiguityRule(
    text="compares NaN with other values",
    may_be=lambda node, dtype, shape: not dtype or "float" in dtype,
    of=_of_nan,
    places=True,
)
_NOTHING = AmbiguityRule(text="reduces an empty set of values", may_be=_may_be_empty, of=_of_no_values)
_NO_INTEGERS = replace(
    _NOTHING, may_be=lambda node, dtype, shape: "float" not in dtype and _may_be_empty(node, dtype, shape)
)

AMBIGUITIES: Mapping[str, AmbiguityRule] = {
    "ArgMax": _NAN,
    "ArgMin": _NAN,
    "MaxPool": AmbiguityRule(
        text="gives the place of one of several equal values",
        may_be=lambda node, dtype, shape: any(node.output[1:]),
        of=_of_equals,
        places=True,
    ),
    "ReduceLogSum": _NO_INTEGERS,
    "ReduceLogSumExp": _NO_INTEGERS,
    "ReduceMean": _NOTHING,
    "Scatter": _OVERWRITTEN,
    "ScatterElements": _OVERWRITTEN,
    "ScatterND": _OVERWRITTEN,
    "TopK": _NAN,
}
