"""Convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Iterator

from biopsy.workarounds.spellings.site import FLOATS, Site
from biopsy.workarounds.spellings.spelling import Spelling

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


def _channels_first(at: Site, bias: str) -> str:
    return at.unsqueezed(bias, list(range(1, 1 + _spatial(at))))


def _bias_as_add(at: Site) -> str:
    x, weight, bias = at.inputs(3)
    at.require(bool(bias))
    return at.new("Add", at.copy([x, weight]), _channels_first(at, bias))


def _add_as_bias(at: Site) -> str:
    for one, other in (at.inputs(2), reversed(at.inputs(2))):
        place = at.scope.producers.get(one)
        if place is None or at.scope.graph.node[place].op_type not in {"Conv", "ConvTranspose"}:
            continue
        made = at.maker(one, "Conv", "ConvTranspose")
        at.require(not made.inputs(3)[2])
        return _with_bias(at, made, other)
    at.require(False)
    return ""


def _with_bias(at: Site, made: Site, bias: str) -> str:
    channels, spatial = _output_channels(made), _spatial(made)
    dims = at.dims(bias)
    at.require(dims[-spatial:] == (1,) * spatial and dims[: -spatial - 1] in {(), (1,)})
    at.require(len(dims) > spatial and dims[-spatial - 1] == channels)
    flat = at.reshaped(bias, [channels])
    copy = Site(at.scope, made.place)
    found = copy.copy([*made.inputs(2), flat])
    at.take(copy)
    return found


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


_SUMS = "all values; sums may be taken in another order"
_FREE = "nothing"

SPELLINGS = (
    Spelling(
        name="bias-as-add",
        operators=("Conv", "ConvTranspose"),
        matches="Conv or ConvTranspose with a bias",
        writes="the same without it, and Add",
        draft=_bias_as_add,
        cost="one more pass over the result unless the engine fuses it",
        exact=False,
        holds=_SUMS,
    ),
    Spelling(
        name="add-as-bias",
        operators=("Add",),
        matches="Conv or ConvTranspose, and Add of one number for each channel",
        writes="the same with a bias",
        draft=_add_as_bias,
        cost=_FREE,
        exact=False,
        holds=_SUMS,
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
        holds=_SUMS,
    ),
    Spelling(
        name="one-dimension-as-two",
        operators=_WITH_KERNEL,
        matches="a convolution or pool over one spatial axis",
        writes="Unsqueeze, the same over two, and Squeeze",
        draft=_as_two_dimensional,
        cost=_FREE,
        exact=False,
        holds=f"{_SUMS}; engines differ in what a maximum makes of NaN",
    ),
    Spelling(
        name="pointwise-conv-as-matmul",
        operators=("Conv",),
        matches="Conv with a kernel of one element",
        writes="Reshape, MatMul, Add and Reshape",
        draft=_pointwise_as_matmul,
        cost="nothing, or a copy of the tensor",
        exact=False,
        holds=f"{_SUMS}; tensors that are not empty",
    ),
)
