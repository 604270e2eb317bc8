"""What of an attribute belongs to a pattern: its kind, and no size or value.

The rule, in the order in which it is applied (docs/explanation/fingerprints.md tells it to people):

1. Sizes and values are left out by name (``kernel_shape``, ``hidden_size``, ``epsilon``, ...): weights say the same.
   Of a value that is a tensor, the element type is kept.
2. Axes become ``first``, ``last`` or ``inner``, counted in the rank of what is read, also where they are the default.
3. What says the default of the operator's schema, or that nothing is padded, strided or dilated, is left out.
4. Element types are named; texts and ``perm`` are kept as they are; letters of an equation are those of their order.
5. Of strides, pads, output_shape and their like it is told that there are some.
6. Of any other number only the kind is kept: 0, 1, ``more``, ``negative``, ``fraction``; of a list, the kinds in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

from biopsy.model.schema import schema_of
from biopsy.model.tensor_type import DTYPE_OF_ELEM

if TYPE_CHECKING:
    import onnx

SIZES = frozenset(
    {
        "kernel_shape", "hidden_size", "split", "num_outputs", "blocksize", "block_size", "k", "num_heads", "shape",
        "q_num_heads", "kv_num_heads", "num_groups", "output_size", "sample_size", "bits", "K", "N",
        "pooled_shape", "output_height", "output_width", "height", "width", "size", "onesided_length", "max_length",
    }
)  # fmt: skip
"""Attributes that are sizes."""

VALUES = frozenset({"epsilon", "seed", "ratio", "scale", "value", "values", "high", "low", "mean", "spatial_scale"})
"""Attributes that are values as weights are."""

AXES = frozenset({"axis", "axes", "batch_axis", "time_axis", "scan_input_axes", "scan_output_axes"})
"""Attributes, and inputs that are constants, that say axes."""

_TYPES = frozenset({"to", "dtype", "output_dtype", "stash_type", "detect_type", "softmax_precision", "precision"})
_EXACT = frozenset({"perm"})
_NEUTRAL: Mapping[str, int] = {"strides": 1, "dilations": 1, "pads": 0, "output_padding": 0}
_TOLD_TO_BE_THERE = frozenset({*_NEUTRAL, "output_shape"})
_LONGEST_TEXT = 60
_SAFE = "_-.:+"


def attribute_text(attribute: onnx.AttributeProto, schema: onnx.defs.OpSchema | None, rank: int | None) -> str | None:
    """``name=value`` of an attribute that matters; None for one that does not, and for a body.

    ``rank`` is that of the first tensor that the node reads; None where nobody knows.
    """
    name = attribute.name
    if attribute.HasField("g") or attribute.graphs:
        return None
    if name in SIZES or name in VALUES:
        return _type_of_value(attribute)
    if attribute.ref_attr_name:
        return f"{word(name)}=argument"
    if name in AXES:
        return f"{word(name)}={axes_text(_numbers(attribute), rank)}"
    if _is_default(attribute, schema) or _is_neutral(attribute):
        return None
    return f"{word(name)}={_value(attribute)}"


def _type_of_value(attribute: onnx.AttributeProto) -> str | None:
    """Of a value that is a tensor its element type, which is that of what is made; float32 is the default."""
    if attribute.type != attribute.TENSOR or attribute.t.data_type == attribute.t.FLOAT:
        return None
    return f"{word(attribute.name)}={element_type(attribute.t.data_type)}"


def default_axes(node: onnx.NodeProto, schema: onnx.defs.OpSchema | None, rank: int | None) -> Iterable[str]:
    """Axes that a node does not say, since they are the default: written as if it had."""
    if schema is None:
        return
    given = {attribute.name for attribute in node.attribute}
    for name, one in schema.attributes.items():
        if name in AXES and name not in given and one.default_value.name:
            yield f"{word(name)}={axes_text(_numbers(one.default_value), rank)}"


def axes_text(axes: Iterable[int], rank: int | None) -> str:
    """``first``, ``last`` and ``inner``, with a plus between them; ``none`` for no axis."""
    return "+".join(sorted({_axis(axis, rank) for axis in axes})) or "none"


def _axis(axis: int, rank: int | None) -> str:
    behind = axis - rank if rank is not None and axis >= 0 else axis
    if behind == -1:
        return "last"
    before = axis + rank if rank is not None and axis < 0 else axis
    return "first" if before == 0 else "inner"


def operator_schema(node: onnx.NodeProto, opsets: Mapping[str, int]) -> onnx.defs.OpSchema | None:
    """The schema of a node's operator; None for what onnx does not know."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return schema_of(node.op_type, opsets.get(domain, 1), domain)


def word(text: str) -> str:
    """A stranger's text as one word without brackets, commas and spaces; what is long is cut to a digest of it."""
    if len(text) > _LONGEST_TEXT:
        from hashlib import sha256

        return f"text-{sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"
    return quote(text, safe=_SAFE, errors="replace") or "%"


def element_type(elem: int) -> str:
    """An element type by name."""
    return DTYPE_OF_ELEM.get(elem, f"type{elem}")


# Values


def _numbers(attribute: onnx.AttributeProto) -> list[int]:
    return list(attribute.ints) if attribute.ints else [attribute.i]


def _is_default(attribute: onnx.AttributeProto, schema: onnx.defs.OpSchema | None) -> bool:
    known = None if schema is None else schema.attributes.get(attribute.name)
    if known is None or not known.default_value.name:
        return False
    usual = known.default_value
    return all(getattr(usual, field) == getattr(attribute, field) for field in ("i", "f", "s", "ints", "floats"))


def _is_neutral(attribute: onnx.AttributeProto) -> bool:
    """Whether a list says of each axis that nothing is done."""
    usual = _NEUTRAL.get(attribute.name)
    return usual is not None and all(number == usual for number in attribute.ints)


def _value(attribute: onnx.AttributeProto) -> str:
    kind = attribute.type
    if attribute.name in _TOLD_TO_BE_THERE:
        return "some"
    if attribute.name in _EXACT:
        return "-".join(map(str, attribute.ints))
    if attribute.name in _TYPES and kind == attribute.INT:
        return element_type(attribute.i)
    if kind in (attribute.INT, attribute.FLOAT):
        return _kind(attribute.i if kind == attribute.INT else attribute.f)
    if kind in (attribute.INTS, attribute.FLOATS):
        return "+".join(sorted({_kind(number) for number in (*attribute.ints, *attribute.floats)})) or "none"
    if kind == attribute.STRING:
        return _text(attribute.name, attribute.s)
    if kind == attribute.STRINGS:
        return "+".join(_text(attribute.name, one) for one in attribute.strings[:_LONGEST_TEXT]) or "none"
    if kind == attribute.TENSOR:
        return element_type(attribute.t.data_type)
    return f"kind{kind}"


def _kind(number: float) -> str:
    if number in (0, 1):
        return str(int(number))
    if not math.isfinite(number):
        return "not-finite"
    if number < 0:
        return "negative"
    return "more" if number > 1 else "fraction"


def _text(name: str, value: bytes) -> str:
    text = value.decode("utf-8", "replace")
    if name == "equation":  # of Einsum: its letters are names
        letters = dict.fromkeys(re.findall(r"[A-Za-z]", text))
        letter_of = {letter: chr(ord("a") + number % 26) for number, letter in enumerate(letters)}
        text = re.sub(r"[A-Za-z]", lambda found: letter_of[found[0]], text.replace(" ", ""))
    return word(text)
