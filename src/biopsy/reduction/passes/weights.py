"""Passes that fill weights with neutral values, and that make sizes in shapes and weights smaller."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, Literal, TypeAlias

from biopsy.model import walk
from biopsy.model.external import is_external
from biopsy.model.tensor_type import BOOL, FLOATS, INTEGERS, STRING, raw_size
from biopsy.model.weights_file import MOST_INLINE
from biopsy.reduction.passes.common import (
    Change,
    ChangeSearch,
    copied,
    is_consistent,
    leave_out,
    opsets_of,
    refresh_types,
    schema_of,
)
from biopsy.slow_imports import np, onnx

_MOST_OF_A_SHAPE = 16  # elements

UNNAMED = "a constant"
"""The name of a tensor without a name in messages."""

FillableItem: TypeAlias = tuple[Literal["tensor", "attribute"], int]
"""A part that can be filled: the number of a tensor in the model, or of an attribute of a standard operator."""


def weights(model: onnx.ModelProto) -> ChangeSearch:
    """Fill floating-point weights with ones, and the others with small seeded values; replace texts by numbered ones.

    Integers stay, since they are usually shapes, axes or indices.
    """

    def filled(start: onnx.ModelProto, most: int, gone: Sequence[FillableItem], *, with_ones: bool) -> Change:
        what = "ones" if with_ones else "small values"
        return Change(_filled(start, gone, with_ones), f"{len(gone)} of {most} weights filled with {what}")

    items = _fillable(model)
    gone = yield from leave_out(items, partial(filled, model, len(items), with_ones=True))
    start = filled(model, len(items), gone, with_ones=True).model if gone else model
    others = [item for item in items if item not in gone]
    yield from leave_out(others, partial(filled, start, len(others), with_ones=False))


def weights_left(model: onnx.ModelProto) -> Sequence[str]:
    """Lines on the weights that still have their own values: those that could not be filled, and integers."""
    names_of = {
        "weights    not replaced, since the failure or its check needs their values": values_left(model),
        "weights    integers are never replaced": tables(model),
    }
    return tuple(f"{what}: {', '.join(names)}" for what, names in names_of.items() if names)


def values_left(model: onnx.ModelProto) -> list[str]:
    """The fillable parts that are not filled: names of tensors, and attributes such as "n3.coefficients"."""
    names = [tensor.name or UNNAMED for tensor in walk.tensors(model) if may_fill(tensor)]
    names += [
        f"{node.name or node.op_type}.{attribute.name}"
        for node, attribute in _attributes(model)
        if may_fill_attribute(attribute)
    ]
    return list(dict.fromkeys(names))


def tables(model: onnx.ModelProto) -> list[str]:
    """Names of tensors with more integers or booleans than a shape or a list of axes has."""
    names = (
        tensor.name or UNNAMED
        for tensor in walk.tensors(model)
        if tensor.data_type in INTEGERS | {BOOL} and math.prod(tensor.dims) > _MOST_OF_A_SHAPE
    )
    return list(dict.fromkeys(names))


def _attributes(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, onnx.AttributeProto]]:
    """The attributes of standard operators; the meaning of others is unknown."""
    opsets = opsets_of(model)
    for node in walk.nodes(model):
        if node.attribute and schema_of(node, opsets) is not None:
            yield from ((node, attribute) for attribute in node.attribute)


def _fillable(model: onnx.ModelProto) -> list[FillableItem]:
    """The parts that can be filled: tensors, the largest first, as far as one file can hold them; then attributes."""
    tensors = {place: tensor for place, tensor in enumerate(walk.tensors(model)) if may_fill(tensor)}
    sizes = {place: raw_size(tensor.data_type, tensor.dims) or 0 for place, tensor in tensors.items()}
    free_bytes = MOST_INLINE - model.ByteSize()
    items: list[FillableItem] = []
    for place in sorted(sizes, key=lambda place: (-sizes[place], place)):
        outside = is_external(tensors[place])
        if not outside or sizes[place] <= free_bytes:
            items.append(("tensor", place))
            free_bytes -= sizes[place] if outside else 0
    attributes = enumerate(attribute for _, attribute in _attributes(model))
    return items + [("attribute", place) for place, attribute in attributes if may_fill_attribute(attribute)]


def _filled(model: onnx.ModelProto, items: Sequence[FillableItem], with_ones: bool) -> onnx.ModelProto:
    result = copied(model)
    tensors, attributes = list(walk.tensors(result)), [attribute for _, attribute in _attributes(result)]
    texts: dict[bytes, bytes] = {}
    if with_ones:  # numbered texts are tried together with ones only
        texts = numbered(
            text
            for kind, place in _fillable(model)
            for text in (
                tensors[place].string_data if kind == "tensor" else (attributes[place].s, *attributes[place].strings)
            )
        )
    for tensor in (tensors[place] for kind, place in items if kind == "tensor"):
        if tensor.data_type == STRING:
            tensor.string_data[:] = [texts.get(text, text) for text in tensor.string_data]
            continue
        data = ones(tensor) if with_ones else small_values(tensor)
        if data is not None:
            set_values(tensor, tensor.dims, data)
    for attribute in (attributes[place] for kind, place in items if kind == "attribute"):
        count = len(attribute.floats)
        attribute.floats[:] = [1.0] * count if with_ones else small_numbers(count)
        if attribute.name in SCALARS and attribute.HasField("f"):
            attribute.f = 1.0
        if attribute.HasField("s"):
            attribute.s = texts.get(attribute.s, attribute.s)
        attribute.strings[:] = [texts.get(text, text) for text in attribute.strings]
    return result


_ONE = {
    1: b"\x00\x00\x80\x3f", 10: b"\x00\x3c", 11: b"\x00\x00\x00\x00\x00\x00\xf0\x3f", 16: b"\x80\x3f", 17: b"\x38",
    18: b"\x40", 19: b"\x3c", 20: b"\x40", 23: b"\x22", 24: b"\x7f",
}  # fmt: skip
"""Floating-point element type -> the number 1, little-endian; two of them for the type of four bits."""

_SEED = 20
_NEUTRAL_TEXT = re.compile(r"(s\d+)?")
_SIZES = frozenset({"scales", "width_scale", "height_scale"})
"""Floating-point attributes of Upsample that are sizes."""

SCALARS = frozenset({"value_float", "default_float", "replaced_value_float"})
"""Attributes with a single number that is a value, not a parameter of the operator."""


def set_values(tensor: onnx.TensorProto, dims: Sequence[int], data: bytes) -> None:
    """Give a tensor another shape and other raw values inside the model; its name and type stay."""
    tensor.CopyFrom(type(tensor)(name=tensor.name, data_type=tensor.data_type, dims=list(dims), raw_data=data))


def ones(tensor: onnx.TensorProto) -> bytes:
    """The raw values of a floating-point tensor filled with ones."""
    size = raw_size(tensor.data_type, tensor.dims) or 0
    one = _ONE[tensor.data_type]
    return one * (size // len(one))


def small_values(tensor: onnx.TensorProto) -> bytes | None:
    """Raw multiples of 1/8 from -1 to 1, the same for all tensors of a size; None for types narrower than 16 bits."""
    dtype = {1: "<f4", 10: "<f2", 11: "<f8", 16: "<f4"}.get(tensor.data_type)
    if dtype is None:
        return None
    values = np.array(small_numbers(math.prod(tensor.dims)), dtype)
    if tensor.data_type == 16:  # the upper half of a float32 whose lower half is zero
        return (values.view("<u4") >> 16).astype("<u2").tobytes()
    return values.tobytes()


def small_numbers(count: int) -> list[float]:
    """The numbers of ``small_values`` as a list."""
    return (np.random.default_rng(_SEED).integers(-8, 9, count) / 8).tolist()  # type: ignore[no-any-return]


def is_filled(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor holds only ones, ``small_values`` or numbered texts, or nothing at all."""
    if tensor.data_type == STRING:
        return are_neutral(tensor.string_data)
    size = raw_size(tensor.data_type, tensor.dims)
    if size == 0:
        return True
    if tensor.data_type not in _ONE or not size or is_external(tensor):
        return False
    return tensor.raw_data in (ones(tensor), small_values(tensor))


def are_filled(numbers: Sequence[float]) -> bool:
    """Whether the numbers of an attribute are already plain: all ones, or ``small_numbers``."""
    return list(numbers) in ([1.0] * len(numbers), small_numbers(len(numbers)))


def may_fill(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor holds floating-point numbers or texts and is not filled."""
    return (tensor.data_type in _ONE or tensor.data_type == STRING) and not is_filled(tensor)


def may_fill_attribute(attribute: onnx.AttributeProto) -> bool:
    """Whether an attribute of a standard operator holds values or texts and is not filled."""
    if attribute.name in NOT_VALUES or attribute.ref_attr_name:
        return False
    has_numbers = attribute.name not in _SIZES and not are_filled(attribute.floats)
    has_number = attribute.name in SCALARS and attribute.HasField("f") and attribute.f != 1
    return has_numbers or has_number or not are_neutral((attribute.s, *attribute.strings))


def are_neutral(texts: Iterable[bytes]) -> bool:
    """Whether all texts are numbered ones or empty."""
    return all(_NEUTRAL_TEXT.fullmatch(text.decode("utf-8", "replace")) for text in texts)


def numbered(texts: Iterable[bytes]) -> dict[bytes, bytes]:
    """A numbered text for each text that is not neutral; equal texts get equal ones."""
    listed = list(dict.fromkeys(texts))
    taken = {text for text in listed if are_neutral([text])}
    free = (text for number in range(2 * len(listed)) if (text := b"s%d" % number) not in taken)
    return {text: next(free) for text in listed if text not in taken}


_MODES = """
    DCR CRD constant reflect edge wrap nearest linear cubic bilinear bicubic avg max TF IDF TFIDF circular standard
    nesterov
"""

CHOICES: dict[str, frozenset[str]] = {
    attribute: frozenset(words.split())
    for attribute, words in {
        "activation": "none silu swish",
        "activations": """
            Relu Tanh Sigmoid Affine LeakyRelu ThresholdedRelu ScaledTanh HardSigmoid Elu Softsign Softplus
        """,
        "aggregate_function": "AVERAGE SUM MIN MAX",
        "approximate": "none tanh",
        "auto_pad": "NOTSET SAME_UPPER SAME_LOWER VALID",
        "case_change_action": "NONE LOWER UPPER",
        "cast_to": "TO_FLOAT TO_STRING TO_INT64",
        "coordinate_transformation_mode": """
            half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric tf_half_pixel_for_nn
            tf_crop_and_resize output_half_pixel
        """,
        "direction": "forward reverse bidirectional LEFT RIGHT",
        "keep_aspect_ratio_policy": "stretch not_larger not_smaller",
        "kernel_type": "LINEAR POLY RBF SIGMOID",
        "map_form": "DENSE SPARSE",
        "mode": _MODES,
        "nearest_mode": "round_prefer_floor round_prefer_ceil floor ceil",
        "nodes_modes": "BRANCH_LEQ BRANCH_LT BRANCH_GTE BRANCH_GT BRANCH_EQ BRANCH_NEQ BRANCH_MEMBER LEAF",
        "norm": "MAX L1 L2",
        "padding_mode": "zeros border reflection",
        "pixel_format": "RGB BGR Grayscale",
        "post_transform": "NONE SOFTMAX LOGISTIC SOFTMAX_ZERO PROBIT",
        "reduction": "none mean sum add mul max min",
        "round_mode": "up down nearest",
        "to": "FLOAT UINT8 INT8 UINT16 INT16 INT32 INT64 STRING BOOL FLOAT16 DOUBLE UINT32 UINT64",
        "update_rule": "linear gated delta gated_delta",
    }.items()
}
"""Attribute of a standard operator -> the texts that the standard allows, which reveal nothing about the author."""

NOT_VALUES = frozenset({*CHOICES, "equation", "locale", "xs", "y", "zs"})
"""Attributes whose text is a parameter of the operator or a name, so that it cannot be replaced by another text."""

QUANTIZATION_KEYS = frozenset({"SCALE_TENSOR", "ZERO_POINT_TENSOR"})
"""The keys of quantization annotations in onnx.proto3."""

_SHAPE_INPUTS = frozenset(
    {("Reshape", 1), ("Expand", 1), ("ConstantOfShape", 0), ("Slice", 2), ("Resize", 3), ("Split", 1), ("Range", 1)}
)
"""Inputs of operators whose values are sizes."""

_LISTS = frozenset({6, 7})
"""int32 and int64: the types of lists of sizes."""

_MOST = 1 << 31
"""A larger number is not a size: exporters write "to the end" of a Slice as the largest integer."""

Resize: TypeAlias = Callable[[int], int]
"""Old size -> new size."""

SIZE_ATTRIBUTES = frozenset({"shape", "split", "value_ints", "output_shape", "sizes", "group", "hidden_size"})
"""Attributes whose values are sizes."""


def _resized(before: int, after: int, multiples: bool, size: int) -> int:
    """The new size of ``size`` if ``before``, and with ``multiples`` also its multiples, is replaced by ``after``."""
    is_replaced = size == before or (multiples and size > 0 and size % before == 0)
    return size // before * after if is_replaced else size


def sizes(model: onnx.ModelProto) -> ChangeSearch:
    """Replace each size by 1, 2 or its half, the largest first; then its multiples, too.

    A model that shape inference refutes is not proposed.
    """
    strict = is_consistent(model)
    for size in sorted(_sizes_in(model), reverse=True):
        if size not in _sizes_in(model):
            continue
        changes: list[Change] = []
        for multiples, after in product((False, True), dict.fromkeys((1, 2, size // 2))):
            resized = with_sizes(model, partial(_resized, size, after, multiples)) if after < size else None
            if resized is None or any(resized == change.model for change in changes):
                continue
            if not strict or is_consistent(resized):
                also = " and of its multiples" if multiples else ""
                changes.append(Change(resized, f"size {after} in place of {size}{also}"))
        answer = (yield changes) if changes else None
        model = answer or model


def _sizes_in(model: onnx.ModelProto) -> set[int]:
    sizes = {size for weight in model.graph.initializer if has_sizes(weight) for size in weight.dims}
    for info in model.graph.input:
        sizes.update(dim.dim_value for dim in info.type.tensor_type.shape.dim)
    lists = lists_of_sizes(model)
    for name, tensor in named_tensors(model):
        if name in lists and tensor.data_type in _LISTS and not is_external(tensor):
            sizes.update(onnx.numpy_helper.to_array(tensor).ravel().tolist())
    return {size for size in sizes if 1 < size < _MOST}


def has_sizes(weight: onnx.TensorProto) -> bool:
    """Whether the dimensions of a weight are sizes; that of a list of axes or sizes is only its length."""
    return weight.data_type != 7 or len(weight.dims) > 1


def with_sizes(model: onnx.ModelProto, resizing: Resize) -> onnx.ModelProto | None:
    """The model with new sizes in types, weights, lists of sizes and attributes; None if a weight cannot be resized.

    Weights are cut off at the end of a dimension. Floating-point weights in other files are replaced by ones.
    """
    result = copied(model)
    lists = lists_of_sizes(result)
    for graph in walk.graphs(result):
        for info in (*graph.input, *graph.output, *graph.value_info):
            for dim in info.type.tensor_type.shape.dim:
                if dim.HasField("dim_value"):
                    dim.dim_value = resizing(dim.dim_value)
        for attribute in (each for node in graph.node for each in node.attribute if each.name in SIZE_ATTRIBUTES):
            if attribute.i > 1:
                attribute.i = resizing(attribute.i)
            attribute.ints[:] = map(resizing, attribute.ints)
    for name, tensor in named_tensors(result):
        is_resized = _resize_values(tensor, resizing) if name in lists else _cut_off(tensor, resizing)
        if not is_resized:
            return None
    refresh_types(result)
    return result


def lists_of_sizes(model: onnx.ModelProto) -> set[str]:
    """Names of tensors whose values are sizes."""
    return {
        name
        for graph in walk.graphs(model)
        for node in graph.node
        for position, name in enumerate(node.input)
        if (node.op_type, position) in _SHAPE_INPUTS
    }


def named_tensors(model: onnx.ModelProto) -> Iterable[tuple[str, onnx.TensorProto]]:
    """The initializers and the values of Constant nodes, with their names."""
    for graph in walk.graphs(model):
        for weight in graph.initializer:
            yield weight.name, weight
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.HasField("t"):
                    yield node.output[0] if node.output else "", attribute.t


def _resize_values(tensor: onnx.TensorProto, resizing: Resize) -> bool:
    if is_external(tensor) or tensor.data_type not in _LISTS:
        return False
    before = onnx.numpy_helper.to_array(tensor)
    after = np.array([resizing(int(value)) for value in before.ravel()], before.dtype).reshape(before.shape)
    if not np.array_equal(before, after):
        tensor.CopyFrom(onnx.numpy_helper.from_array(after, tensor.name))
    return True


def _cut_off(tensor: onnx.TensorProto, resizing: Resize) -> bool:
    """Make a weight smaller; False if its values cannot be read."""
    dims = [resizing(size) for size in tensor.dims] if has_sizes(tensor) else list(tensor.dims)
    if dims == list(tensor.dims):
        return True
    if is_external(tensor):
        if tensor.data_type not in FLOATS:
            return False
        set_values(tensor, dims, ones(type(tensor)(data_type=tensor.data_type, dims=dims)))
        return True
    try:
        values: Any = onnx.numpy_helper.to_array(tensor)[tuple(slice(size) for size in dims)]
        smaller = onnx.numpy_helper.from_array(values.copy(), tensor.name)
    except Exception:  # a type that NumPy does not know, or values that do not fit the shape
        return False
    if smaller.data_type != tensor.data_type:
        return False
    tensor.CopyFrom(smaller)
    return True
