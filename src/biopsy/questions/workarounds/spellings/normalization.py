"""Normalizations, of layers, batches, groups and instances, and Softmax and LogSoftmax."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.questions.workarounds.spellings.site import FLOAT, FLOATS, Site, Spelling


def _centered(at: Site, x: str, axes: Sequence[int]) -> tuple[str, str]:
    """What is left without the mean over some axes, and the mean."""
    mean = at.reduced("ReduceMean", x, axes)
    return at.new("Sub", x, mean, like=x), mean


def _inverse_deviation(at: Site, centered: str, axes: Sequence[int], epsilon: float) -> str:
    """1 / sqrt(mean(d * d) + epsilon), written in a way that fusions do not look for."""
    variance = at.reduced("ReduceMean", at.new("Mul", centered, centered), axes)
    return at.new("Reciprocal", at.new("Sqrt", at.new("Add", variance, at.scalar(epsilon, centered))))


def normalized(at: Site, x: str, axes: Sequence[int], epsilon: float) -> str:
    """(x - mean) / sqrt(variance + epsilon) over some axes."""
    centered, _ = _centered(at, x, axes)
    return at.new("Mul", centered, _inverse_deviation(at, centered, axes, epsilon))


def _in_stage_type(at: Site, x: str) -> str:
    """The input in the type that the first stage computes in."""
    stage, own = at.attribute("stash_type", 1), at.elem(x)
    at.require(own in FLOATS and stage in FLOATS)
    return x if own == stage else _cast(at, x, stage)


def _cast(at: Site, x: str, elem: int) -> str:
    made = at.cast(x, elem)
    shape = at.kind(x).shape
    at.note(made, elem, shape)
    return made


def _layer_normalization_as_operators(at: Site) -> list[str]:
    x, scale, bias = at.inputs(3)
    rank = at.rank(x)
    axes = list(range(at.attribute("axis", -1) % rank, rank))
    staged = _in_stage_type(at, x)
    centered, mean = _centered(at, staged, axes)
    inverse = _inverse_deviation(at, centered, axes, at.attribute("epsilon", 1e-5))
    found = at.new("Mul", centered, inverse)
    found = at.new("Mul", found if staged == x else at.cast(found, at.elem(x)), scale)
    return [at.new("Add", found, bias) if bias else found, mean, inverse]


def _rms_normalization_as_operators(at: Site) -> str:
    x, scale = at.inputs(2)
    rank = at.rank(x)
    axes = list(range(at.attribute("axis", -1) % rank, rank))
    staged = _in_stage_type(at, x)
    found = at.new("Mul", staged, _inverse_deviation(at, staged, axes, at.attribute("epsilon", 1e-5)))
    return at.new("Mul", found if staged == x else at.cast(found, at.elem(x)), scale)


def _instance_normalization_as_operators(at: Site) -> str:
    x, scale, bias = at.inputs(3)
    rank = at.rank(x)
    at.require(rank >= 3)
    found = normalized(at, x, range(2, rank), at.attribute("epsilon", 1e-5))
    return _affine(at, found, scale, bias, rank)


def _affine(at: Site, x: str, scale: str, bias: str, rank: int) -> str:
    """X * scale + bias, both one number for each channel."""
    behind = list(range(1, rank - 1))
    return at.new("Add", at.new("Mul", x, at.unsqueezed(scale, behind)), at.unsqueezed(bias, behind))


def _group_normalization_as_operators(at: Site) -> str:
    x, scale, bias = at.inputs(3)
    rank, groups = at.rank(x), at.attribute("num_groups", 0)
    at.require(rank >= 3 and 0 not in at.shape(x) and groups > 0)
    at.require(at.elem(x) == at.attribute("stash_type", FLOAT) == FLOAT)
    grouped = at.reshaped(x, [0, groups, -1])
    at.note(grouped, at.elem(x), (None, groups, None))
    found = normalized(at, grouped, [2], at.attribute("epsilon", 1e-5))
    shape = at.new("Shape", x)
    if at.opset >= 21:
        return _affine(at, at.new("Reshape", found, shape), scale, bias, rank)
    return at.new("Reshape", _affine(at, found, scale, bias, 3), shape)


def _batch_normalization_as_operators(at: Site) -> str:
    x, scale, bias, mean, variance = at.inputs(5)
    rank = at.rank(x)
    at.require(at.is_only_output() and not at.attribute("training_mode", 0) and at.attribute("spatial", 1) == 1)
    at.require(rank >= 2 and len({at.elem(name) for name in (x, scale, mean)}) == 1)
    behind = list(range(1, rank - 1))
    deviation = at.new("Sqrt", at.new("Add", variance, at.scalar(at.attribute("epsilon", 1e-5), x)))
    factor = at.unsqueezed(at.new("Div", scale, deviation), behind)
    centered = at.new("Sub", x, at.unsqueezed(mean, behind))
    return at.new("Add", at.new("Mul", centered, factor), at.unsqueezed(bias, behind))


def _operators_as_layer_normalization(at: Site) -> str:
    x, epsilon, axes, scale, bias = _decomposed(at)
    first, dims = axes[0], at.shape(x)[axes[0] :]
    at.require(axes == list(range(first, at.rank(x))) and at.elem(x) == FLOAT)
    at.require(all(at.dims(name) == dims for name in (scale, bias) if name))
    if not scale:
        at.require(all(isinstance(dim, int) for dim in dims))
        import numpy as np

        scale = at.constant(np.ones(at.dims(x)[first:]), at.elem(x))
    return at.new("LayerNormalization", x, scale, bias, axis=first, epsilon=epsilon)


def _decomposed(at: Site) -> tuple[str, float, list[int], str, str]:
    """x, epsilon, axes, scale and bias of a decomposed LayerNormalization that ends at a node."""
    bias = scale = ""
    end = at
    if end.node.op_type == "Add":
        end, bias = _one_made_by(at, end, "Mul", "Div")
    if end.node.op_type == "Mul" and not _is_by_reciprocal(at, end):
        end, scale = _one_made_by(at, end, "Mul", "Div")
    centered, deviation = _quotient(at, end)
    sub = at.maker(centered, "Sub")
    x, mean = sub.inputs(2)
    axes = _mean_of(at, mean, x)
    sum_ = at.maker(at.maker(deviation, "Sqrt").inputs(1)[0], "Add")
    variance, epsilon = sum_.inputs(2)
    if at.scope.value_of(epsilon) is None:
        variance, epsilon = epsilon, variance
    at.require(at.value(epsilon).ndim <= at.rank(x))
    square = at.scope.producers.get(at.maker(variance, "ReduceMean").inputs(1)[0])
    at.require(square is not None)
    at.require(_mean_of(at, variance, at.maker(variance, "ReduceMean").inputs(1)[0]) == axes)
    _require_square(at, at.maker(variance, "ReduceMean").inputs(1)[0], centered)
    return x, at.single(epsilon), axes, scale, bias


def _one_made_by(at: Site, end: Site, *operators: str) -> tuple[Site, str]:
    """The input of a node that one of these operators computes, and the other input."""
    one, other = end.inputs(2)
    for first, second in ((one, other), (other, one)):
        place = at.scope.producers.get(first)
        if place is not None and at.scope.graph.node[place].op_type in operators:
            return at.maker(first, *operators), second
    at.require(False)
    return end, ""


def _is_by_reciprocal(at: Site, end: Site) -> bool:
    places = (at.scope.producers.get(name) for name in end.inputs(2))
    return any(place is not None and at.scope.graph.node[place].op_type == "Reciprocal" for place in places)


def _quotient(at: Site, end: Site) -> tuple[str, str]:
    """Dividend and divisor of a Div, or of a Mul by a Reciprocal."""
    if end.node.op_type == "Div":
        one, other = end.inputs(2)
        return one, other
    inverse, dividend = _one_made_by(at, end, "Reciprocal")
    return dividend, inverse.inputs(1)[0]


def _mean_of(at: Site, mean: str, x: str) -> list[int]:
    made = at.maker(mean, "ReduceMean")
    axes = made.axes(at.rank(x), by_input_since=18)
    at.require(made.inputs(1)[0] == x and made.attribute("keepdims", 1) == 1 and bool(axes))
    return axes or []


def _require_square(at: Site, square: str, of: str) -> None:
    made = at.maker(square, "Pow", "Mul")
    one, other = made.inputs(2)
    at.require(one == of and (other == of if made.node.op_type == "Mul" else at.single(other) == 2))


_STAGE = "all values that stay finite when squared"

SPELLINGS = (
    Spelling(
        name="layer-normalization-as-operators",
        operators=("LayerNormalization",),
        matches="LayerNormalization",
        writes="ReduceMean, Sub, Mul, ReduceMean, Add, Sqrt, Reciprocal, Mul, Mul and Add",
        draft=_layer_normalization_as_operators,
        cost="about eight passes over the tensor instead of one",
        exact=False,
        holds=_STAGE,
        least_opset=17,
    ),
    Spelling(
        name="operators-as-layer-normalization",
        operators=("Add", "Mul", "Div"),
        matches="a decomposed LayerNormalization",
        writes="LayerNormalization",
        draft=_operators_as_layer_normalization,
        cost="nothing: one pass instead of several",
        exact=False,
        holds=f"{_STAGE}; float32, the last axes, keepdims=1",
        least_opset=17,
    ),
    Spelling(
        name="rms-normalization-as-operators",
        operators=("RMSNormalization",),
        matches="RMSNormalization",
        writes="Mul, ReduceMean, Add, Sqrt, Reciprocal, Mul and Mul",
        draft=_rms_normalization_as_operators,
        cost="about six passes over the tensor instead of one",
        exact=False,
        holds=_STAGE,
        least_opset=23,
    ),
    Spelling(
        name="instance-normalization-as-operators",
        operators=("InstanceNormalization",),
        matches="InstanceNormalization",
        writes="ReduceMean, Sub, Mul, ReduceMean, Add, Sqrt, Reciprocal, Mul, Mul and Add",
        draft=_instance_normalization_as_operators,
        cost="about eight passes over the tensor instead of one",
        exact=False,
        holds=_STAGE,
    ),
    Spelling(
        name="group-normalization-as-operators",
        operators=("GroupNormalization",),
        matches="GroupNormalization",
        writes="Reshape, the operators of a normalization, Reshape, Mul and Add",
        draft=_group_normalization_as_operators,
        cost="about eight passes over the tensor instead of one",
        exact=False,
        holds=f"{_STAGE}; float32, tensors that are not empty",
        least_opset=18,
    ),
    Spelling(
        name="batch-normalization-as-operators",
        operators=("BatchNormalization",),
        matches="BatchNormalization in inference",
        writes="Sub, Mul and Add, with a factor of the scale and the variance",
        draft=_batch_normalization_as_operators,
        cost="up to three passes over the tensor, where the engine would have folded it into a convolution",
        exact=False,
        holds="all values; all of one type",
    ),
)


# Softmax and LogSoftmax.

_ALONG_ONE_AXIS_SINCE = 13
"""Before this opset Softmax takes all axes from ``axis`` on together."""


def _axis(at: Site, x: str) -> int:
    """The one axis along which a node normalizes."""
    rank = at.rank(x)
    at.require(rank > 0 and at.elem(x) in FLOATS)
    axis: int = at.attribute("axis", -1 if at.opset >= _ALONG_ONE_AXIS_SINCE else 1)
    at.require(-rank <= axis < rank)
    at.require(at.opset >= _ALONG_ONE_AXIS_SINCE or axis % rank == rank - 1)
    return axis % rank


def _shifted(at: Site, x: str, axis: int) -> str:
    return at.new("Sub", x, at.reduced("ReduceMax", x, [axis]))


def _softmax_as_exp(at: Site) -> str:
    (x,) = at.inputs(1)
    axis = _axis(at, x)
    exponential = at.new("Exp", _shifted(at, x, axis))
    return at.new("Div", exponential, at.reduced("ReduceSum", exponential, [axis]))


def _log_softmax_as_log(at: Site) -> str:
    (x,) = at.inputs(1)
    axis = _axis(at, x)
    shifted = _shifted(at, x, axis)
    return at.new("Sub", shifted, at.new("Log", at.reduced("ReduceSum", at.new("Exp", shifted), [axis])))


def _on_the_last_axis(at: Site) -> str:
    (x,) = at.inputs(1)
    axis, rank = _axis(at, x), at.rank(x)
    at.require(axis != rank - 1)
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return at.transposed(at.copy([at.transposed(x, order)], axis=-1), order)


def _exp_as_softmax(at: Site) -> str:
    exponential, total = at.inputs(2)
    (shifted,) = at.maker(exponential, "Exp").inputs(1)
    x, greatest = at.maker(shifted, "Sub").inputs(2)
    axis = _reduced_axis(at, greatest, "ReduceMax", x, 18)
    at.require(at.elem(x) in FLOATS and axis == _reduced_axis(at, total, "ReduceSum", exponential, 13))
    return at.new("Softmax", x, axis=axis)


def _reduced_axis(at: Site, name: str, operator: str, of: str, since: int) -> int:
    made = at.maker(name, operator)
    axes = made.axes(at.rank(of), by_input_since=since)
    at.require(made.inputs(1)[0] == of and made.attribute("keepdims", 1) == 1 and axes is not None and len(axes) == 1)
    assert axes is not None
    return axes[0]


_ROUNDED = "all values; rounded differently"

SOFTMAX_SPELLINGS = (
    Spelling(
        name="softmax-as-exp",
        operators=("Softmax",),
        matches="Softmax",
        writes="ReduceMax, Sub, Exp, ReduceSum and Div",
        draft=_softmax_as_exp,
        cost="about five passes over the tensor instead of one",
        exact=False,
        holds=_ROUNDED,
    ),
    Spelling(
        name="log-softmax-as-log",
        operators=("LogSoftmax",),
        matches="LogSoftmax",
        writes="ReduceMax, Sub, Exp, ReduceSum, Log and Sub",
        draft=_log_softmax_as_log,
        cost="about five passes over the tensor instead of one",
        exact=False,
        holds=_ROUNDED,
    ),
    Spelling(
        name="softmax-on-the-last-axis",
        operators=("Softmax", "LogSoftmax"),
        matches="Softmax or LogSoftmax along another axis than the last",
        writes="the same along the last axis between two Transposes",
        draft=_on_the_last_axis,
        cost="two copies of the tensor",
        exact=False,
        holds=_ROUNDED,
        least_opset=_ALONG_ONE_AXIS_SINCE,
    ),
    Spelling(
        name="exp-as-softmax",
        operators=("Div",),
        matches="a decomposed Softmax",
        writes="Softmax",
        draft=_exp_as_softmax,
        cost="nothing: one pass instead of five",
        exact=False,
        holds=_ROUNDED,
        least_opset=_ALONG_ONE_AXIS_SINCE,
    ),
)
