"""Attributes that may vary: numbers, lists of them, and words, written out or left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from biopsy.questions.variation.features import Alternative, Edit, Feature, FedModel, whole_number
from biopsy.reduction.passes.common import Place, every_node, graph_at, keep_only, opsets_of, schema_of
from biopsy.reduction.passes.weights import CHOICES, SIZE_ATTRIBUTES

if TYPE_CHECKING:
    import onnx

_FLAGS = frozenset(
    {
        "keepdims", "transA", "transB", "ceil_mode", "count_include_pad", "fmod", "largest", "sorted",
        "select_last_index", "noop_with_empty_axes", "allowzero", "linear_before_reset", "input_forget",
        "exclusive", "reverse", "training_mode", "upper", "align_corners", "is_causal", "center_point_box",
        "antialias", "exclude_outside", "detect_positive", "detect_negative", "include_pad",
    }
)  # fmt: skip
"""Attributes that are 0 or 1."""

_NOT_VARIED = SIZE_ATTRIBUTES - {"group"} | {"to", "dtype", "value", "sparse_value"}
"""Sizes, types and tensors are features of their own."""

_MOST_WORDS = 4
_FARTHEST = 4
"""How far from the present a number is looked for."""


@dataclass(frozen=True)
class AttributePlace:
    """An attribute: the graph, the number of the node, the name."""

    place: Place
    number: int
    name: str

    def edit(self, change: Callable[[onnx.NodeProto], bool]) -> Edit:
        """The edit that changes the node of the attribute; it cannot be made where ``change`` says so."""

        def edited(fed: FedModel) -> FedModel | None:
            made = fed.copied()
            return made if change(graph_at(made.model, self.place).node[self.number]) else None

        return edited

    def set_to(self, value: Any) -> Edit:
        """The edit that gives it another value."""

        def change(node: onnx.NodeProto) -> bool:
            from onnx import helper

            try:
                entry = helper.make_attribute(self.name, value)
            except (ValueError, TypeError, OverflowError):  # a number that no attribute can hold
                return False
            keep_only(node.attribute, lambda entry: entry.name != self.name)
            node.attribute.append(entry)
            return True

        return self.edit(change)

    @property
    def left_out(self) -> Edit:
        """The edit that leaves it out."""
        return self.edit(lambda node: keep_only(node.attribute, lambda entry: entry.name != self.name))


def attribute_features(fed: FedModel) -> Iterator[Feature]:
    """Every attribute of operators that onnx knows, and whole numbers that are left out and have a default."""
    opsets = opsets_of(fed.model)
    nodes = [(place, number, node) for place, number, node in every_node(fed.model)]
    several = len({node.op_type for _, _, node in nodes}) < len(nodes)
    for place, number, node in nodes:
        schema = schema_of(node, opsets)
        if schema is None:
            continue
        title = f"{node.op_type} {node.name!r}" if several and node.name else str(node.op_type)
        for name in schema.attributes:
            attribute = AttributePlace(place, number, name)
            feature = None if name in _NOT_VARIED else _feature(attribute, node, schema.attributes[name], title)
            if feature is not None and feature.alternatives:
                is_given = any(entry.name == name for entry in node.attribute)
                yield replace(feature, is_given=is_given)


def _feature(
    place: AttributePlace, node: onnx.NodeProto, known: onnx.defs.OpSchema.Attribute, title: str
) -> Feature | None:
    given = next((entry for entry in node.attribute if entry.name == place.name), None)
    if given is not None and given.ref_attr_name:
        return None
    default = _value(known.default_value) if known.default_value.name else None
    value = default if given is None else _value(given)
    if given is None and not isinstance(value, int):
        return None
    name = f"{place.name} of {title}"
    removal = []
    if given is not None and not known.required:
        number = default if isinstance(default, int) else None
        text = "left out" if default is None else f"left out ({_shown(default)})"
        removal = [Alternative(kind="left out", text=text, edit=place.left_out, value=number)]
    if isinstance(value, int) and place.name in _FLAGS:
        written = Alternative(kind="written out", text=f"{value} (written out)", edit=place.set_to(value))
        other = Alternative(kind="the other value", text=str(1 - value), edit=place.set_to(1 - value))
        second = replace(removal[0], value=None) if removal else written
        return Feature(what="attribute", name=name, present=str(value), alternatives=[other, second])
    if isinstance(value, int):
        wanted = {value + 1: "one more", value - 1: "one less", 0: "zero", 2 * value: "doubled", -1: "minus one"}
        if isinstance(default, int) and not removal:
            wanted.setdefault(default, "default")
        limits = (value - _FARTHEST, value + _FARTHEST)
        number_feature = whole_number("attribute", name, value, wanted, place.set_to, limits)
        first, *changes = number_feature.alternatives
        return replace(number_feature, alternatives=[first, *removal, *changes])
    others = _other_values(place.name, value)
    changes = [Alternative(kind=kind, text=_shown(other), edit=place.set_to(other)) for kind, other in others]
    return Feature(what="attribute", name=name, present=_shown(value), alternatives=[*changes, *removal])


def _value(entry: onnx.AttributeProto) -> Any:
    """What an attribute holds; None if it is of no type that onnx knows."""
    from onnx import helper

    try:
        return helper.get_attribute_value(entry)
    except ValueError:
        return None


def _other_values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Other values of an attribute that is no whole number, each with the kind of the change."""
    if isinstance(value, float):
        wanted = {"halved": value / 2, "doubled": 2 * value, "zero": 0.0, "one": 1.0, "negated": -value}
        yield from ((kind, other) for kind, other in wanted.items() if other != value)
    elif isinstance(value, bytes):
        words = sorted(CHOICES.get(name, frozenset()) - {value.decode("utf-8", "replace")})
        yield from ((word, word) for word in words[:_MOST_WORDS])
    elif isinstance(value, list) and value and all(isinstance(one, int) for one in value):
        lists = {
            "one more": [one + 1 for one in value], "one less": [one - 1 for one in value], "reversed": value[::-1],
            "ones": [1] * len(value), "zeros": [0] * len(value), "doubled": [2 * one for one in value],
        }  # fmt: skip
        yield from ((kind, other) for kind, other in lists.items() if other != value)


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
