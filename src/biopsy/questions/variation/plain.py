"""The plainest form of a small failing model: the least sizes and the simplest values with which it still fails.

A person who reads a bug report wants ``np.ones((2, 3))`` and not 4 KB of measured numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_UP, Context
from functools import partial
from typing import Any

import numpy as np

from biopsy.model import walk
from biopsy.model.external import is_external
from biopsy.model.infer import inferred_outputs
from biopsy.questions.variation.elements import with_changed_weights
from biopsy.questions.variation.features import Edit, ExaminedFeature, FedModel, chained, values_of
from biopsy.reduction.passes.common import copied, opsets_of
from biopsy.reduction.passes.weights import lists_of_sizes, named_tensors
from biopsy.slow_imports import onnx
from biopsy.tensors.results import Array
from biopsy.tensors.types import is_float

Fails = Callable[[Edit, str], bool]
"""Whether the model still fails in the same way after an edit, which the text describes."""

_READABLE_SIZES = (2, 3, 4, 1)
"""Sizes in the order in which a reader prefers them: an axis of one element hides what the axis is for."""

FEW = 16
"""So many elements can be read as a list of numbers."""


def make_plain(
    base: FedModel, examinations: Sequence[ExaminedFeature], fails: Fails, *, is_of_shape: bool = False
) -> None:
    """Make a failing model plainer step by step: first its sizes, then each of its tensors, then its sizes again.

    ``fails`` is called with edits of ``base``, each of which includes those that failed before. No model is tried that
    gives an empty tensor where ``base`` does not: nothing is to be seen in it. If the failure ``is_of_shape``, the
    newest definition of the operators is tried first: for shapes, later texts of the standard are often clearer.
    """
    is_empty_already = _gives_empty(base)

    def shows(edit: Edit, description: str) -> bool:
        edited = edit(base)
        return edited is not None and (is_empty_already or not _gives_empty(edited)) and fails(edit, description)

    is_raised = is_of_shape and shows(in_newest_opset, "its operators' newest opset")
    kept: list[Edit] = [in_newest_opset] if is_raised else []
    axes = [sizes for each in examinations if (sizes := _readable_sizes(each))]
    firsts = [sizes[0] for sizes in axes]
    if len(axes) > 1 and shows(chained([*kept, *firsts]), "readable sizes"):
        kept += firsts
    else:
        for sizes in axes:
            kept += next(([edit] for edit in sizes if shows(chained([*kept, edit]), "a readable size")), [])
    resized = chained(kept)(base) if kept else base
    for tensor in _tensors(resized) if resized is not None else ():
        for change in tensor.changes:
            if shows(chained([*kept, tensor.edit(change)]), f"plain values of {tensor.name}"):
                kept.append(tensor.edit(change))
                break
    if axes and not set(firsts) <= set(kept) and shows(chained([*kept, *firsts]), "readable sizes of plain values"):
        kept += firsts


def in_newest_opset(fed: FedModel) -> FedModel | None:
    """A copy in the opset of the newest definition of its operators; None if it is that already."""
    model = fed.model
    opsets = opsets_of(model)
    named = [node.op_type for node in walk.nodes(model) if node.domain in ("", "ai.onnx")]
    schemas = (walk.schema_of(name, onnx.defs.onnx_opset_version(), "") for name in named)
    newest = max((schema.since_version for schema in schemas if schema is not None), default=0)
    if newest <= opsets.get("", 1):
        return None
    raised = copied(model)
    for entry in raised.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = newest
    return replace(fed, model=raised)


def _gives_empty(fed: FedModel) -> bool:
    """Whether an output is known to have no element."""
    return any(0 in (kind.shape or ()) for kind in inferred_outputs(fed.model).values())


def _readable_sizes(examination: ExaminedFeature) -> Sequence[Edit]:
    """The edits to sizes that are more readable than the present one, the best first.

    A size that was not tried may be among them, if it is smaller; a size of 1 only if it is known to fail.
    """
    numbers = examination.feature.numbers
    if examination.feature.what != "size" or numbers is None:
        return ()
    known = examination.numbers_with("fails")
    others = {*examination.numbers_with("passes"), *examination.numbers_with("invalid")}
    small = [size for size in _READABLE_SIZES if size in known or (1 < size < numbers.present and size not in others)]
    smaller = sorted(size for size in known if size < numbers.present and size not in small)
    better = [*small, *smaller]
    if numbers.present in better:
        better = better[: better.index(numbers.present)]
    return [numbers.with_value(size).edit for size in better]


@dataclass(frozen=True, kw_only=True)
class _PlainTensor:
    """An input or a weight, the changes that make it plainer, the plainest first, and how to edit the model so."""

    name: str
    changes: Sequence[Callable[[Array], Array]]
    edit: Callable[[Callable[[Array], Array]], Edit]


def _tensors(fed: FedModel) -> Iterator[_PlainTensor]:
    for name, values in fed.feeds[0].items() if fed.feeds else ():
        changes = [] if len(fed.feeds or ()) > 1 else list(_plainer(values))
        yield _PlainTensor(name=name, changes=changes, edit=partial(_with_input, name))
    lists = lists_of_sizes(fed.model)
    for number, (name, tensor) in enumerate(named_tensors(fed.model)):
        weight = None if name in lists or is_external(tensor) else values_of(tensor)
        if weight is not None:
            yield _PlainTensor(name=name, changes=list(_plainer(weight)), edit=partial(with_changed_weights, [number]))


def _with_input(name: str, change: Callable[[Array], Array]) -> Edit:
    return partial(FedModel.with_input, name=name, changed=change)


def _plainer(values: Array) -> Iterator[Callable[[Array], Array]]:
    """Changes of values that give plainer ones: a repeated pattern, or a few numbers with fewer decimals."""
    expression = plain_expression(values)
    is_short = expression is not None and all(len(str(value)) <= _SHORT for value in values.ravel()[:FEW])
    if is_short or not values.size or not (values.dtype.kind in "fiu" or is_float(values.dtype)):
        return
    for pattern in ((1,), (1, 2, 3), (1, -2, 3, -4)):
        if values.dtype.kind != "u" or min(pattern) > 0:
            yield partial(_repeated, pattern)
    if values.dtype.kind in "iu":
        yield _counted
        yield from (partial(_repeated, (int(extreme),)) for extreme in (values.min(), values.max()))
    elif math.isfinite(farthest := float(values.flat[np.abs(values.astype(np.float64)).argmax()])) and farthest:
        number = float(_away_from_zero.create_decimal_from_float(farthest))
        with np.errstate(over="ignore"):
            is_finite = np.isfinite(np.float64(np.array(number, values.dtype)))
        if is_finite:
            yield partial(_repeated, (number,))
    if values.size <= FEW and values.dtype.kind == "f":
        for decimals in (0, 1, 2):
            yield partial(_rounded, decimals)


_away_from_zero = Context(prec=1, rounding=ROUND_UP)

_SHORT = 4
"""Characters of a number that needs no rounding to be read."""


def _repeated(pattern: Sequence[float], values: Array) -> Array:
    return np.resize(np.array(pattern, values.dtype), values.shape)


def _counted(values: Array) -> Array:
    limit = np.iinfo(values.dtype).max
    return (np.arange(values.size) % limit).astype(values.dtype).reshape(values.shape)


def _rounded(decimals: int, values: Array) -> Array:
    return np.round(values.astype(np.float64), decimals).astype(values.dtype)


_MOST_NESTED = 12
_LONGEST, _LONGEST_FLAT = 100, 200
"""Characters of a nested list, and of one in a single row: numbers beside a script are read less easily."""


def plain_expression(values: Array) -> str | None:
    """The values as a short expression of Python with ``np`` that gives the same bytes; None if there is none.

    Few elements are a list, more of them a fill, or a pattern of up to four numbers that is repeated.
    """
    if values.dtype.kind not in "fiub" or not values.dtype.isnative or values.dtype.name not in _NUMPYS_OWN:
        return None
    dtype = "bool" if values.dtype.kind == "b" else f"np.{values.dtype.name}"
    listed = f"np.array({_listed(values)}, {dtype})" if 0 < values.size <= _MOST_NESTED else ""
    if listed and len(listed) <= _LONGEST:
        return listed
    flat = values.ravel()
    for length in range(1, 5 if values.size else 0):
        pattern = flat[:length]
        if np.resize(pattern, values.shape).tobytes() == values.tobytes():
            if length == 1:
                return f"np.full({values.shape}, {_number(flat[0])}, {dtype})"
            return f"np.resize(np.array({_listed(pattern)}, {dtype}), {values.shape})"
    if values.dtype.kind in "iu" and (flat == np.arange(values.size)).all():
        return f"np.arange({values.size}, dtype={dtype}).reshape({values.shape})"
    in_a_row = f"np.array({_listed(flat)}, {dtype}).reshape({values.shape})" if 0 < values.size <= FEW else ""
    if in_a_row and len(in_a_row) <= _LONGEST_FLAT:
        return in_a_row
    return None if values.size else f"np.zeros({values.shape}, {dtype})"


_NUMPYS_OWN = frozenset(
    {"bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32", "float64"}
)


def _listed(values: Array) -> str:
    return f"[{', '.join(map(_listed, values))}]" if values.ndim else _number(values[()])


def _number(value: Any) -> str:
    """The shortest text that gives the number in its type; NaN and infinity as NumPy names them."""
    text = str(value)
    return text.replace("inf", "np.inf").replace("nan", "np.nan").removesuffix(".0")
