"""Values of inputs and weights that may vary: other random ones, constants, none of them larger than those present."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from biopsy.model.external import is_external
from biopsy.reduction.passes.sizes import lists_of_sizes, named_tensors
from biopsy.reduction.passes.weights import UNNAMED
from biopsy.tensors.results import Array
from biopsy.variation.features import Alternative, Feature, Numbers
from biopsy.variation.fed_model import Edit, FedModel
from biopsy.variation.tensor_values import values_of, with_values

if TYPE_CHECKING:
    import onnx

_FARTHEST = 4
_MOST_WEIGHTS = 8
"""More weights are changed all together."""


def input_features(fed: FedModel) -> Iterator[Feature]:
    """The values of every input that can be fed."""
    for name in () if not fed.feeds else fed.feeds[0]:
        values = fed.feeds[0][name] if fed.feeds else np.zeros(0)
        if values.dtype.kind in "fiub" and values.size:
            changes = [
                Alternative(kind=kind, text=text, edit=partial(_fed_otherwise, name=name, change=change))
                for kind, text, change in changes_of(values)
            ]
            yield Feature(what="input", name=name, present="", alternatives=changes)


def _fed_otherwise(fed: FedModel, name: str, change: Callable[[Array], Array]) -> FedModel | None:
    return fed.with_fed(name, change)


def weight_features(fed: FedModel) -> Iterator[Feature]:
    """The values of every weight; small whole numbers are tried as such, and sizes are none of them."""
    lists = lists_of_sizes(fed.model)
    found = [
        (number, name, values)
        for number, (name, tensor) in enumerate(named_tensors(fed.model))
        if name not in lists and (values := _varied(tensor)) is not None
    ]
    if len(found) > _MOST_WEIGHTS:
        yield _together([number for number, _, values in found if values.dtype.kind == "f"])
        return
    for number, name, values in found:
        if values.size == 1 and values.dtype.kind in "iu":
            yield _whole_number(number, name or UNNAMED, values)
        else:
            changes = [
                Alternative(kind=kind, text=text, edit=_weighed_otherwise([number], change))
                for kind, text, change in changes_of(values)
            ]
            yield Feature(what="weight", name=name or UNNAMED, present=_shown(values), alternatives=changes)


def _varied(tensor: onnx.TensorProto) -> Array | None:
    values = None if is_external(tensor) else values_of(tensor)
    return values if values is not None and values.size and values.dtype.kind in "fiub" else None


def _shown(values: Array) -> str:
    return f"{values.reshape(-1)[0]:g}" if values.size == 1 and values.dtype.kind == "f" else ""


def _together(numbers: list[int]) -> Feature:
    changes = [
        Alternative(kind=kind, text=text, edit=_weighed_otherwise(numbers, change))
        for kind, text, change in changes_of(np.ones(2, np.float32))
    ]
    return Feature(what="weight", name=f"all {len(numbers)} weights", present="", alternatives=changes)


def _whole_number(number: int, name: str, values: Array) -> Feature:
    value, limits = int(values.reshape(-1)[0]), np.iinfo(values.dtype)

    def with_value(other: int, kind: str = "another number") -> Alternative:
        edit = _weighed_otherwise([number], lambda values: np.full_like(values, other))
        return Alternative(kind=kind, text=str(other), edit=edit, value=other)

    wanted = {value + 1: "one more", value - 1: "one less", 0: "zero", 2 * value: "doubled"}
    return Feature(
        what="weight",
        name=name,
        present=str(value),
        alternatives=[
            with_value(other, kind) for other, kind in wanted.items() if other != value and _fits(other, values.dtype)
        ],
        numbers=Numbers(
            present=value,
            with_value=with_value,
            least=max(value - _FARTHEST, int(limits.min)),
            most=min(value + _FARTHEST, int(limits.max)),
        ),
    )


def _weighed_otherwise(numbers: list[int], change: Callable[[Array], Array]) -> Edit:
    def edit(fed: FedModel) -> FedModel | None:
        made = fed.copied()
        tensors = list(named_tensors(made.model))
        for number in numbers:
            values = values_of(tensors[number][1])
            if values is None or not with_values(tensors[number][1], change(values)):
                return None
        return made

    return edit


# Changes of values


def changes_of(values: Array) -> Iterator[tuple[str, str, Callable[[Array], Array]]]:
    """Changes of some values: the kind, what they are then, and how they are made of those present.

    None makes a value larger than the largest there is: a larger error might be only rounding.
    """
    if values.dtype.kind == "f" and not np.isfinite(values).any():
        return
    if values.dtype.kind == "b":
        yield "random", "random", partial(_drawn, seed=1)
        yield "all true", "all true", partial(_constant, value=1)
        yield "all false", "all false", partial(_constant, value=0)
        return
    if values.size == 1:
        yield from _changes_of_one(values)
        return
    greatest = np.nanmax(np.where(np.isfinite(values), values, np.nan)) if values.dtype.kind == "f" else values.max()
    yield "random", "random in the same range", partial(_drawn, seed=1)
    yield "zeros", "zeros", partial(_constant, value=0)
    yield "in another order", "in reverse order", lambda values: values.reshape(-1)[::-1].reshape(values.shape)
    yield "constant", "all the same", partial(_constant, value=greatest.item())
    yield "random", "other random ones", partial(_drawn, seed=2)
    if values.dtype.kind == "f":
        yield "halved", "halved", lambda values: (values / 2).astype(values.dtype)
        yield "negated", "negated", lambda values: -values


def _changes_of_one(values: Array) -> Iterator[tuple[str, str, Callable[[Array], Array]]]:
    """Changes of a single number."""
    value = values.reshape(-1)[0].item()
    wanted = {
        "zero": 0,
        "halved": value / 2,
        "negated": -value,
        "another": _drawn(values, seed=1).reshape(-1)[0].item(),
    }
    wanted |= {"one": 1} if abs(value) > 1 else {}
    for kind, other in wanted.items():
        is_possible = values.dtype.kind == "f" or (isinstance(other, int) and _fits(other, values.dtype))
        if other != value and is_possible:
            yield kind, f"{other:g}", partial(_constant, value=other)


def _constant(values: Array, value: float) -> Array:
    return np.full_like(values, value)


def _drawn(values: Array, seed: int) -> Array:
    """Random values from the least to the greatest of those present; a single value is drawn from around it."""
    random = np.random.default_rng(seed)
    if values.dtype.kind == "b":
        return random.random(values.shape) < 0.5
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values.reshape(-1)
    low, high = (finite.min(), finite.max()) if finite.size else (0, 1)
    if values.dtype.kind != "f":
        return random.integers(int(low), int(high), values.shape, values.dtype, endpoint=True)
    if low == high:
        low, high = _around(float(low))
    low, high = sorted(
        (float(low) / 2, float(high) / 2)
    )  # their difference may be more than the largest number there is
    drawn: Any = 2 * random.uniform(low, high, values.shape)
    return drawn.astype(values.dtype)  # type: ignore[no-any-return]


def _fits(value: int, dtype: np.dtype[Any]) -> bool:
    return np.iinfo(dtype).min <= value <= np.iinfo(dtype).max


def _around(value: float) -> tuple[float, float]:
    return (value / 2, value) if value else (0.0, 1.0)
