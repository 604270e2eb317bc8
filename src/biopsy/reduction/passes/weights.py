"""Weights filled with values that say nothing of the original ones.

A filled weight stays an initializer of the same type and shape, with its values inside the model. ONNX has no short
form for a tensor of equal values that every engine reads: a sparse initializer is one for ONNX Runtime alone, and a
ConstantOfShape would be another graph. So this makes a file that holds no secret and that compresses to almost
nothing; it is ``sizes`` that makes it small. Values and texts in attributes of ONNX's own operators are weights too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeAlias

from biopsy.model import walk
from biopsy.model.external import is_external
from biopsy.model.storage import raw_size
from biopsy.model.tensor_type import BOOL, INTEGERS, STRING
from biopsy.model.weights_file import MOST_INLINE
from biopsy.reduction.change import Change, ChangeSearch
from biopsy.reduction.passes.editing import copied
from biopsy.reduction.passes.fillings import (
    fill_attribute,
    may_fill,
    may_fill_attribute,
    numbered,
    ones,
    set_values,
    small_values,
)
from biopsy.reduction.passes.schemas import opsets_of, schema_of
from biopsy.search.subset import minimize_subset

if TYPE_CHECKING:
    import onnx

_MOST_OF_A_SHAPE = 16  # elements

UNNAMED = "a constant"
"""What a tensor without a name is called."""

Item: TypeAlias = tuple[Literal["tensor", "attribute"], int]
"""What can be filled: the number of a tensor, or of an attribute of one of ONNX's own operators, in the model."""


def weights(model: onnx.ModelProto) -> ChangeSearch:
    """Fill all floating weights with ones; those that must vary with small seeded values; integers are left alone.

    Integers are shapes, axes and indices more often than not. Texts are numbered.
    """
    items = _fillable(model)

    def filling(with_ones: bool, start: onnx.ModelProto, items: Sequence[Item]) -> Callable[[Sequence[Item]], Change]:
        what = "ones" if with_ones else "small values"

        def propose(kept: Sequence[Item]) -> Change:
            gone = [item for item in items if item not in kept]
            made = _filled(start, gone, with_ones)
            return Change(made, f"{len(gone)} of {len(items)} weights filled with {what}")

        return propose

    propose = filling(True, model, items)
    kept = yield from minimize_subset(items, propose)
    start = propose(kept).model if len(kept) < len(items) else model
    yield from minimize_subset(kept, filling(False, start, kept))


def weights_left(model: onnx.ModelProto) -> Sequence[str]:
    """Which weights still have values of their own: those that could not be filled, and integers of some size."""
    return (
        *_left("weights    not replaced, since the failure or its check needs their values", values_left(model)),
        *_left("weights    integers are never replaced", tables(model)),
    )


def _left(what: str, names: list[str]) -> list[str]:
    return [f"{what}: {', '.join(names)}"] if names else []


def values_left(model: onnx.ModelProto) -> list[str]:
    """What could be filled and is not: names of tensors, and attributes such as "n3.coefficients"."""
    found = [tensor.name or UNNAMED for tensor in walk.tensors(model) if may_fill(tensor)]
    found += [
        f"{node.name or node.op_type}.{attribute.name}"
        for node, attribute in _attributes(model)
        if may_fill_attribute(attribute)
    ]
    return list(dict.fromkeys(found))


def tables(model: onnx.ModelProto) -> list[str]:
    """Names of tensors of integers or booleans, more of them than a shape or a list of axes has."""
    return list(dict.fromkeys(tensor.name or UNNAMED for tensor in walk.tensors(model) if _is_table(tensor)))


def _is_table(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in INTEGERS | {BOOL} and math.prod(tensor.dims) > _MOST_OF_A_SHAPE


def _attributes(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, onnx.AttributeProto]]:
    """The attributes of ONNX's own operators; what those of others mean nobody knows."""
    opsets = opsets_of(model)
    for node in walk.nodes(model):
        if node.attribute and schema_of(node, opsets) is not None:
            yield from ((node, attribute) for attribute in node.attribute)


def _fillable(model: onnx.ModelProto) -> list[Item]:
    """What can be filled: tensors, largest first, no more than one file can hold; then attributes."""
    tensors = {place: tensor for place, tensor in enumerate(walk.tensors(model)) if may_fill(tensor)}
    sizes = {place: raw_size(tensor.data_type, tensor.dims) or 0 for place, tensor in tensors.items()}
    left = MOST_INLINE - model.ByteSize()
    found: list[Item] = []
    for place in sorted(sizes, key=lambda place: (-sizes[place], place)):
        outside = is_external(tensors[place])
        if not outside or sizes[place] <= left:
            found.append(("tensor", place))
            left -= sizes[place] if outside else 0
    attributes = enumerate(attribute for _, attribute in _attributes(model))
    return found + [("attribute", place) for place, attribute in attributes if may_fill_attribute(attribute)]


def _filled(model: onnx.ModelProto, items: Sequence[Item], with_ones: bool) -> onnx.ModelProto:
    made = copied(model)
    tensors, attributes = list(walk.tensors(made)), [attribute for _, attribute in _attributes(made)]
    texts = numbered(chain(*(_texts_of(tensors, attributes, item) for item in _fillable(model))))
    if not with_ones:
        texts = {}  # they have been tried
    for kind, place in items:
        if kind == "attribute":
            fill_attribute(attributes[place], texts, with_ones=with_ones)
        else:
            _fill_tensor(tensors[place], texts, with_ones)
    return made


def _texts_of(
    tensors: Sequence[onnx.TensorProto], attributes: Sequence[onnx.AttributeProto], item: Item
) -> Iterator[bytes]:
    kind, place = item
    if kind == "tensor":
        yield from tensors[place].string_data
    else:
        yield from (attributes[place].s, *attributes[place].strings)


def _fill_tensor(tensor: onnx.TensorProto, texts: dict[bytes, bytes], with_ones: bool) -> None:
    if tensor.data_type == STRING:
        tensor.string_data[:] = [texts.get(text, text) for text in tensor.string_data]
        return
    data = ones(tensor) if with_ones else small_values(tensor)
    if data is not None:
        set_values(tensor, tensor.dims, data)
