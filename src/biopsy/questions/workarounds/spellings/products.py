"""Products and sums over windows: Gemm, MatMul, Einsum, convolutions and pools."""

from __future__ import annotations

import math

from biopsy.questions.workarounds.spellings.site import Family, Site

_SUMS = "all values; sums may be taken in another order, and engines differ in what they make of 0 times infinity"

PRODUCTS = Family()


@PRODUCTS.by(
    "gemm-as-matmul",
    "Gemm",
    writes="Transpose, MatMul, Mul and Add, as far as they are needed",
    cost="up to four more passes over tensors, unless the engine fuses them",
    holds=f"{_SUMS}; alpha and beta are not 0, and 1 for integers",
)
def _(at: Site) -> str:
    a, b, c = at.inputs(3)
    alpha, beta = at.attribute("alpha", 1.0), at.attribute("beta", 1.0)
    at.require(alpha != 0 != beta)  # engines do not multiply NaN by that 0
    at.require((alpha == 1 or at.is_float(a)) and (not c or beta == 1 or at.is_float(c)))
    left, right = (
        at.transposed(name, [1, 0]) if at.attribute(flag, 0) else name for name, flag in ((a, "transA"), (b, "transB"))
    )
    text = "alpha * MatMul(a, b) + beta * c" if c else "alpha * MatMul(a, b)"
    return at.write(text, at.node.input[0], a=left, b=right, c=c, alpha=alpha, beta=beta)


@PRODUCTS.by(
    "matmul-as-gemm",
    "MatMul",
    matches="MatMul of two matrices",
    writes="Gemm",
    holds=f"{_SUMS}; the sign of zero may differ",
)
def _(at: Site) -> str:
    a, b = at.inputs(2)
    at.require(at.rank(a) == at.rank(b) == 2 and at.is_float(a))
    return at.new("Gemm", a, b, "" if at.opset >= 11 else at.constant([0], at.elem(a)))  # C had to be given


@PRODUCTS.by("matmul-and-add-as-gemm", "Add", matches="MatMul of two matrices, and Add", writes="Gemm", holds=_SUMS)
def _(at: Site) -> str:
    product, c = at.either("MatMul")
    a, b = product.inputs(2)
    at.require(at.rank(a) == at.rank(b) == 2 and at.is_float(a) and at.rank(c) <= 2)
    rows_and_columns = (at.shape(b)[1], at.shape(a)[0])
    at.require(all(dim in (1, size) for dim, size in zip(reversed(at.dims(c)), rows_and_columns, strict=False)))
    return at.new("Gemm", a, b, c)


@PRODUCTS.by(
    "matmul-of-transposed",
    "MatMul",
    writes="Transpose of the MatMul of the transposed operands in the other order",
    cost="up to three copies of matrices",
    holds=_SUMS,
)
def _(at: Site) -> str:
    a, b = at.inputs(2)
    product = at.new("MatMul", at.turned(b, at.rank(b)), at.turned(a, at.rank(a)))
    return at.turned(product, max(at.rank(a), at.rank(b)))


@PRODUCTS.by(
    "matmul-as-einsum",
    "MatMul",
    writes="Einsum",
    cost="slower in engines that compute Einsum step by step",
    holds=_SUMS,
    least_opset=12,
)
def _(at: Site) -> str:
    a, b = at.inputs(2)
    one, other = at.rank(a), at.rank(b)
    at.require(at.is_float(a) and min(one, other) >= 1)
    if min(one, other) > 2:  # ONNX does not say that what the dots stand for is spread
        at.require(at.shape(a)[:-2] == at.shape(b)[:-2] and None not in at.shape(a))
    rows, columns = "i" * (one > 1), "j" * (other > 1)
    terms = f"{'...' * (one > 2)}{rows}k,{'...' * (other > 2)}k{columns}"
    equation = f"{terms}->{'...' * (max(one, other) > 2)}{rows}{columns}"
    return at.new("Einsum", a, b, equation=equation)


@PRODUCTS.by(
    "einsum-as-matmul",
    "Einsum",
    matches="Einsum of two tensors that sums one index",
    writes="Transpose and MatMul",
    cost="copies where the order of indices changes",
    holds=f"{_SUMS}; equal letters have equal, known sizes",
    least_opset=12,
)
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
    # MatMul does not spread a size of 1 over another along what is summed.
    sizes, others = (dict(zip(term, at.shape(x), strict=True)) for term, x in zip((a, b), at.node.input, strict=True))
    at.require(all(sizes[label] == others[label] is not None for label in (*batch, *summed)))
    one = at.transposed(at.node.input[0], [a.index(label) for label in (*batch, *left, *summed)])
    other = at.transposed(at.node.input[1], [b.index(label) for label in (*batch, *summed, *right)])
    order = [*batch, *left, *right]
    return at.transposed(at.new("MatMul", one, other), [order.index(label) for label in result])


@PRODUCTS.by(
    "matmul-flattened",
    "MatMul",
    matches="MatMul of a tensor of rank 3 or more with a matrix",
    writes="Reshape, MatMul of two matrices and Reshape",
    holds=f"{_SUMS}; tensors with at most one unknown size",
)
def _(at: Site) -> str:
    a, b = at.inputs(2)
    at.require(at.rank(a) > 2 and at.rank(b) == 2)
    rows, columns = at.dims(b)
    at.require(rows > 0 and columns > 0 and 0 not in at.shape(a))
    outer = [dim if isinstance(dim, int) else -1 for dim in at.shape(a)[:-1]]
    at.require(outer.count(-1) <= 1)
    return at.reshaped(at.new("MatMul", at.reshaped(a, [-1, rows]), b), [*outer, columns])


# Convolutions and pools.

_MOST_GROUPS = 32
_WITH_KERNEL = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool")
_OTHER_ORDER = "all values; sums may be taken in another order"

CONVOLUTIONS = Family()


def _spatial(at: Site) -> int:
    """The number of spatial axes."""
    spatial = at.rank(at.node.input[0]) - 2
    at.require(spatial >= 1)
    return spatial


def _kernel(at: Site) -> list[int]:
    """The sizes of the kernel."""
    given = at.attribute("kernel_shape", None)
    return list(given) if given is not None else list(at.dims(at.node.input[1])[2:])


@CONVOLUTIONS.by(
    "bias-as-add",
    *("Conv", "ConvTranspose"),
    matches="Conv or ConvTranspose with a bias",
    writes="the same without it, and Add",
    cost="one more pass over the result unless the engine fuses it",
    holds=_OTHER_ORDER,
)
def _(at: Site) -> str:
    x, weight, bias = at.inputs(3)
    at.require(bool(bias))
    return at.new("Add", at.copy([x, weight]), at.unsqueezed(bias, list(range(1, 1 + _spatial(at)))))


@CONVOLUTIONS.by(
    "add-as-bias",
    "Add",
    matches="Conv or ConvTranspose, and Add of one number for each channel",
    writes="the same with a bias",
    holds=_OTHER_ORDER,
)
def _(at: Site) -> str:
    convolution, summand = at.either("Conv", "ConvTranspose")
    x, weight, bias = convolution.inputs(3)
    channels = at.dims(weight)[0]
    if convolution.node.op_type == "ConvTranspose":
        channels = at.dims(weight)[1] * int(convolution.attribute("group", 1))
    behind = (1,) * _spatial(convolution)
    at.require(not bias and at.dims(summand) in {(channels, *behind), (1, channels, *behind)})
    return convolution.copy([x, weight, at.reshaped(summand, [channels])])


@CONVOLUTIONS.by(
    "explicit-pads",
    *_WITH_KERNEL,
    matches="a convolution or pool with auto_pad",
    writes="pads",
    cost="nothing; the spatial sizes are fixed, as they are in the model",
    exact=True,
    holds="known spatial sizes; of ConvTranspose those with as much before as after",
)
def _(at: Site) -> str:
    mode = at.attribute("auto_pad", "NOTSET")
    at.require(at.is_only_output() and mode in {"SAME_UPPER", "SAME_LOWER", "VALID"})
    if mode == "VALID":
        return at.copy(at.node.input, auto_pad=None, pads=None)
    at.require(not at.attribute("output_shape", None) and not at.attribute("ceil_mode", 0))
    is_transposed, ones = at.node.op_type == "ConvTranspose", [1] * _spatial(at)
    strides, dilations = at.attribute("strides", ones), at.attribute("dilations", ones)
    more = at.attribute("output_padding", [0] * _spatial(at))
    totals = []  # how many elements are added along each spatial axis
    for axis, size in enumerate(at.dims(at.node.input[0])[2:]):
        reach = (_kernel(at)[axis] - 1) * dilations[axis] + 1
        stepped = (math.ceil(size / strides[axis]) - 1) * strides[axis]
        totals.append(reach + more[axis] - strides[axis] if is_transposed else max(stepped + reach - size, 0))
    at.require(min(totals) >= 0)
    # The extra element stands at the end for UPPER; with ConvTranspose ONNX once said the opposite, see its equations.
    at.require(not is_transposed or all(total % 2 == 0 for total in totals))
    small, large = [total // 2 for total in totals], [-(-total // 2) for total in totals]
    pads = [*small, *large] if mode == "SAME_UPPER" else [*large, *small]
    return at.copy(at.node.input, auto_pad=None, pads=pads)


@CONVOLUTIONS.by("pads-as-pad", "Conv", matches="Conv with pads", writes="Pad and Conv", cost="one copy of the tensor")
def _(at: Site) -> str:
    x, spatial, pads = at.node.input[0], _spatial(at), at.attribute("pads", [])
    at.require(any(pads) and min(pads) >= 0 and at.attribute("auto_pad", "NOTSET") == "NOTSET")
    padded = at.new("Pad", x, pads=[0, 0, *pads[:spatial], 0, 0, *pads[spatial:]])
    return at.copy([padded, *at.node.input[1:]], pads=None)


@CONVOLUTIONS.by(
    "groups-apart",
    "Conv",
    matches=f"Conv in up to {_MOST_GROUPS} groups",
    writes="a Slice and a Conv for each group, and Concat",
    cost="two copies of the tensor, and slower with many groups",
    holds=_OTHER_ORDER,
)
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


@CONVOLUTIONS.by(
    "one-dimension-as-two",
    *_WITH_KERNEL,
    matches="a convolution or pool over one spatial axis",
    writes="Unsqueeze, the same over two, and Squeeze",
    holds=f"{_OTHER_ORDER}; engines differ in what a maximum makes of NaN",
)
def _(at: Site) -> str:
    at.require(_spatial(at) == 1 and at.is_only_output() and not at.attribute("output_shape", None))
    x_and_weight = [at.unsqueezed(name, [2]) for name in at.node.input[:2]]
    changed: dict[str, list[int]] = {"kernel_shape": [1, *_kernel(at)]}
    for name, before in (("strides", 1), ("dilations", 1), ("output_padding", 0)):
        if (given := at.attribute(name, None)) is not None:
            changed[name] = [before, *given]
    if (pads := at.attribute("pads", None)) is not None:
        changed["pads"] = [0, pads[0], 0, pads[1]]
    return at.squeezed(at.copy([*x_and_weight, *at.node.input[2:]], **changed), [2])


@CONVOLUTIONS.by(
    "pointwise-conv-as-matmul",
    "Conv",
    matches="Conv with a kernel of one element",
    writes="Reshape, MatMul, Add and Reshape",
    cost="nothing, or a copy of the tensor",
    holds=f"{_OTHER_ORDER}; tensors that are not empty",
)
def _(at: Site) -> str:
    x, weight, bias = at.inputs(3)
    outputs, inputs, *kernel = at.dims(weight)
    is_plain = all(one == 1 for one in (*kernel, *_kernel(at), *at.attribute("strides", [1]), at.attribute("group", 1)))
    at.require(is_plain and not any(at.attribute("pads", [0])) and at.is_float(x) and _spatial(at) > 0)
    at.require(0 not in at.shape(x) and outputs > 0 and inputs > 0)
    product = at.new("MatMul", at.reshaped(weight, [outputs, inputs]), at.reshaped(x, [0, inputs, -1]))
    if bias:
        product = at.new("Add", product, at.unsqueezed(bias, [1]))
    sizes = [dim if isinstance(dim, int) else -1 for dim in at.shape(x)[2:]]
    at.require(sizes.count(-1) <= 1)
    return at.reshaped(product, [0, outputs, *sizes])
