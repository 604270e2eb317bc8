"""Normalizations, of layers, batches, groups and instances, and Softmax and LogSoftmax."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.questions.workarounds.spellings.site import FLOAT, FLOATS, Family, Site

_STAGE = "all values that stay finite when squared"
_CENTERED = "x - ReduceMean(x, axes=axes)"
_INVERSE = "Reciprocal(Sqrt(ReduceMean(x * x, axes=axes) + epsilon))"
"""1 / sqrt(mean(x * x) + epsilon), written in a way that fusions do not look for."""

NORMALIZATION = Family()


def normalized(at: Site, x: str, axes: Sequence[int], epsilon: float, like: str) -> str:
    """(x - mean) / sqrt(variance + epsilon) over some axes; ``like`` is a tensor of the same type."""
    return at.write(f"x = {_CENTERED}; x * {_INVERSE}", like, x=x, axes=axes, epsilon=epsilon)


def _stage(at: Site, x: str) -> tuple[str, int, list[int]]:
    """The input in the type in which the first stage computes, that type, and the axes that are normalized."""
    elem, rank = at.attribute("stash_type", FLOAT), at.rank(x)
    at.require(at.is_float(x) and elem in FLOATS)
    staged = x if at.elem(x) == elem else at.new("Cast", x, to=elem)
    return staged, elem, list(range(at.attribute("axis", -1) % rank, rank))


@NORMALIZATION.by(
    "layer-normalization-as-operators",
    "LayerNormalization",
    writes="ReduceMean, Sub, Mul, ReduceMean, Add, Sqrt, Reciprocal, Mul, Mul and Add",
    cost="about eight passes over the tensor instead of one",
    holds=_STAGE,
    least_opset=17,
)
def _(at: Site) -> list[str]:
    x, scale, bias = at.inputs(3)
    staged, elem, axes = _stage(at, x)
    mean = at.new("ReduceMean", staged, axes=axes)
    centered = at.new("Sub", staged, mean)
    inverse = at.write(_INVERSE, elem, x=centered, axes=axes, epsilon=at.attribute("epsilon", 1e-5))
    result = at.new("Mul", centered, inverse)
    result = at.new("Mul", result if staged == x else at.new("Cast", result, to=at.elem(x)), scale)
    return [at.new("Add", result, bias) if bias else result, mean, inverse]


@NORMALIZATION.by(
    "operators-as-layer-normalization",
    *("Add", "Mul", "Div"),
    matches="a decomposed LayerNormalization",
    writes="LayerNormalization",
    cost="nothing: one pass instead of several",
    holds=f"{_STAGE}; float32, the last axes, keepdims=1",
    least_opset=17,
)
def _(at: Site) -> str:
    end, bias, scale = at, "", ""
    if end.node.op_type == "Add":
        end, bias = end.either("Mul", "Div")
    if end.node.op_type == "Mul" and not any(at.is_by(name, "Reciprocal") for name in end.node.input):
        end, scale = end.either("Mul", "Div")
    centered, deviation = end.inputs(2)
    if end.node.op_type == "Mul":
        inverse, centered = end.either("Reciprocal")
        deviation = inverse.node.input[0]
    x, mean = at.maker(centered, "Sub").inputs(2)
    variance, epsilon = at.maker(at.maker(deviation, "Sqrt").node.input[0], "Add").inputs(2)
    if at.scope.value_of(epsilon) is None:
        variance, epsilon = epsilon, variance
    square = at.maker(variance, "ReduceMean").node.input[0]
    at.require(at.value(epsilon).ndim <= at.rank(x) and _is_square(at.maker(square, "Pow", "Mul"), centered))
    axes = _reduced_axes(at, mean, "ReduceMean", x)
    at.require(axes == _reduced_axes(at, variance, "ReduceMean", square) == list(range(axes[0], at.rank(x))))
    at.require(at.elem(x) == FLOAT and all(at.dims(name) == at.shape(x)[axes[0] :] for name in (scale, bias) if name))
    if not scale:
        import numpy as np

        scale = at.constant(np.ones(at.dims(x)[axes[0] :]), FLOAT)
    return at.new("LayerNormalization", x, scale, bias, axis=axes[0], epsilon=at.single(epsilon))


def _is_square(made: Site, of: str) -> bool:
    one, other = made.inputs(2)
    return one == of and (other == of if made.node.op_type == "Mul" else made.single(other) == 2)


def _reduced_axes(at: Site, name: str, operator: str, of: str) -> list[int]:
    """The axes over which an operator has reduced a tensor to another, which keeps them."""
    made = at.maker(name, operator)
    axes = made.axes(at.rank(of)) or []
    at.require(made.node.input[0] == of and made.attribute("keepdims", 1) == 1 and bool(axes))
    return axes


@NORMALIZATION.by(
    "rms-normalization-as-operators",
    "RMSNormalization",
    writes="Mul, ReduceMean, Add, Sqrt, Reciprocal, Mul and Mul",
    cost="about six passes over the tensor instead of one",
    holds=_STAGE,
    least_opset=23,
)
def _(at: Site) -> str:
    x, scale = at.inputs(2)
    staged, elem, axes = _stage(at, x)
    result = at.write(f"x * {_INVERSE}", elem, x=staged, axes=axes, epsilon=at.attribute("epsilon", 1e-5))
    return at.new("Mul", result if staged == x else at.new("Cast", result, to=at.elem(x)), scale)


def _affine(at: Site, x: str, scale: str, bias: str, rank: int) -> str:
    """X * scale + bias, both one number for each channel."""
    behind = list(range(1, rank - 1))
    return at.new("Add", at.new("Mul", x, at.unsqueezed(scale, behind)), at.unsqueezed(bias, behind))


@NORMALIZATION.by(
    "instance-normalization-as-operators",
    "InstanceNormalization",
    writes="ReduceMean, Sub, Mul, ReduceMean, Add, Sqrt, Reciprocal, Mul, Mul and Add",
    cost="about eight passes over the tensor instead of one",
    holds=_STAGE,
)
def _(at: Site) -> str:
    x, scale, bias = at.inputs(3)
    rank = at.rank(x)
    at.require(rank >= 3)
    return _affine(at, normalized(at, x, range(2, rank), at.attribute("epsilon", 1e-5), x), scale, bias, rank)


@NORMALIZATION.by(
    "group-normalization-as-operators",
    "GroupNormalization",
    writes="Reshape, the operators of a normalization, Reshape, Mul and Add",
    cost="about eight passes over the tensor instead of one",
    holds=f"{_STAGE}; float32, tensors that are not empty",
    least_opset=18,
)
def _(at: Site) -> str:
    x, scale, bias = at.inputs(3)
    rank, groups = at.rank(x), at.attribute("num_groups", 0)
    at.require(rank >= 3 and 0 not in at.shape(x) and groups > 0)
    at.require(at.elem(x) == at.attribute("stash_type", FLOAT) == FLOAT)
    grouped = normalized(at, at.reshaped(x, [0, groups, -1]), [2], at.attribute("epsilon", 1e-5), x)
    shape = at.new("Shape", x)
    if at.opset >= 21:
        return _affine(at, at.new("Reshape", grouped, shape), scale, bias, rank)
    return at.new("Reshape", _affine(at, grouped, scale, bias, 3), shape)


@NORMALIZATION.by(
    "batch-normalization-as-operators",
    "BatchNormalization",
    matches="BatchNormalization in inference",
    writes="Sub, Mul and Add, with a factor of the scale and the variance",
    cost="up to three passes over the tensor, where the engine would have folded it into a convolution",
    holds="all values; all of one type",
)
def _(at: Site) -> str:
    x, scale, bias, mean, variance = at.inputs(5)
    rank, epsilon = at.rank(x), at.attribute("epsilon", 1e-5)
    at.require(at.is_only_output() and not at.attribute("training_mode", 0) and at.attribute("spatial", 1) == 1)
    at.require(rank >= 2 and len({at.elem(name) for name in (x, scale, mean)}) == 1)
    factor = at.write("scale / Sqrt(variance + epsilon)", x, scale=scale, variance=variance, epsilon=epsilon)
    centered = at.new("Sub", x, at.unsqueezed(mean, list(range(1, rank - 1))))
    return _affine(at, centered, factor, bias, rank)


# Softmax and LogSoftmax.

_ALONG_ONE_AXIS_SINCE = 13
"""Before this opset Softmax takes all axes from ``axis`` on together."""
_ROUNDED = "all values; rounded differently"

SOFTMAX = Family()


def _axis(at: Site, x: str) -> int:
    """The one axis along which a node normalizes."""
    rank = at.rank(x)
    at.require(rank > 0 and at.is_float(x))
    axis: int = at.attribute("axis", -1 if at.opset >= _ALONG_ONE_AXIS_SINCE else 1)
    at.require(-rank <= axis < rank)
    at.require(at.opset >= _ALONG_ONE_AXIS_SINCE or axis % rank == rank - 1)
    return axis % rank


@SOFTMAX.by(
    "softmax-as-exp",
    "Softmax",
    writes="ReduceMax, Sub, Exp, ReduceSum and Div",
    cost="about five passes over the tensor instead of one",
    holds=_ROUNDED,
)
def _(at: Site) -> str:
    text = "powers = Exp(x - ReduceMax(x, axes=axes)); powers / ReduceSum(powers, axes=axes)"
    return at.write(text, x=at.node.input[0], axes=[_axis(at, at.node.input[0])])


@SOFTMAX.by(
    "log-softmax-as-log",
    "LogSoftmax",
    writes="ReduceMax, Sub, Exp, ReduceSum, Log and Sub",
    cost="about five passes over the tensor instead of one",
    holds=_ROUNDED,
)
def _(at: Site) -> str:
    text = "shifted = x - ReduceMax(x, axes=axes); shifted - Log(ReduceSum(Exp(shifted), axes=axes))"
    return at.write(text, x=at.node.input[0], axes=[_axis(at, at.node.input[0])])


@SOFTMAX.by(
    "softmax-on-the-last-axis",
    *("Softmax", "LogSoftmax"),
    matches="Softmax or LogSoftmax along another axis than the last",
    writes="the same along the last axis between two Transposes",
    cost="two copies of the tensor",
    holds=_ROUNDED,
    least_opset=_ALONG_ONE_AXIS_SINCE,
)
def _(at: Site) -> str:
    (x,) = at.inputs(1)
    axis, rank = _axis(at, x), at.rank(x)
    at.require(axis != rank - 1)
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return at.transposed(at.copy([at.transposed(x, order)], axis=-1), order)


@SOFTMAX.by(
    "exp-as-softmax",
    "Div",
    matches="a decomposed Softmax",
    writes="Softmax",
    cost="nothing: one pass instead of five",
    holds=_ROUNDED,
    least_opset=_ALONG_ONE_AXIS_SINCE,
)
def _(at: Site) -> str:
    powers, total = at.inputs(2)
    x, greatest = at.maker(at.maker(powers, "Exp").node.input[0], "Sub").inputs(2)
    axes = _reduced_axes(at, greatest, "ReduceMax", x)
    at.require(at.is_float(x) and len(axes) == 1 and axes == _reduced_axes(at, total, "ReduceSum", powers))
    return at.new("Softmax", x, axis=axes[0])
