"""Features for element types and values of inputs and weights, and for attributes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from biopsy.model import walk
from biopsy.model.external import is_external
from biopsy.model.tensor_type import DTYPE_OF_ELEM, ELEM_OF_DTYPE
from biopsy.questions.variation.features import (
    Alternative,
    Edit,
    Feature,
    FedModel,
    chained,
    number_feature,
    set_values,
    tied_groups,
    values_of,
)
from biopsy.questions.variation.validity import Validity
from biopsy.questions.variation.values import OTHER_VALUES, other_values, value_changes
from biopsy.reduction.passes.common import Place, every_node, graph_at, opsets_of, schema_of
from biopsy.reduction.passes.weights import CHOICES, SIZE_ATTRIBUTES, UNNAMED, lists_of_sizes, named_tensors
from biopsy.slow_imports import onnx
from biopsy.tensors.results import Array

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
"""The types to try instead of each type."""

_BITS = {"float64": 64, "float32": 32, "float16": 16, "int8": 16, "uint8": 16}
"""The precision of a type; integers of 8 bits count as 16, where floats begin to round them."""

EXACT, AS_FLOAT32, COARSE = 64, 32, 16
"""The least precision that a changed type may have, in bits.

Coarser rounding alone would make a check fail that compares values. A comparison with float64 allows for the rounding
of float32, and a failure that is not a comparison does not depend on rounding.
"""


@dataclass(frozen=True)
class TypedPlace:
    """Where a type is stated: an input, the tensor of that ``number``, or the attribute ``to`` of a Cast."""

    name: str
    number: int | None = None
    is_cast: bool = False


def dtype_features(fed: FedModel, validity: Validity, bits: int) -> Iterator[Feature]:
    """The types of inputs and weights. No type below ``bits`` is tried, unless it is as precise as the present one."""
    dtypes = _type_places(fed.model)
    for dtype in dict.fromkeys(dtypes.values()):
        least = min(bits, _BITS.get(dtype, EXACT))
        others = [other for other in _OTHERS.get(dtype, ()) if _BITS.get(other, EXACT) >= least]
        places = [place for place, other in dtypes.items() if other == dtype]
        anchors = [place for place in places if not place.is_cast][:_MOST_ANCHORS]
        if not others or not validity.is_strict:
            continue

        def is_valid(group: Sequence[TypedPlace], others: Sequence[str] = others) -> bool:
            changed = (with_dtype(group, other)(fed) for other in others)
            return any(each is not None and validity.validated(each.model) is not None for each in changed)

        for group in tied_groups(anchors, places, is_valid):
            yield Feature(
                what="dtype",
                name=" = ".join(dict.fromkeys(place.name for place in group if not place.is_cast)),
                present=dtype,
                alternatives=[Alternative(kind=other, text=other, edit=with_dtype(group, other)) for other in others],
            )


def _type_places(model: onnx.ModelProto) -> dict[TypedPlace, str]:
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


def with_dtype(group: Sequence[TypedPlace], dtype: str) -> Edit:
    """The edit that gives all places of a group another type; impossible if values are out of its range."""
    return chained([FedModel.copied, *(partial(_typed_at, place=place, dtype=dtype) for place in group)])


def _typed_at(fed: FedModel, place: TypedPlace, dtype: str) -> FedModel | None:
    """The edit at one place, in place."""
    if place.is_cast:
        attributes = list(walk.nodes(fed.model))[place.number or 0].attribute
        next(each for each in attributes if each.name == "to").i = ELEM_OF_DTYPE[dtype]
        return fed
    if place.number is None:
        info = next(info for info in fed.model.graph.input if info.name == place.name)
        info.type.tensor_type.elem_type = ELEM_OF_DTYPE[dtype]
        fits = all(_fits(feed[place.name], dtype) for feed in fed.feeds or () if place.name in feed)
        return fed.with_input(place.name, partial(_cast, dtype=dtype)) if fits else None
    tensor = list(named_tensors(fed.model))[place.number][1]
    values = values_of(tensor)
    if values is None or not _fits(values, dtype):
        return None
    return fed if set_values(tensor, _cast(values, dtype)) else None


def _fits(values: Array, dtype: str) -> bool:
    """Whether all finite values are in the range of a type, but for extremes that ``_cast`` replaces."""
    limits = np.finfo(dtype) if np.dtype(dtype).kind == "f" else np.iinfo(dtype)
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    for extreme in _extremes(values.dtype, dtype):
        finite = finite[finite != extreme]
    return not finite.size or bool((finite >= limits.min).all() and (finite <= limits.max).all())


def _cast(values: Array, dtype: str) -> Array:
    """Values of another type. The least and the greatest signed integer, which may overflow, become those of the new.

    So what fails for the least integer of 32 bits is asked of the least one of 64 bits.
    """
    changed = values.astype(dtype)
    for extreme, replaced in _extremes(values.dtype, dtype).items():
        changed[values == extreme] = replaced
    return changed


def _extremes(before: np.dtype[Any], dtype: str) -> dict[int, int]:
    """The least and the greatest integer of a signed type, with those of another one."""
    if before.kind != "i" or np.dtype(dtype).kind != "i":
        return {}
    old, new = np.iinfo(before), np.iinfo(dtype)
    return {int(old.min): int(new.min), int(old.max): int(new.max)}


_FARTHEST = 4
"""The greatest distance of a new number from the present one."""

_MOST_WEIGHTS = 8
"""If there are more weights, all are changed together."""


def input_features(fed: FedModel) -> Iterator[Feature]:
    """The values of every input that can be fed, and of inputs that are fed with the same ones."""
    alike: dict[tuple[str, tuple[int, ...], bytes], list[str]] = {}
    for name, values in fed.feeds[0].items() if fed.feeds else ():
        if values.dtype.kind in "fiub" and values.size:
            alike.setdefault((values.dtype.str, values.shape, values.tobytes()), []).append(name)
            yield _of_inputs([name], values, fed)
    for names in alike.values():
        if len(names) > 1 and fed.feeds:
            yield _of_inputs(names, fed.feeds[0][names[0]], fed)


def _of_inputs(names: Sequence[str], values: Array, fed: FedModel) -> Feature:
    def edit_by(change: Callable[[Array], Array]) -> Edit:
        return chained([partial(FedModel.with_input, name=name, changed=change) for name in names])

    return Feature(
        what="input",
        name=" = ".join(names),
        present="",
        alternatives=_alternatives(values, edit_by),
        values=values,
        is_measured=len(fed.feeds or ()) == 1,
    )


def _alternatives(values: Array, edit_by: Callable[[Callable[[Array], Array]], Edit]) -> list[Alternative]:
    return [
        Alternative(kind=kind, text=text, edit=edit_by(change), change=change)
        for kind, text, change in value_changes(values)
    ]


def edits_of_inputs(fed: FedModel) -> list[Edit]:
    """Edits that give all inputs other values, larger ones and of other signs, whatever their shapes are then."""
    names = list(fed.feeds[0]) if fed.feeds else []
    changes = [partial(other_values, number=number) for number in range(OTHER_VALUES if names else 0)]
    return [chained([partial(FedModel.with_input, name=name, changed=change) for name in names]) for change in changes]


_FAR = 64.0


def edits_of_others(fed: FedModel, feature: Feature) -> list[Edit]:
    """Edits that give all tensors but those of a feature values of another order, floats among the weights too."""
    titles = feature.name.split(" = ")
    inputs = [name for name in (fed.feeds[0] if fed.feeds else {}) if feature.what != "input" or name not in titles]
    lists, weights = lists_of_sizes(fed.model), []
    for number, (name, tensor) in enumerate(named_tensors(fed.model)):
        values = None if name in lists or (feature.what == "weight" and name in titles) else values_of(tensor)
        weights += [number] if values is not None and values.dtype.kind == "f" else []
    changes = [partial(other_values, number=number, by=_FAR, beyond=_FAR) for number in range(OTHER_VALUES)]
    return [
        chained([*(partial(FedModel.with_input, name=name, changed=change) for name in inputs), *with_weights])
        for change in changes
        for with_weights in ([], [with_changed_weights(weights, change)])
        if (inputs or with_weights) and (weights or not with_weights)
    ]


def weight_features(fed: FedModel) -> Iterator[Feature]:
    """The values of every weight but sizes. A single integer is a number feature."""
    lists = lists_of_sizes(fed.model)
    weights: list[tuple[int, str, Array]] = []
    for number, (name, tensor) in enumerate(named_tensors(fed.model)):
        values = None if name in lists or is_external(tensor) else values_of(tensor)
        if values is not None and values.size and values.dtype.kind in "fiub":
            weights.append((number, name or UNNAMED, values))
    if len(weights) > _MOST_WEIGHTS:
        numbers = [number for number, _, values in weights if values.dtype.kind == "f"]
        changes = _alternatives(np.ones(2, np.float32), partial(with_changed_weights, numbers))
        name = f"all {len(numbers)} weights"
        yield Feature(what="weight", name=name, present="", alternatives=changes, values=np.ones(2), is_measured=False)
        return
    for number, name, values in weights:
        edit_by = partial(with_changed_weights, [number])
        if values.size > 1 or values.dtype.kind not in "iu":
            present = f"{values.reshape(-1)[0]:g}" if values.size == 1 and values.dtype.kind == "f" else ""
            changes = _alternatives(values, edit_by)
            yield Feature(what="weight", name=name, present=present, alternatives=changes, values=values)
            continue

        def filled(value: int, number: int = number) -> Edit:
            return with_changed_weights([number], partial(np.full_like, fill_value=value))

        value, limits = int(values.reshape(-1)[0]), np.iinfo(values.dtype)
        wanted = {value + 1: "one more", value - 1: "one less", 0: "zero", 2 * value: "doubled"}
        yield number_feature(
            "weight",
            name,
            value,
            {other: kind for other, kind in wanted.items() if limits.min <= other <= limits.max},
            filled,
            (max(value - _FARTHEST, int(limits.min)), min(value + _FARTHEST, int(limits.max))),
        )


def with_changed_weights(numbers: list[int], change: Callable[[Array], Array]) -> Edit:
    """The edit that changes the values of weights, by their numbers among ``named_tensors``."""

    def edit(fed: FedModel) -> FedModel | None:
        copy = fed.copied()
        tensors = list(named_tensors(copy.model))
        for number in numbers:
            values = values_of(tensors[number][1])
            if values is None or not set_values(tensors[number][1], change(values)):
                return None
        return copy

    return edit


_FLAGS = frozenset(
    {
        "keepdims", "transA", "transB", "ceil_mode", "count_include_pad", "fmod", "largest", "sorted",
        "select_last_index", "noop_with_empty_axes", "allowzero", "linear_before_reset", "input_forget",
        "exclusive", "reverse", "training_mode", "upper", "align_corners", "is_causal", "center_point_box",
        "antialias", "exclude_outside", "detect_positive", "detect_negative", "include_pad", "saturate", "onesided",
        "inverse", "layout", "storage_order", "interleaved", "periodic", "output_sequence", "is_case_sensitive",
        "new_axis", "broadcast", "is_test", "spatial", "batch_axis", "time_axis", "one_class", "zeros", "multi_class",
    }
)  # fmt: skip
"""Attributes that are 0 or 1."""

_TYPES = {"to", "dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision", "precision"}

_NOT_VARIED = SIZE_ATTRIBUTES - {"group"} | _TYPES | {"value", "sparse_value"}
"""Attributes with sizes, types and tensors, which are features of their own, or of which few numbers mean anything."""

_SIGNED = {
    "axis", "k", "start", "end", "ignore_index", "left_window_size", "right_window_size", "value_int", "maxsplit",
    "default_int64", "replaced_value_int64",
}  # fmt: skip
"""Integers that may be negative. Others are at least 1, or 0 if that is their default."""

_LEAST = {"strides": 1, "dilations": 1, "kernel_shape": 1, "pads": 0, "output_padding": 0}
"""The least numbers of lists that are no axes."""

_MOST_WORDS = 4


def _edit_of_node(place: Place, number: int, change: Callable[[onnx.NodeProto], bool]) -> Edit:
    """The edit that changes a node; impossible if ``change`` returns False."""

    def edited(fed: FedModel) -> FedModel | None:
        copy = fed.copied()
        return copy if change(graph_at(copy.model, place).node[number]) else None

    return edited


def _without(node: onnx.NodeProto, name: str) -> bool:
    """Remove an attribute of a node; returns whether it had it."""
    return walk.keep(node.attribute, lambda entry: entry.name != name)


def _with_value(node: onnx.NodeProto, name: str, value: Any) -> bool:
    """Set an attribute of a node; returns False for a value that no attribute can hold."""
    try:
        entry = onnx.helper.make_attribute(name, value)
    except (ValueError, TypeError, OverflowError):
        return False
    _without(node, name)
    node.attribute.append(entry)
    return True


def attribute_features(fed: FedModel) -> Iterator[Feature]:
    """Every attribute of operators that onnx knows, and integers that have a default and are not stated."""
    opsets = opsets_of(fed.model)
    nodes = list(every_node(fed.model))
    several = len({node.op_type for _, _, node in nodes}) < len(nodes)
    for place, number, node in nodes:
        schema = schema_of(node, opsets)
        if schema is None:
            continue
        title = f"{node.op_type} {node.name!r}" if several and node.name else str(node.op_type)
        for name in schema.attributes:
            edit = partial(_edit_of_node, place, number)
            feature = None if name in _NOT_VARIED else _feature(edit, node, schema.attributes[name], title)
            if feature is not None and feature.alternatives:
                is_explicit = any(entry.name == name for entry in node.attribute)
                yield replace(feature, is_explicit=is_explicit)


def _feature(
    edit: Callable[[Callable[[onnx.NodeProto], bool]], Edit],
    node: onnx.NodeProto,
    declared: onnx.defs.OpSchema.Attribute,
    title: str,
) -> Feature | None:
    def set_to(value: Any) -> Edit:
        return edit(partial(_with_value, name=declared.name, value=value))

    stated = next((entry for entry in node.attribute if entry.name == declared.name), None)
    if stated is not None and stated.ref_attr_name:
        return None
    default = _value(declared.default_value) if declared.default_value.name else None
    value = default if stated is None else _value(stated)
    if stated is None and not isinstance(value, int):
        return None
    name = f"{declared.name} of {title}"
    removal = []
    if stated is not None and not declared.required:
        number = default if isinstance(default, int) else None
        text = "left out" if default is None else f"left out ({_shown(default)})"
        removal = [
            Alternative(kind="left out", text=text, edit=edit(partial(_without, name=declared.name)), value=number)
        ]
    if isinstance(value, int) and declared.name in _FLAGS:
        written = Alternative(kind="written out", text=f"{value} (written out)", edit=set_to(value))
        opposite = int(not value)
        other = Alternative(kind="the other value", text=str(opposite), edit=set_to(opposite))
        second = replace(removal[0], value=None) if removal else written
        return Feature(what="attribute", name=name, present=str(value), alternatives=[other, second], is_closed=True)
    if isinstance(value, int):
        wanted = {value + 1: "one more", value - 1: "one less", 0: "zero", 2 * value: "doubled", -1: "minus one"}
        if isinstance(default, int) and not removal:
            wanted.setdefault(default, "default")
        least = value - _FARTHEST if declared.name in _SIGNED else min(value, 0 if default == 0 else 1)
        wanted = {other: kind for other, kind in wanted.items() if other >= least}
        limits = (max(value - _FARTHEST, least), value + _FARTHEST)
        feature = number_feature("attribute", name, value, wanted, set_to, limits)
        first, *changes = feature.alternatives
        return replace(feature, alternatives=[first, *removal, *changes])
    changes = [
        Alternative(
            kind=kind,
            text=_shown(other),
            edit=set_to(other),
            change=partial(np.full_like, fill_value=other) if isinstance(other, float) else None,
        )
        for kind, other in _other_values(declared.name, value)
    ]
    return Feature(
        what="attribute",
        name=name,
        present=_shown(value),
        alternatives=[*changes, *removal],
        values=np.array([value]) if isinstance(value, float) else None,
        is_closed=isinstance(value, bytes) and len(changes) < _MOST_WORDS,
    )


def _value(entry: onnx.AttributeProto) -> Any:
    """The value of an attribute; None if onnx does not know its type."""
    try:
        return onnx.helper.get_attribute_value(entry)
    except ValueError:
        return None


def _other_values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Other values of an attribute that is not an integer, each with the kind of change."""
    if isinstance(value, float):
        wanted = {
            "halved": value / 2, "doubled": 2 * value, "zero": 0.0, "one": 1.0, "negated": -value,
            "a little more": value * 1.002, "a little less": value * 0.998,
        }  # fmt: skip
        yield from ((kind, other) for kind, other in wanted.items() if other != value)
    elif isinstance(value, bytes):
        words = sorted(CHOICES.get(name, frozenset()) - {value.decode("utf-8", "replace")})
        yield from ((word, word) for word in words[:_MOST_WORDS])
    elif isinstance(value, list) and value and all(isinstance(each, int) for each in value):
        lists = {
            "one more": [each + 1 for each in value], "one less": [each - 1 for each in value], "reversed": value[::-1],
            "ones": [1] * len(value), "zeros": [0] * len(value), "doubled": [2 * each for each in value],
        }  # fmt: skip
        least = _LEAST.get(name, -math.inf)
        yield from ((kind, other) for kind, other in lists.items() if other != value and min(other) >= least)


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
