"""Element types that may vary: of inputs and weights, each with all that has to have the same type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from biopsy.model import walk
from biopsy.model.external import is_external
from biopsy.model.tensor_type import DTYPE_OF_ELEM, ELEM_OF_DTYPE
from biopsy.reduction.passes.sizes import lists_of_sizes, named_tensors
from biopsy.tensors.results import Array
from biopsy.variation.features import Alternative, Feature
from biopsy.variation.fed_model import Edit, FedModel
from biopsy.variation.tensor_values import values_of, with_values
from biopsy.variation.ties import tied_groups
from biopsy.variation.validity import Validity

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
    told = _places(fed.model)
    for dtype in dict.fromkeys(told.values()):
        others = [other for other in _OTHERS.get(dtype, ()) if _is_exact(dtype, other, bits)]
        places = [place for place, other in told.items() if other == dtype]
        anchors = [place for place in places if not place.is_cast][:_MOST_ANCHORS]
        if others and validity.is_strict:
            groups = tied_groups(anchors, places, partial(_is_valid, fed, validity, others))
            yield from (_feature(group, dtype, others) for group in groups)


def _is_valid(fed: FedModel, validity: Validity, others: Sequence[str], group: Sequence[TypedPlace]) -> bool:
    made = (typed(group, other)(fed) for other in others)
    return any(one is not None and validity.told(one.model) is not None for one in made)


def _is_exact(dtype: str, other: str, bits: int) -> bool:
    return _BITS.get(other, EXACT) >= min(bits, _BITS.get(dtype, EXACT))


def _feature(group: Sequence[TypedPlace], dtype: str, others: Sequence[str]) -> Feature:
    names = dict.fromkeys(place.name for place in group if not place.is_cast)
    return Feature(
        what="dtype",
        name=" = ".join(names),
        present=dtype,
        alternatives=[Alternative(kind=other, text=other, edit=typed(group, other)) for other in others],
    )


def _places(model: onnx.ModelProto) -> dict[TypedPlace, str]:
    weights = {weight.name for weight in model.graph.initializer}
    lists = lists_of_sizes(model)
    found = {
        TypedPlace(info.name): DTYPE_OF_ELEM.get(info.type.tensor_type.elem_type, "")
        for info in model.graph.input
        if info.name not in weights and info.type.WhichOneof("value") == "tensor_type"
    }
    for number, (name, tensor) in enumerate(named_tensors(model)):
        if name not in lists and not is_external(tensor):
            found[TypedPlace(name, number)] = DTYPE_OF_ELEM.get(tensor.data_type, "")
    for number, node in enumerate(walk.nodes(model)):
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                found[TypedPlace("", number, is_cast=True)] = DTYPE_OF_ELEM.get(attribute.i, "")
    return found


def typed(group: Sequence[TypedPlace], dtype: str) -> Edit:
    """The edit that gives all places of a group another type; None where values do not fit into it."""

    def edit(fed: FedModel) -> FedModel | None:
        made: FedModel | None = fed.copied()
        for place in group:
            made = None if made is None else _typed_at(made, place, dtype)
        return made

    return edit


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
