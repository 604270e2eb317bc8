"""Products and sums over windows: Gemm, MatMul, Einsum, convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Iterator

from biopsy.questions.workarounds.spellings.site import FLOATS, Site, Spelling


def _gemm_as_matmul(at: Site) -> str:
    a, b, c = at.inputs(3)
    at.require(at.attribute("alpha", 1.0) != 0 != at.attribute("beta", 1.0))  # engines do not multiply NaN by that 0
    if at.attribute("transA", 0):
        a = at.new("Transpose", a, perm=[1, 0])
    if at.attribute("transB", 0):
        b = at.new("Transpose", b, perm=[1, 0])
    found = _scaled(at, at.new("MatMul", a, b), at.attribute("alpha", 1.0), at.node.input[0])
    return at.new("Add", found, _scaled(at, c, at.attribute("beta", 1.0), c)) if c else found


def _scaled(at: Site, x: str, factor: float, like: str) -> str:
    if factor == 1:
        return x
    at.require(at.elem(like) in FLOATS)
    return at.new("Mul", x, at.scalar(factor, like))


def _matmul_as_gemm(at: Site) -> str:
    a, b = at.inputs(2)
    at.require(at.rank(a) == at.rank(b) == 2 and at.elem(a) in FLOATS)
    if at.opset < 11:  # C had to be given
        return at.new("Gemm", a, b, at.constant([0], at.elem(a)))
    return at.new("Gemm", a, b)


def _matmul_and_add_as_gemm(at: Site) -> str:
    for product, c in (tuple(at.inputs(2)), tuple(reversed(at.inputs(2)))):
        if at.scope.producers.get(product) is None:
            continue
        made = at.scope.graph.node[at.scope.producers[product]]
        if made.op_type == "MatMul":
            a, b = at.maker(product, "MatMul").inputs(2)
            at.require(at.rank(a) == at.rank(b) == 2 and at.elem(a) in FLOATS)
            _require_spread(at, c, (at.shape(a)[0], at.shape(b)[1]))
            return at.new("Gemm", a, b, c)
    at.require(False)
    return ""


def _require_spread(at: Site, c: str, onto: tuple[object, object]) -> None:
    """Require that a tensor can be spread over a matrix without making it larger."""
    dims = at.dims(c)
    at.require(len(dims) <= 2)
    at.require(all(dim in (1, size) for dim, size in zip(reversed(dims), reversed(onto), strict=False)))


def _matmul_of_transposed(at: Site) -> str:
    a, b = at.inputs(2)
    ranks = at.rank(a), at.rank(b)
    at.require(min(ranks) >= 2)
    found = at.new("MatMul", _turned(at, b, ranks[1]), _turned(at, a, ranks[0]))
    return _turned(at, found, max(ranks))


def _turned(at: Site, x: str, rank: int) -> str:
    return at.new("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])


def _matmul_as_einsum(at: Site) -> str:
    a, b = at.inputs(2)
    at.require(at.elem(a) in FLOATS)
    one, other = at.rank(a), at.rank(b)
    at.require(one >= 1 and other >= 1)
    if min(one, other) > 2:  # ONNX does not say that what the dots stand for is spread
        at.require(at.shape(a)[:-2] == at.shape(b)[:-2] and None not in at.shape(a))
    left = "k" if one == 1 else "...ik" if one > 2 else "ik"
    right = "k" if other == 1 else "...kj" if other > 2 else "kj"
    result = ("..." if max(one, other) > 2 else "") + ("i" if one > 1 else "") + ("j" if other > 1 else "")
    return at.new("Einsum", a, b, equation=f"{left},{right}->{result}")


def _einsum_as_matmul(at: Site) -> str:
    terms, _, result = at.attribute("equation", "").replace(" ", "").partition("->")
    a, _, b = terms.partition(",")
    at.require(len(at.node.input) == 2 and bool(a and b) and "->" in at.attribute("equation", ""))
    at.require(all(term.isalpha() and len(set(term)) == len(term) for term in (a, b)))
    at.require(result.isalpha() and len(set(result)) == len(result) and set(result) <= set(a + b))
    batch = [label for label in result if label in a and label in b]
    summed = [label for label in a if label in b and label not in result]
    left = [label for label in a if label not in b]
    right = [label for label in b if label not in a]
    at.require(len(summed) == len(left) == len(right) == 1 and set(left + right) <= set(result))
    _require_equal_sizes(at, a, b)
    one = at.transposed(at.node.input[0], [a.index(label) for label in (*batch, *left, *summed)])
    other = at.transposed(at.node.input[1], [b.index(label) for label in (*batch, *summed, *right)])
    made = [*batch, *left, *right]
    return at.transposed(at.new("MatMul", one, other), [made.index(label) for label in result])


def _require_equal_sizes(at: Site, a: str, b: str) -> None:
    """Require that no size of 1 is spread over another: MatMul does not do so with what is summed."""
    one, other = (
        dict(zip(term, at.shape(name), strict=True)) for term, name in zip((a, b), at.node.input, strict=True)
    )
    at.require(all(one[label] == other[label] and one[label] is not None for label in one.keys() & other.keys()))


def _matmul_flattened(at: Site) -> str:
    a, b = at.inputs(2)
    at.require(at.rank(a) > 2 and at.rank(b) == 2)
    rows, columns = at.dims(b)
    dims = at.shape(a)
    at.require(rows > 0 and columns > 0 and 0 not in dims)
    unknown = [axis for axis, dim in enumerate(dims[:-1]) if not isinstance(dim, int)]
    at.require(len(unknown) <= 1)
    back = [dim if isinstance(dim, int) else -1 for dim in dims[:-1]]
    return at.reshaped(at.new("MatMul", at.reshaped(a, [-1, rows]), b), [*back, columns])


_SUMS = "all values; sums may be taken in another order, and engines differ in what they make of 0 times infinity"

SPELLINGS = (
    Spelling(
        name="gemm-as-matmul",
        operators=("Gemm",),
        matches="Gemm",
        writes="Transpose, MatMul, Mul and Add, as far as they are needed",
        draft=_gemm_as_matmul,
        cost="up to four more passes over tensors, unless the engine fuses them",
        exact=False,
        holds=f"{_SUMS}; alpha and beta are not 0, and 1 for integers",
    ),
    Spelling(
        name="matmul-as-gemm",
        operators=("MatMul",),
        matches="MatMul of two matrices",
        writes="Gemm",
        draft=_matmul_as_gemm,
        cost="nothing",
        exact=False,
        holds=f"{_SUMS}; the sign of zero may differ",
    ),
    Spelling(
        name="matmul-and-add-as-gemm",
        operators=("Add",),
        matches="MatMul of two matrices, and Add",
        writes="Gemm",
        draft=_matmul_and_add_as_gemm,
        cost="nothing",
        exact=False,
        holds=_SUMS,
    ),
    Spelling(
        name="matmul-of-transposed",
        operators=("MatMul",),
        matches="MatMul",
        writes="Transpose of the MatMul of the transposed operands in the other order",
        draft=_matmul_of_transposed,
        cost="up to three copies of matrices",
        exact=False,
        holds=_SUMS,
    ),
    Spelling(
        name="matmul-as-einsum",
        operators=("MatMul",),
        matches="MatMul",
        writes="Einsum",
        draft=_matmul_as_einsum,
        cost="slower in engines that compute Einsum step by step",
        exact=False,
        holds=_SUMS,
        least_opset=12,
    ),
    Spelling(
        name="einsum-as-matmul",
        operators=("Einsum",),
        matches="Einsum of two tensors that sums one index",
        writes="Transpose and MatMul",
        draft=_einsum_as_matmul,
        cost="copies where the order of indices changes",
        exact=False,
        holds=f"{_SUMS}; equal letters have equal, known sizes",
        least_opset=12,
    ),
    Spelling(
        name="matmul-flattened",
        operators=("MatMul",),
        matches="MatMul of a tensor of rank 3 or more with a matrix",
        writes="Reshape, MatMul of two matrices and Reshape",
        draft=_matmul_flattened,
        cost="nothing",
        exact=False,
        holds=f"{_SUMS}; tensors with at most one unknown size",
    ),
)


# Convolutions and pools.

_MOST_GROUPS = 32


def _spatial(at: Site) -> int:
    """The number of spatial axes."""
    found = at.rank(at.node.input[0]) - 2
    at.require(found >= 1)
    return found


def _kernel(at: Site) -> list[int]:
    """The sizes of the kernel."""
    given = at.attribute("kernel_shape", None)
    return list(given) if given is not None else list(at.dims(at.node.input[1])[2:])


def _bias_as_add(at: Site) -> str:
    x, weight, bias = at.inputs(3)
    at.require(bool(bias))
    return at.new("Add", at.copy([x, weight]), at.unsqueezed(bias, list(range(1, 1 + _spatial(at)))))


def _add_as_bias(at: Site) -> str:
    for one, other in (at.inputs(2), reversed(at.inputs(2))):
        place = at.scope.producers.get(one)
        if place is None or at.scope.graph.node[place].op_type not in {"Conv", "ConvTranspose"}:
            continue
        made = at.maker(one, "Conv", "ConvTranspose")
        at.require(not made.inputs(3)[2])
        channels, spatial = _output_channels(made), _spatial(made)
        dims = at.dims(other)
        at.require(dims[-spatial:] == (1,) * spatial and dims[: -spatial - 1] in {(), (1,)})
        at.require(len(dims) > spatial and dims[-spatial - 1] == channels)
        flat = at.reshaped(other, [channels])
        copy = Site(at.scope, made.place)
        found = copy.copy([*made.inputs(2), flat])
        at.take(copy)
        return found
    at.require(False)
    return ""


def _output_channels(made: Site) -> int:
    dims = made.dims(made.inputs(2)[1])
    return dims[0] if made.node.op_type == "Conv" else dims[1] * int(made.attribute("group", 1))


_WITH_KERNEL = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool")


def _explicit_pads(at: Site) -> str:
    at.require(at.is_only_output())
    mode = at.attribute("auto_pad", "NOTSET")
    at.require(mode in {"SAME_UPPER", "SAME_LOWER", "VALID"})
    if mode == "VALID":
        return at.copy(at.node.input, auto_pad=None, pads=None)
    at.require(not at.attribute("output_shape", None) and not at.attribute("ceil_mode", 0))
    totals = list(_totals(at))
    at.require(min(totals) >= 0)
    # The extra element stands at the end for UPPER; with ConvTranspose ONNX once said the opposite, see its equations.
    at.require(at.node.op_type != "ConvTranspose" or all(total % 2 == 0 for total in totals))
    small = [total // 2 for total in totals]
    large = [total - part for total, part in zip(totals, small, strict=True)]
    pads = [*small, *large] if mode == "SAME_UPPER" else [*large, *small]
    return at.copy(at.node.input, auto_pad=None, pads=pads)


def _totals(at: Site) -> Iterator[int]:
    """How many elements are added along each spatial axis."""
    spatial = _spatial(at)
    ones = [1] * spatial
    strides, dilations = (list(at.attribute(name, ones)) for name in ("strides", "dilations"))
    more = list(at.attribute("output_padding", [0] * spatial))
    for axis, size in enumerate(at.dims(at.node.input[0])[2:]):
        reach = (_kernel(at)[axis] - 1) * dilations[axis] + 1
        if at.node.op_type == "ConvTranspose":
            yield reach + more[axis] - strides[axis]
        else:
            yield max((math.ceil(size / strides[axis]) - 1) * strides[axis] + reach - size, 0)


def _pads_as_pad(at: Site) -> str:
    x, spatial = at.node.input[0], _spatial(at)
    pads = list(at.attribute("pads", []))
    at.require(any(pads) and min(pads) >= 0 and at.attribute("auto_pad", "NOTSET") == "NOTSET")
    around = [0, 0, *pads[:spatial], 0, 0, *pads[spatial:]]
    padded = at.new("Pad", x, pads=around) if at.opset < 11 else at.new("Pad", x, at.longs(around))
    return at.copy([padded, *at.node.input[1:]], pads=None)


def _groups_apart(at: Site) -> str:
    x, weight, bias = at.inputs(3)
    groups = at.attribute("group", 1)
    at.require(1 < groups <= _MOST_GROUPS)
    each, channels = at.dims(weight)[0] // groups, at.dims(weight)[1]
    parts = []
    for group in range(groups):
        inputs = [at.sliced(x, group * channels, (group + 1) * channels, 1)]
        inputs += [at.sliced(name, group * each, (group + 1) * each, 0) for name in (weight, bias) if name]
        parts.append(at.copy(inputs, group=None))
    return at.new("Concat", *parts, axis=1)


def _as_two_dimensional(at: Site) -> str:
    at.require(_spatial(at) == 1 and at.is_only_output() and not at.attribute("output_shape", None))
    x = at.unsqueezed(at.node.input[0], [2])
    weight = [at.unsqueezed(name, [2]) for name in at.node.input[1:2]]
    changed: dict[str, list[int] | None] = {"kernel_shape": [1, *_kernel(at)]}
    for name, before in (("strides", 1), ("dilations", 1), ("output_padding", 0)):
        given = at.attribute(name, None)
        changed[name] = None if given is None else [before, *given]
    pads = at.attribute("pads", None)
    changed["pads"] = None if pads is None else [0, pads[0], 0, pads[1]]
    return at.squeezed(at.copy([x, *weight, *at.node.input[2:]], **changed), [2])


def _pointwise_as_matmul(at: Site) -> str:
    x, weight, bias = at.inputs(3)
    spatial = _spatial(at)
    outputs, inputs, *kernel = at.dims(weight)
    is_plain = all(one == 1 for one in (*kernel, *_kernel(at), *at.attribute("strides", [1]), at.attribute("group", 1)))
    at.require(is_plain and not any(at.attribute("pads", [0])) and at.elem(x) in FLOATS)
    at.require(0 not in at.shape(x) and outputs > 0 and inputs > 0)
    product = at.new("MatMul", at.reshaped(weight, [outputs, inputs]), at.reshaped(x, [0, inputs, -1]))
    if bias:
        product = at.new("Add", product, at.unsqueezed(bias, [1]))
    sizes = [dim if isinstance(dim, int) else None for dim in at.shape(x)[2:]]
    at.require(sum(size is None for size in sizes) <= 1 and len(sizes) == spatial)
    return at.reshaped(product, [0, outputs, *(-1 if size is None else size for size in sizes)])


_CONVOLUTIONS_SUMS = "all values; sums may be taken in another order"
_FREE = "nothing"

CONVOLUTIONS_SPELLINGS = (
    Spelling(
        name="bias-as-add",
        operators=("Conv", "ConvTranspose"),
        matches="Conv or ConvTranspose with a bias",
        writes="the same without it, and Add",
        draft=_bias_as_add,
        cost="one more pass over the result unless the engine fuses it",
        exact=False,
        holds=_CONVOLUTIONS_SUMS,
    ),
    Spelling(
        name="add-as-bias",
        operators=("Add",),
        matches="Conv or ConvTranspose, and Add of one number for each channel",
        writes="the same with a bias",
        draft=_add_as_bias,
        cost=_FREE,
        exact=False,
        holds=_CONVOLUTIONS_SUMS,
    ),
    Spelling(
        name="explicit-pads",
        operators=_WITH_KERNEL,
        matches="a convolution or pool with auto_pad",
        writes="pads",
        draft=_explicit_pads,
        cost="nothing; the spatial sizes are fixed, as they are in the model",
        exact=True,
        holds="known spatial sizes; of ConvTranspose those with as much before as after",
    ),
    Spelling(
        name="pads-as-pad",
        operators=("Conv",),
        matches="Conv with pads",
        writes="Pad and Conv",
        draft=_pads_as_pad,
        cost="one copy of the tensor",
        exact=True,
    ),
    Spelling(
        name="groups-apart",
        operators=("Conv",),
        matches=f"Conv in up to {_MOST_GROUPS} groups",
        writes="a Slice and a Conv for each group, and Concat",
        draft=_groups_apart,
        cost="two copies of the tensor, and slower with many groups",
        exact=False,
        holds=_CONVOLUTIONS_SUMS,
    ),
    Spelling(
        name="one-dimension-as-two",
        operators=_WITH_KERNEL,
        matches="a convolution or pool over one spatial axis",
        writes="Unsqueeze, the same over two, and Squeeze",
        draft=_as_two_dimensional,
        cost=_FREE,
        exact=False,
        holds=f"{_CONVOLUTIONS_SUMS}; engines differ in what a maximum makes of NaN",
    ),
    Spelling(
        name="pointwise-conv-as-matmul",
        operators=("Conv",),
        matches="Conv with a kernel of one element",
        writes="Reshape, MatMul, Add and Reshape",
        draft=_pointwise_as_matmul,
        cost="nothing, or a copy of the tensor",
        exact=False,
        holds=f"{_CONVOLUTIONS_SUMS}; tensors that are not empty",
    ),
)
