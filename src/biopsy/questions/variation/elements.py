"""Element types and values of inputs and weights that may vary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from biopsy.model import walk
from biopsy.model.external import is_external
from biopsy.model.tensor_type import DTYPE_OF_ELEM, ELEM_OF_DTYPE
from biopsy.questions.variation.features import (
    Alternative,
    Edit,
    Feature,
    FedModel,
    in_turn,
    tied_groups,
    values_of,
    whole_number,
    with_values,
)
from biopsy.questions.variation.validity import Validity
from biopsy.reduction.passes.weights import UNNAMED, lists_of_sizes, named_tensors
from biopsy.tensors.results import Array

if TYPE_CHECKING:
    import onnx

_MOST_ANCHORS = 12

_OTHERS = {
    "float32": ("float64", "float16"),
    "float64": ("float32", "float16"),
    "float16": ("float32", "float64"),
    "int32": ("int64", "float32", "int8"),
    "int64": ("int32", "float32", "float64"),
    "int8": ("int32", "int64", "uint8"),
    "uint8": ("int32", "int64", "int8"),
    "bool": (),
}
"""What is tried in place of a type."""

_BITS = {"float64": 64, "float32": 32, "float16": 16, "int8": 16, "uint8": 16}
"""How exact a type is: whole numbers of 8 bits overflow as soon as those of 16 bits are rounded."""

EXACT, AS_FLOAT32, COARSE = 64, 32, 16
"""The least exact type that may be tried instead of a more exact one, in bits.

A check that compares fails by itself where values are rounded more coarsely. As far as it judges against float64, it
knows the rounding of float32; and a failure that is no comparison does not depend on rounding.
"""


@dataclass(frozen=True)
class TypedPlace:
    """Where a type is told: of an input, of the tensor of that ``number``, or in the attribute ``to`` of a Cast."""

    name: str
    number: int | None = None
    is_cast: bool = False


def dtype_features(fed: FedModel, validity: Validity, bits: int) -> Iterator[Feature]:
    """The types of inputs and weights. ``bits``: none that is less exact is tried, but for one as exact as now."""
    dtypes = _places(fed.model)
    for dtype in dict.fromkeys(dtypes.values()):
        least = min(bits, _BITS.get(dtype, EXACT))
        others = [other for other in _OTHERS.get(dtype, ()) if _BITS.get(other, EXACT) >= least]
        places = [place for place, other in dtypes.items() if other == dtype]
        anchors = [place for place in places if not place.is_cast][:_MOST_ANCHORS]
        if not others or not validity.is_strict:
            continue

        def is_valid(group: Sequence[TypedPlace], others: Sequence[str] = others) -> bool:
            made = (typed(group, other)(fed) for other in others)
            return any(one is not None and validity.told(one.model) is not None for one in made)

        for group in tied_groups(anchors, places, is_valid):
            yield Feature(
                what="dtype",
                name=" = ".join(dict.fromkeys(place.name for place in group if not place.is_cast)),
                present=dtype,
                alternatives=[Alternative(kind=other, text=other, edit=typed(group, other)) for other in others],
            )


def _places(model: onnx.ModelProto) -> dict[TypedPlace, str]:
    weights = {weight.name for weight in model.graph.initializer}
    lists = lists_of_sizes(model)
    dtypes = {
        TypedPlace(info.name): DTYPE_OF_ELEM.get(info.type.tensor_type.elem_type, "")
        for info in model.graph.input
        if info.name not in weights and info.type.WhichOneof("value") == "tensor_type"
    }
    for number, (name, tensor) in enumerate(named_tensors(model)):
        if name not in lists and not is_external(tensor):
            dtypes[TypedPlace(name, number)] = DTYPE_OF_ELEM.get(tensor.data_type, "")
    for number, node in enumerate(walk.nodes(model)):
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                dtypes[TypedPlace("", number, is_cast=True)] = DTYPE_OF_ELEM.get(attribute.i, "")
    return dtypes


def typed(group: Sequence[TypedPlace], dtype: str) -> Edit:
    """The edit that gives all places of a group another type; None where values do not fit into it."""
    return in_turn([FedModel.copied, *(partial(_typed_at, place=place, dtype=dtype) for place in group)])


def _typed_at(fed: FedModel, place: TypedPlace, dtype: str) -> FedModel | None:
    """One place of a model that may be changed."""
    if place.is_cast:
        attributes = list(walk.nodes(fed.model))[place.number or 0].attribute
        next(one for one in attributes if one.name == "to").i = ELEM_OF_DTYPE[dtype]
        return fed
    if place.number is None:
        info = next(info for info in fed.model.graph.input if info.name == place.name)
        info.type.tensor_type.elem_type = ELEM_OF_DTYPE[dtype]
        fits = all(_fits(feed[place.name], dtype) for feed in fed.feeds or () if place.name in feed)
        return fed.with_fed(place.name, lambda values: values.astype(dtype)) if fits else None
    tensor = list(named_tensors(fed.model))[place.number][1]
    values = values_of(tensor)
    if values is None or not _fits(values, dtype):
        return None
    return fed if with_values(tensor, values.astype(dtype)) else None


def _fits(values: Array, dtype: str) -> bool:
    """Whether no value is out of range in another type."""
    limits = np.finfo(dtype) if np.dtype(dtype).kind == "f" else np.iinfo(dtype)
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    return not finite.size or bool((finite >= limits.min).all() and (finite <= limits.max).all())


# Values of inputs and weights that may vary: other random ones, constants, none of them larger than those present.

_FARTHEST = 4
_MOST_WEIGHTS = 8
"""More weights are changed all together."""


def input_features(fed: FedModel) -> Iterator[Feature]:
    """The values of every input that can be fed."""
    for name, values in fed.feeds[0].items() if fed.feeds else ():
        if values.dtype.kind in "fiub" and values.size:
            alternatives = _alternatives(values, partial(_fed_otherwise, name))
            yield Feature(what="input", name=name, present="", alternatives=alternatives)


def _fed_otherwise(name: str, change: Callable[[Array], Array]) -> Edit:
    return lambda fed: fed.with_fed(name, change)


def _alternatives(values: Array, edit_by: Callable[[Callable[[Array], Array]], Edit]) -> list[Alternative]:
    return [Alternative(kind=kind, text=text, edit=edit_by(change)) for kind, text, change in changes_of(values)]


def weight_features(fed: FedModel) -> Iterator[Feature]:
    """The values of every weight; small whole numbers are tried as such, and sizes are none of them."""
    lists = lists_of_sizes(fed.model)
    weights: list[tuple[int, str, Array]] = []
    for number, (name, tensor) in enumerate(named_tensors(fed.model)):
        values = None if name in lists or is_external(tensor) else values_of(tensor)
        if values is not None and values.size and values.dtype.kind in "fiub":
            weights.append((number, name or UNNAMED, values))
    if len(weights) > _MOST_WEIGHTS:
        numbers = [number for number, _, values in weights if values.dtype.kind == "f"]
        changes = _alternatives(np.ones(2, np.float32), partial(_weighed_otherwise, numbers))
        yield Feature(what="weight", name=f"all {len(numbers)} weights", present="", alternatives=changes)
        return
    for number, name, values in weights:
        edit_by = partial(_weighed_otherwise, [number])
        if values.size > 1 or values.dtype.kind not in "iu":
            present = f"{values.reshape(-1)[0]:g}" if values.size == 1 and values.dtype.kind == "f" else ""
            yield Feature(what="weight", name=name, present=present, alternatives=_alternatives(values, edit_by))
            continue
        value, limits = int(values.reshape(-1)[0]), np.iinfo(values.dtype)
        wanted = {value + 1: "one more", value - 1: "one less", 0: "zero", 2 * value: "doubled"}
        yield whole_number(
            "weight",
            name,
            value,
            {other: kind for other, kind in wanted.items() if limits.min <= other <= limits.max},
            partial(_filled_otherwise, number),
            (max(value - _FARTHEST, int(limits.min)), min(value + _FARTHEST, int(limits.max))),
        )


def _filled_otherwise(number: int, value: int) -> Edit:
    return _weighed_otherwise([number], partial(np.full_like, fill_value=value))


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
        yield "all true", "all true", partial(np.full_like, fill_value=1)
        yield "all false", "all false", partial(np.full_like, fill_value=0)
        return
    if values.size == 1:
        value = values.reshape(-1)[0].item()
        wanted = {
            "zero": 0,
            "halved": value / 2,
            "negated": -value,
            "another": _drawn(values, seed=1).reshape(-1)[0].item(),
        }
        wanted |= {"one": 1} if abs(value) > 1 else {}
        for kind, other in wanted.items():
            is_possible = values.dtype.kind == "f" or (isinstance(other, int) and _is_held(other, values.dtype))
            if other != value and is_possible:
                yield kind, f"{other:g}", partial(np.full_like, fill_value=other)
        return
    greatest = np.nanmax(np.where(np.isfinite(values), values, np.nan)) if values.dtype.kind == "f" else values.max()
    yield "random", "random in the same range", partial(_drawn, seed=1)
    yield "zeros", "zeros", partial(np.full_like, fill_value=0)
    yield "in another order", "in reverse order", lambda values: values.reshape(-1)[::-1].reshape(values.shape)
    yield "constant", "all the same", partial(np.full_like, fill_value=greatest.item())
    yield "random", "other random ones", partial(_drawn, seed=2)
    if values.dtype.kind == "f":
        yield "halved", "halved", lambda values: (values / 2).astype(values.dtype)
        yield "negated", "negated", lambda values: -values


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
        low, high = (float(low) / 2, float(low)) if low else (0.0, 1.0)
    low, high = sorted((float(low) / 2, float(high) / 2))  # their difference may be more than the largest number
    drawn: Any = 2 * random.uniform(low, high, values.shape)
    return drawn.astype(values.dtype)  # type: ignore[no-any-return]


def _is_held(value: int, dtype: np.dtype[Any]) -> bool:
    return np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
