"""Spellings of normalizations, Softmax, products of matrices, convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from biopsy.questions.workarounds.spellings.site import FLOAT, FLOATS, Drafts, Site

_ALONG_ONE_AXIS_SINCE = 13
"""Before this opset, Softmax treats all axes from ``axis`` on as one."""


def _axis(at: Site, x: str) -> int:
    """The one axis along which a Softmax is computed."""
    rank = at.rank(x)
    at.require(rank > 0 and at.is_float(x))
    axis: int = at.attribute("axis", -1 if at.opset >= _ALONG_ONE_AXIS_SINCE else 1)
    at.require(-rank <= axis < rank)
    at.require(at.opset >= _ALONG_ONE_AXIS_SINCE or axis % rank == rank - 1)
    return axis % rank


def _are_float_matrices(at: Site, a: str, b: str) -> bool:
    return at.rank(a) == at.rank(b) == 2 and at.is_float(a)


DRAFTS = Drafts(
    {
        "softmax-as-exp": lambda at, x: {"axes": [_axis(at, x)]},
        "log-softmax-as-log": lambda at, x: {"axes": [_axis(at, x)]},
        "exp-as-softmax": lambda at, x, axes, **_: at.is_float(x) and len(axes) == 1 and {"axis": axes[0]},
        "matmul-as-gemm": lambda at, a, b: (  # before opset 11 C had to be given
            _are_float_matrices(at, a, b) and {"c": "" if at.opset >= 11 else at.constant([0], at.elem(a))}
        ),
        "matmul-and-add-as-gemm": lambda at, a, b, c: (
            _are_float_matrices(at, a, b)
            and at.rank(c) <= 2
            and all(
                dim in (1, size)
                for dim, size in zip(reversed(at.dims(c)), (at.shape(b)[1], at.shape(a)[0]), strict=False)
            )
        ),
    }
)

_INVERSE = "Reciprocal(Sqrt(ReduceMean(x * x, axes=axes) + epsilon))"
"""1 / sqrt(mean(x * x) + epsilon) in a form that fusions do not look for."""


def normalized(at: Site, x: str, axes: Sequence[int], epsilon: float, like: str) -> str:
    """Write (x - mean) / sqrt(variance + epsilon) over some axes; ``like`` is a tensor of the same type."""
    return at.write(f"x = x - ReduceMean(x, axes=axes); x * {_INVERSE}", like, x=x, axes=axes, epsilon=epsilon)


@DRAFTS.of("layer-normalization-as-operators", "rms-normalization-as-operators")
def _(at: Site) -> Sequence[str]:
    x, scale, bias = at.inputs(3)
    elem, own, rank = at.attribute("stash_type", FLOAT), at.elem(x), at.rank(x)  # normalization computes in ``elem``
    at.require(own in FLOATS and elem in FLOATS)
    widens = own != elem
    text = "x = Cast(x, to=elem) if widens else x; "
    text += (
        "mean = ReduceMean(x, axes=axes); x = x - mean; " if at.node.op_type == "LayerNormalization" else "mean = x; "
    )
    text += f"inverse = {_INVERSE}; y = x * inverse; y = Cast(y, to=own) if widens else y; y = y * scale; "
    text += "y = y + bias if bias else y; y, mean, inverse"
    return at.results(
        text,
        elem,
        x=x,
        scale=scale,
        bias=bias,
        elem=elem,
        own=own,
        widens=widens,
        axes=range(at.attribute("axis", -1) % rank, rank),
        epsilon=at.attribute("epsilon", 1e-5),
    )


@DRAFTS.of("operators-as-layer-normalization")
def _(at: Site, x: str, axes: list[int], epsilon: str, scale: str = "", bias: str = "", **_: object) -> str:
    at.require(at.value(epsilon).ndim <= at.rank(x) and axes == list(range(axes[0], at.rank(x))))
    at.require(at.elem(x) == FLOAT and all(at.dims(name) == at.shape(x)[axes[0] :] for name in (scale, bias) if name))
    scale = scale or at.constant(np.ones(at.dims(x)[axes[0] :]), FLOAT)
    return at.new("LayerNormalization", x, scale, bias, axis=axes[0], epsilon=at.single(epsilon))


def _affine(at: Site, x: str, scale: str, bias: str, rank: int) -> str:
    """Write x * scale + bias, with one scale and bias for each channel."""
    text = "x * Unsqueeze(scale, axes=behind) + Unsqueeze(bias, axes=behind)"
    return at.write(text, x=x, scale=scale, bias=bias, behind=range(1, rank - 1))


@DRAFTS.of("instance-normalization-as-operators")
def _(at: Site) -> str:
    x, scale, bias = at.inputs(3)
    rank = at.rank(x)
    at.require(rank >= 3)
    return _affine(at, normalized(at, x, range(2, rank), at.attribute("epsilon", 1e-5), x), scale, bias, rank)


@DRAFTS.of("group-normalization-as-operators")
def _(at: Site) -> str:
    x, scale, bias = at.inputs(3)
    rank, groups = at.rank(x), at.attribute("num_groups", 0)
    at.require(rank >= 3 and 0 not in at.shape(x) and groups > 0)
    at.require(at.elem(x) == at.attribute("stash_type", FLOAT) == FLOAT)
    grouped = normalized(at, at.new("Reshape", x, [0, groups, -1]), [2], at.attribute("epsilon", 1e-5), x)
    shape = at.new("Shape", x)
    if at.opset >= 21:
        return _affine(at, at.new("Reshape", grouped, shape), scale, bias, rank)
    return at.new("Reshape", _affine(at, grouped, scale, bias, 3), shape)


@DRAFTS.of("batch-normalization-as-operators")
def _(at: Site) -> str:
    x, scale, bias, mean, variance = at.inputs(5)
    rank, epsilon = at.rank(x), at.attribute("epsilon", 1e-5)
    at.require(at.is_only_output() and not at.attribute("training_mode", 0) and at.attribute("spatial", 1) == 1)
    at.require(rank >= 2 and len({at.elem(name) for name in (x, scale, mean)}) == 1)
    factor = at.write("scale / Sqrt(variance + epsilon)", x, scale=scale, variance=variance, epsilon=epsilon)
    return _affine(at, at.new("Sub", x, at.new("Unsqueeze", mean, axes=range(1, rank - 1))), factor, bias, rank)


@DRAFTS.of("softmax-on-the-last-axis")
def _(at: Site) -> str:
    (x,) = at.inputs(1)
    axis, rank = _axis(at, x), at.rank(x)
    at.require(axis != rank - 1)
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return at.new("Transpose", at.copy([at.new("Transpose", x, perm=order)], axis=-1), perm=order)


@DRAFTS.of("gemm-as-matmul")
def _(at: Site) -> str:
    a, b, c = at.inputs(3)
    alpha, beta = at.attribute("alpha", 1.0), at.attribute("beta", 1.0)
    at.require(alpha != 0 != beta)  # engines skip the product with 0, which makes NaN of NaN
    at.require((alpha == 1 or at.is_float(a)) and (not c or beta == 1 or at.is_float(c)))
    left, right = (
        at.new("Transpose", name, perm=[1, 0]) if at.attribute(flag, 0) else name
        for name, flag in ((a, "transA"), (b, "transB"))
    )
    text = "alpha * MatMul(a, b) + beta * c" if c else "alpha * MatMul(a, b)"
    return at.write(text, a, a=left, b=right, c=c, alpha=alpha, beta=beta)


@DRAFTS.of("matmul-of-transposed")
def _(at: Site, a: str, b: str) -> str:
    product = at.new("MatMul", at.turned(b, at.rank(b)), at.turned(a, at.rank(a)))
    return at.turned(product, max(at.rank(a), at.rank(b)))


@DRAFTS.of("matmul-as-einsum")
def _(at: Site, a: str, b: str) -> str:
    ranks = at.rank(a), at.rank(b)
    at.require(at.is_float(a) and min(ranks) >= 1)
    if min(ranks) > 2:  # ONNX does not say that the dimensions of an ellipsis are broadcast
        at.require(at.shape(a)[:-2] == at.shape(b)[:-2] and None not in at.shape(a))
    rows, columns = "i" * (ranks[0] > 1), "j" * (ranks[1] > 1)
    terms = f"{'...' * (ranks[0] > 2)}{rows}k,{'...' * (ranks[1] > 2)}k{columns}"
    return at.new("Einsum", a, b, equation=f"{terms}->{'...' * (max(ranks) > 2)}{rows}{columns}")


@DRAFTS.of("einsum-as-matmul")
def _(at: Site) -> str:
    terms, arrow, result = at.attribute("equation", "").replace(" ", "").partition("->")
    a, _, b = terms.partition(",")
    at.require(len(at.node.input) == 2 and bool(arrow))
    at.require(all(term.isalpha() and len(set(term)) == len(term) for term in (a, b, result)))
    at.require(set(result) <= set(a + b))
    batch = [label for label in result if label in a and label in b]
    summed = [label for label in a if label in b and label not in result]
    left = [label for label in a if label not in b]
    right = [label for label in b if label not in a]
    at.require(len(summed) == len(left) == len(right) == 1 and set(left + right) <= set(result))
    # MatMul does not broadcast the axes that it sums over
    sizes, others = (dict(zip(term, at.shape(x), strict=True)) for term, x in zip((a, b), at.node.input, strict=True))
    at.require(all(sizes[label] == others[label] is not None for label in (*batch, *summed)))
    first = at.new("Transpose", at.node.input[0], perm=[a.index(label) for label in (*batch, *left, *summed)])
    second = at.new("Transpose", at.node.input[1], perm=[b.index(label) for label in (*batch, *summed, *right)])
    order = [*batch, *left, *right]
    return at.new("Transpose", at.new("MatMul", first, second), perm=[order.index(label) for label in result])


@DRAFTS.of("matmul-flattened")
def _(at: Site, a: str, b: str) -> str:
    at.require(at.rank(a) > 2 and at.rank(b) == 2)
    rows, columns = at.dims(b)
    at.require(rows > 0 and columns > 0 and 0 not in at.shape(a))
    outer = [dim if isinstance(dim, int) else -1 for dim in at.shape(a)[:-1]]
    at.require(outer.count(-1) <= 1)
    return at.new("Reshape", at.new("MatMul", at.new("Reshape", a, [-1, rows]), b), [*outer, columns])


_MOST_GROUPS = 32


def _spatial(at: Site) -> int:
    """The number of spatial axes."""
    spatial = at.rank(at.node.input[0]) - 2
    at.require(spatial >= 1)
    return spatial


def _kernel(at: Site) -> list[int]:
    """The sizes of the kernel."""
    shape = at.attribute("kernel_shape", None)
    return list(shape) if shape is not None else list(at.dims(at.node.input[1])[2:])


@DRAFTS.of("bias-as-add")
def _(at: Site) -> str:
    x, weight, bias = at.inputs(3)
    at.require(bool(bias))
    return at.new("Add", at.copy([x, weight]), at.new("Unsqueeze", bias, axes=range(1, 1 + _spatial(at))))


@DRAFTS.of("add-as-bias")
def _(at: Site, x: str, weight: str, bias: str, y: str, summand: str) -> str:
    convolution = at.producer(y)
    channels = at.dims(weight)[0]
    if convolution.node.op_type == "ConvTranspose":
        channels = at.dims(weight)[1] * int(convolution.attribute("group", 1))
    behind = (1,) * _spatial(convolution)
    at.require(not bias and at.dims(summand) in {(channels, *behind), (1, channels, *behind)})
    return convolution.copy([x, weight, at.new("Reshape", summand, [channels])])


@DRAFTS.of("explicit-pads")
def _(at: Site) -> str:
    mode = at.attribute("auto_pad", "NOTSET")
    at.require(at.is_only_output() and mode in {"SAME_UPPER", "SAME_LOWER", "VALID"})
    if mode == "VALID":
        return at.copy(at.node.input, auto_pad=None, pads=None)
    at.require(not at.attribute("output_shape", None) and not at.attribute("ceil_mode", 0))
    is_transposed, ones = at.node.op_type == "ConvTranspose", [1] * _spatial(at)
    strides, dilations = at.attribute("strides", ones), at.attribute("dilations", ones)
    output_padding = at.attribute("output_padding", [0] * _spatial(at))
    totals = []  # the elements to add along each spatial axis
    for axis, size in enumerate(at.dims(at.node.input[0])[2:]):
        reach = (_kernel(at)[axis] - 1) * dilations[axis] + 1
        stepped = (math.ceil(size / strides[axis]) - 1) * strides[axis]
        totals.append(reach + output_padding[axis] - strides[axis] if is_transposed else max(stepped + reach - size, 0))
    at.require(min(totals) >= 0)
    # SAME_UPPER puts an odd element at the end; for ConvTranspose, ONNX once defined the opposite
    at.require(not is_transposed or all(total % 2 == 0 for total in totals))
    small, large = [total // 2 for total in totals], [-(-total // 2) for total in totals]
    pads = [*small, *large] if mode == "SAME_UPPER" else [*large, *small]
    return at.copy(at.node.input, auto_pad=None, pads=pads)


@DRAFTS.of("pads-as-pad")
def _(at: Site) -> str:
    x, spatial, pads = at.node.input[0], _spatial(at), at.attribute("pads", [])
    at.require(any(pads) and min(pads) >= 0 and at.attribute("auto_pad", "NOTSET") == "NOTSET")
    padded = at.new("Pad", x, pads=[0, 0, *pads[:spatial], 0, 0, *pads[spatial:]])
    return at.copy([padded, *at.node.input[1:]], pads=None)


@DRAFTS.of("groups-apart")
def _(at: Site) -> str:
    x, weight, bias = at.inputs(3)
    groups = at.attribute("group", 1)
    at.require(1 < groups <= _MOST_GROUPS)
    outputs, channels = at.dims(weight)[0] // groups, at.dims(weight)[1]
    parts = []
    for group in range(groups):
        inputs = [at.sliced(x, group * channels, (group + 1) * channels, 1)]
        inputs += [at.sliced(name, group * outputs, (group + 1) * outputs, 0) for name in (weight, bias) if name]
        parts.append(at.copy(inputs, group=None))
    return at.new("Concat", *parts, axis=1)


@DRAFTS.of("one-dimension-as-two")
def _(at: Site) -> str:
    at.require(_spatial(at) == 1 and at.is_only_output() and not at.attribute("output_shape", None))
    x_and_weight = [at.new("Unsqueeze", name, axes=[2]) for name in at.node.input[:2]]
    changed: dict[str, list[int]] = {"kernel_shape": [1, *_kernel(at)]}
    for name, neutral in (("strides", 1), ("dilations", 1), ("output_padding", 0)):
        if (value := at.attribute(name, None)) is not None:
            changed[name] = [neutral, *value]
    if (pads := at.attribute("pads", None)) is not None:
        changed["pads"] = [0, pads[0], 0, pads[1]]
    return at.new("Squeeze", at.copy([*x_and_weight, *at.node.input[2:]], **changed), axes=[2])


@DRAFTS.of("pointwise-conv-as-matmul")
def _(at: Site) -> str:
    x, weight, bias = at.inputs(3)
    outputs, inputs, *kernel = at.dims(weight)
    is_pointwise = {*kernel, *_kernel(at), *at.attribute("strides", [1]), at.attribute("group", 1)} == {1}
    at.require(is_pointwise and not any(at.attribute("pads", [0])) and at.is_float(x) and _spatial(at) > 0)
    at.require(0 not in at.shape(x) and outputs > 0 and inputs > 0)
    sizes = [dim if isinstance(dim, int) else -1 for dim in at.shape(x)[2:]]
    at.require(sizes.count(-1) <= 1)
    text = "y = MatMul(Reshape(w, ww), Reshape(x, xx)); Reshape(y + Unsqueeze(bias, axes=[1]) if bias else y, yy)"
    ww, xx, yy = [outputs, inputs], [0, inputs, -1], [0, outputs, *sizes]
    return at.write(text, x=x, w=weight, bias=bias, ww=ww, xx=xx, yy=yy)
