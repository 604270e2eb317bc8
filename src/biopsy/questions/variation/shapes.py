"""Features for shapes: the sizes of axes, titles of axes, and the number of dimensions."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from biopsy.model import walk
from biopsy.model.external import is_external
from biopsy.questions.variation.features import (
    Alternative,
    Edit,
    Feature,
    FedModel,
    chained,
    number_feature,
    set_values,
    tied_groups,
    values_of,
)
from biopsy.questions.variation.validity import Validity
from biopsy.reduction.passes.weights import SIZE_ATTRIBUTES, has_sizes, lists_of_sizes, named_tensors
from biopsy.slow_imports import onnx
from biopsy.tensors.results import Array

_MOST_ELEMENTS = 1 << 24
"""The most elements of a tensor after a change of its size."""

_MOST_NAMED = 4
_MOST_AXES = 24
"""Axes whose size is varied, of inputs first, to limit the budget."""

_LARGEST_STEP = 64


@dataclass(frozen=True)
class TensorAxis:
    """An axis of an input, or of the tensor of that ``number`` in the model."""

    name: str
    axis: int
    number: int | None = None


@dataclass(frozen=True)
class ListedSize:
    """A size as a value: in a list of sizes, which is the tensor of that ``number``, or in an attribute of a node."""

    number: int
    position: int
    attribute: str = ""


def size_features(fed: FedModel, validity: Validity) -> Iterator[Feature]:
    """Every size of inputs and weights that can be changed, with the places that must change together.

    There is none if the model breaks the standard: what other sizes it could have is not known then.
    """
    if not validity.is_strict:
        return
    closed = _with_sizes_as_fed(fed)
    size_at = _size_places(closed.model)
    axes = [
        place for place, size in size_at.items() if isinstance(place, TensorAxis) and (size > 1 or place.number is None)
    ]
    axes = axes[:_MOST_AXES]  # without weights of size 1, which are broadcast
    groups: dict[tuple[TensorAxis | ListedSize, ...], int] = {}
    for size in sorted({size_at[axis] for axis in axes}):
        anchors = [axis for axis in axes if size_at[axis] == size]
        places = [place for place, other in size_at.items() if other == size]

        def is_valid(group: Sequence[TensorAxis | ListedSize], size: int = size) -> bool:
            changed = (resized(group, other)(closed) for other in (size + 1, 2 * size))
            return any(each is not None and validity.validated(each.model) is not None for each in changed)

        for group in tied_groups(anchors, places, is_valid):
            groups.setdefault(group, size)
    titles = {group: _title(fed.model, group) for group in groups}
    for group, size in groups.items():
        others = {other: titles[each] for each, other in reversed(groups.items()) if other != size}
        yield _feature(group, size, titles[group], others)


def joined_size_features(fed: FedModel, sizes: Collection[int]) -> Iterator[Feature]:
    """All places of each of these ``sizes`` together, as it is not always known which sizes an operator ties."""
    size_at = _size_places(_with_sizes_as_fed(fed).model)
    for size in sorted(sizes):
        group = tuple(place for place, other in size_at.items() if other == size)
        if sum(isinstance(place, TensorAxis) for place in group) > 1 and size > 1:
            yield _feature(group, size, _title(fed.model, group), {})


def _feature(group: Sequence[TensorAxis | ListedSize], size: int, title: str, others: Mapping[int, str]) -> Feature:
    wanted = {size + 1: "one more", 2 * size: "doubled", 1: "one"}
    wanted |= {other: "as another size" for other in list(others)[:_MOST_NAMED] if other not in wanted}
    wanted |= {other: kind for other, kind in ((size + 2, "two more"), (size - 1, "one less")) if other not in wanted}
    return number_feature(
        "size",
        title,
        size,
        {value: kind for value, kind in wanted.items() if value > 0},
        partial(resized, group),
        limits=(1, max(2 * size, min(4 * size, size + _LARGEST_STEP), 8)),
        another="another size",
        variants_of=partial(_other_cuts, group, size),
        named={other: f"the {name}" for other, name in others.items()},
    )


def _title(model: onnx.ModelProto, group: Sequence[object]) -> str:
    """The title of a group by the roles of its axes, without lists of sizes."""
    roles: dict[str, list[str]] = {}
    for place in group:
        if isinstance(place, TensorAxis):
            roles.setdefault(place.name, []).append(axis_role(model, place.name, place.axis))
    names: dict[str, list[str]] = {}
    for name, named in roles.items():
        names.setdefault(size_title(dict.fromkeys(named)), []).append(name)
    return " = ".join(f"{title} of {' = '.join(alike)}" for title, alike in names.items())


def _with_sizes_as_fed(fed: FedModel) -> FedModel:
    """The model with the sizes of its inputs in place of open dimensions, if all iterations agree."""
    closed = fed.copied()
    for name, dims in _dims_of_inputs(closed.model):
        shapes = {feed[name].shape for feed in fed.feeds or () if name in feed}
        if len(shapes) == 1 and len(shape := next(iter(shapes))) == len(dims):
            for dim, size in zip(dims, shape, strict=True):
                dim.dim_value = size
    return closed


def _size_places(model: onnx.ModelProto) -> dict[TensorAxis | ListedSize, int]:
    """Every place of a size, with the size; open dimensions are left out."""
    sizes: dict[TensorAxis | ListedSize, int] = {}
    for name, dims in _dims_of_inputs(model):
        sizes |= {TensorAxis(name, axis): dim.dim_value for axis, dim in enumerate(dims) if dim.dim_value > 0}
    lists = lists_of_sizes(model)
    for number, (name, tensor) in enumerate(named_tensors(model)):
        if name in lists and not is_external(tensor):
            values = values_of(tensor)
            flat = [] if values is None else values.ravel().tolist()
            sizes |= {ListedSize(number, at): int(value) for at, value in enumerate(flat) if value > 0}
        elif has_sizes(tensor) and not is_external(tensor):
            sizes |= {TensorAxis(name, axis, number): size for axis, size in enumerate(tensor.dims) if size > 0}
    for number, node in enumerate(walk.nodes(model)):
        for attribute in node.attribute:
            if attribute.name in SIZE_ATTRIBUTES and attribute.name != "group":
                values_listed = list(attribute.ints) or ([attribute.i] if attribute.HasField("i") else [])
                sizes |= {ListedSize(number, at, attribute.name): v for at, v in enumerate(values_listed) if v > 0}
    return sizes


def _dims_of_inputs(model: onnx.ModelProto) -> Iterator[tuple[str, Any]]:
    weights = {weight.name for weight in model.graph.initializer}
    for info in model.graph.input:
        if info.name not in weights and info.type.WhichOneof("value") == "tensor_type":
            yield info.name, info.type.tensor_type.shape.dim


def resized(group: Sequence[TensorAxis | ListedSize], size: int, start: int = 0) -> Edit:
    """The edit that gives all places of a group another size: values are repeated, or cut off but from ``start`` on."""
    return chained([FedModel.copied, *(partial(_resized_at, place=place, size=size, start=start) for place in group)])


_MOST_CUTS = 8


def _other_cuts(group: Sequence[TensorAxis | ListedSize], present: int, size: int) -> list[Edit]:
    """Edits to a smaller size that keep other elements than the first, and the last of them make up for the sums.

    The elements that fail are then in one of them.
    """
    starts = [present - size, *range(size, present - size, max(1, size, (present - size) // _MOST_CUTS))]
    cuts = [resized(group, size, start) for start in dict.fromkeys(starts) if size < present]

    def enlarged(values: Array) -> Array:
        return (values * (2 * present / size)).astype(values.dtype) if values.dtype.kind == "f" else values

    def edit(fed: FedModel) -> FedModel | None:
        changed = resized(group, size)(fed)
        for name in {place.name for place in group if isinstance(place, TensorAxis) and place.number is None}:
            changed = None if changed is None else changed.with_input(name, enlarged)
        return changed

    return [*cuts, edit] if size < present else []


def _resized_at(fed: FedModel, place: TensorAxis | ListedSize, size: int, start: int) -> FedModel | None:
    """The edit at one place, in place."""
    if isinstance(place, ListedSize) and place.attribute:
        node = list(walk.nodes(fed.model))[place.number]
        attribute = next(each for each in node.attribute if each.name == place.attribute)
        if attribute.ints:
            attribute.ints[place.position] = size
        else:
            attribute.i = size
        return fed
    if place.number is None:
        dims = next((dims for name, dims in _dims_of_inputs(fed.model) if name == place.name), ())
        if place.axis >= len(dims) or math.prod(max(dim.dim_value, 1) for dim in dims) * size > _MOST_ELEMENTS:
            return None
        if dims[place.axis].HasField("dim_value"):
            dims[place.axis].dim_value = size
        return fed.with_input(place.name, partial(resized_axis, axis=place.axis, size=size, start=start))
    tensor = list(named_tensors(fed.model))[place.number][1]
    values = values_of(tensor)
    if values is None:
        return None
    if isinstance(place, ListedSize):
        changed = values.copy()
        changed.reshape(-1)[place.position] = size
        return fed if set_values(tensor, changed) else None
    if place.axis >= values.ndim or values.size // values.shape[place.axis] * size > _MOST_ELEMENTS:
        return None
    return fed if set_values(tensor, resized_axis(values, place.axis, size, start)) else None


def resized_axis(values: Array, axis: int, size: int, start: int = 0) -> Array:
    """Values with another size of an axis, from ``start`` on: repeated from the beginning, or cut off at the end."""
    before = values.shape[axis] if axis < values.ndim else 0
    return np.take(values, (np.arange(size) + start) % before, axis=axis) if before else values


_SPATIAL = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}

_SIZES = {"batch": "batch size", "length": "length", "height": "height", "width": "width", "depth": "depth"}

_BY_CHANNELS = frozenset(
    {
        "Conv", "ConvInteger", "QLinearConv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool",
        "GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool", "BatchNormalization", "InstanceNormalization",
        "GroupNormalization", "LRN", "DepthToSpace", "SpaceToDepth", "MaxUnpool", "Resize", "Upsample",
        "GridSample", "RoiAlign", "MaxRoiPool", "DeformConv",
    }
)  # fmt: skip
"""Operators that take images: batch, channels, and spatial axes."""

_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "ConvTranspose", "DeformConv"})
_PRODUCTS = frozenset({"MatMul", "Gemm", "MatMulInteger"})


def axis_role(model: onnx.ModelProto, name: str, axis: int) -> str:
    """The role of an axis of an input or weight, by the operator that reads it: "channels", "columns", "axis 3"."""
    graphs = list(walk.graphs(model))
    ranks = {info.name: len(info.type.tensor_type.shape.dim) for graph in graphs[::-1] for info in graph.input}
    ranks |= {weight.name: len(weight.dims) for graph in graphs[::-1] for weight in graph.initializer}
    rank = ranks.get(name, 0)
    for node in walk.nodes(model):
        for place, read in enumerate(node.input):
            if read == name and (role := _by_operator(node, place, axis, rank)):
                return role
    if rank == 1:
        return "length"
    return ("rows", "columns")[axis] if rank == 2 else f"axis {axis}"


def size_title(roles: Iterable[str]) -> str:
    """The title of the sizes of axes with these roles: "number of rows and columns", "size of axis 1"."""
    listed = list(roles)
    counted = [role for role in listed if role.endswith("s") and not role.startswith("axis")]
    others = [_SIZES.get(role, f"size of {role}") for role in listed if role not in counted]
    return " and ".join([*([f"number of {' and '.join(counted)}"] if counted else []), *others])


def _by_operator(node: onnx.NodeProto, place: int, axis: int, rank: int) -> str:
    if node.op_type in _CONVOLUTIONS and place == 1 and rank > 2:
        weights = ("output channels", "input channels", *(f"kernel {each}" for each in _SPATIAL.get(rank - 2, ())))
        if node.op_type == "ConvTranspose":
            weights = ("input channels", "output channels", *weights[2:])
        return weights[axis] if axis < len(weights) else ""
    if node.op_type in _BY_CHANNELS and place == 0 and rank > 2:
        images = ("batch", "channels", *_SPATIAL.get(rank - 2, ()))
        return images[axis] if axis < len(images) else ""
    if node.op_type in _PRODUCTS and place < 2 and rank > 2:
        return {rank - 1: "columns", rank - 2: "rows"}.get(axis, "batch" if axis == 0 else "")
    return ""


def rank_features(fed: FedModel, validity: Validity) -> Iterator[Feature]:
    """The numbers of dimensions of inputs: one is added or removed, in front or, where that passes, elsewhere."""
    weights = {weight.name for weight in fed.model.graph.initializer}
    ranks = {
        info.name: len(info.type.tensor_type.shape.dim)
        for info in fed.model.graph.input
        if info.name not in weights and info.type.tensor_type.HasField("shape")
    }
    if not validity.is_strict:
        return

    def is_valid(group: Sequence[str]) -> bool:
        rank = ranks[group[0]]
        changed = (edit(fed) for edit in (_raised(group, 2, rank, ()), _lowered(group, 0, rank - 1, ())))
        return any(each is not None and validity.validated(each.model) is not None for each in changed)

    alike = [[name for name in ranks if ranks[name] == rank] for rank in dict.fromkeys(ranks.values())]
    together = [tuple(names) for names in alike if is_valid(names)]  # one alone may lose what the inputs have in common
    alone = [name for name in ranks if not any(name in group for group in together)]
    for group in [*together, *tied_groups(alone, list(ranks), is_valid)]:
        rank = ranks[group[0]]
        yield Feature(
            what="size",
            name=f"number of dimensions of {' = '.join(group)}",
            present=str(rank),
            alternatives=_other_ranks(fed, group, rank),
        )


def _other_ranks(fed: FedModel, group: Sequence[str], rank: int) -> list[Alternative]:
    """Changes of the number of dimensions of inputs; also of what is broadcast with them, as that must stay in line."""
    graph = fed.model.graph
    ranks = {info.name: len(info.type.tensor_type.shape.dim) for info in graph.input}
    ranks |= {weight.name: len(weight.dims) for weight in graph.initializer}
    names = {name: None for node in graph.node if node.op_type in _BROADCASTING for name in node.input}
    partners = {name: ranks[name] for name in names if name in ranks and name not in group}
    in_line = {behind: [name for name in partners if partners[name] > behind] for behind in range(rank)}
    places: list[tuple[int, list[str]]] = [(behind, []) for behind in range(rank, -1, -1)]
    places += [(behind, tied) for behind, tied in in_line.items() if tied]

    def twice(behind: int, tied: Sequence[str]) -> Edit:
        return chained([_raised(group, 1, behind, tied), _raised(group, 2, behind, tied)])

    lowered = [
        _lowered(group, kept, behind, tied)
        for behind, tied in places
        for kept in dict.fromkeys([0, *_extremes_at(fed, group, behind)])
        if behind < rank
    ]
    some = [_lowered(group, kept, rank - 1, ()) for kept in range(1, _MOST_CUTS)]
    return [
        *(
            Alternative(
                kind="one more",
                text=f"{rank + 1} (one of size {size} more)",
                edit=_raised(group, size, rank, ()),
                variants=[_raised(group, size, *place) for place in places[1:]],
            )
            for size in (1, 2)
        ),
        *(
            Alternative(kind="one less", text=str(rank - 1), edit=first, variants=[*lowered[1:], *some])
            for first in lowered[:1]  # a scalar has none to lose
        ),
        Alternative(
            kind="two more",
            text=f"{rank + 2} (two more, one of size 2)",
            edit=twice(*places[0]),
            variants=[twice(*place) for place in places[1:]],
        ),
    ]


_BROADCASTING = frozenset(
    {
        "Add", "Sub", "Mul", "Div", "Pow", "Mod", "PRelu", "Where", "Max", "Min", "Mean", "Sum", "And", "Or", "Xor",
        "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "BitShift", "BitwiseAnd", "BitwiseOr",
        "BitwiseXor",
    }
)  # fmt: skip
"""Operators that broadcast their inputs."""


def _extremes_at(fed: FedModel, group: Sequence[str], behind: int) -> Iterator[int]:
    """Where the least and the greatest value of each input are on the axis with so many ``behind`` it."""
    for values in (feed[name] for feed in fed.feeds or () for name in group if name in feed):
        if values.size and behind < values.ndim and values.dtype.kind in "biuf":
            for at in (values.argmin(), values.argmax()):
                yield int(np.unravel_index(at, values.shape)[-1 - behind])


def _raised(group: Sequence[str], size: int, behind: int, tied: Sequence[str]) -> Edit:
    """The edit that adds a dimension to inputs, with so many ``behind`` it, and one of size 1 to ``tied`` tensors."""
    sizes = {**dict.fromkeys(group, size), **dict.fromkeys(tied, 1)}
    edits = [partial(_reranked, name=name, behind=behind, size=each) for name, each in sizes.items()]
    return chained([FedModel.copied, *edits])


def _lowered(group: Sequence[str], kept: int, behind: int, tied: Sequence[str]) -> Edit:
    """The edit that removes the dimension with so many ``behind`` it. It keeps the slice of number ``kept``."""
    edits = [partial(_reranked, name=name, behind=behind, size=0, kept=kept) for name in (*group, *tied)]
    return chained([FedModel.copied, *edits])


def _reranked(fed: FedModel, name: str, behind: int, size: int, kept: int = 0) -> FedModel | None:
    """The edit of one input or weight, in place; it adds a dimension of this ``size``, or removes one if it is 0."""

    def at(rank: int) -> int:
        return max(rank - behind - (not size), 0)

    def change(values: Array) -> Array:
        place = at(values.ndim)
        if size:
            return np.repeat(np.expand_dims(values, place), size, place)
        return np.asarray(values.take(kept % values.shape[place], place))

    weight = next((each for each in fed.model.graph.initializer if each.name == name), None)
    held = [feed[name] for feed in fed.feeds or () if name in feed] if weight is None else [values_of(weight)]
    if any(each is None or (not size and not each.shape[at(each.ndim) :][:1] > (0,)) for each in held):
        return None
    if weight is not None:
        return fed if held[0] is not None and set_values(weight, change(held[0])) else None
    shape = next(info for info in fed.model.graph.input if info.name == name).type.tensor_type.shape
    dims, place = list(shape.dim), at(len(shape.dim))
    if not size and not dims:
        return None
    dims[place : place + (not size)] = [shape.Dimension(dim_value=size)] if size else []
    del shape.dim[:]
    shape.dim.extend(dims)
    return fed.with_input(name, change)
