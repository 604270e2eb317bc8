"""What an axis of a tensor is called: by the operator that reads it, else by its place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from biopsy.model import walk

if TYPE_CHECKING:
    import onnx

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
"""Operators that take images: batch, channels, and what lies in space."""

_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "ConvTranspose", "DeformConv"})
_PRODUCTS = frozenset({"MatMul", "Gemm", "MatMulInteger"})


def role_of(model: onnx.ModelProto, name: str, axis: int) -> str:
    """What an axis of an input or weight is called: "channels", "columns", "axis 3"."""
    rank = _rank(model, name)
    for node in walk.nodes(model):
        for place, read in enumerate(node.input):
            if read == name and (found := _by_operator(node, place, axis, rank)):
                return found
    return _by_place(axis, rank)


def sizes_called(roles: Iterable[str]) -> str:
    """What the sizes of axes with such roles are called: "number of rows and columns", "size of axis 1"."""
    listed = list(roles)
    counted = [role for role in listed if role.endswith("s") and not role.startswith("axis")]
    others = [_SIZES.get(role, f"size of {role}") for role in listed if role not in counted]
    return " and ".join([*([f"number of {' and '.join(counted)}"] if counted else []), *others])


def _by_operator(node: onnx.NodeProto, place: int, axis: int, rank: int) -> str:
    if node.op_type in _CONVOLUTIONS and place == 1 and rank > 2:
        weights = ("output channels", "input channels", *(f"kernel {one}" for one in _SPATIAL.get(rank - 2, ())))
        if node.op_type == "ConvTranspose":
            weights = ("input channels", "output channels", *weights[2:])
        return weights[axis] if axis < len(weights) else ""
    if node.op_type in _BY_CHANNELS and place == 0 and rank > 2:
        images = ("batch", "channels", *_SPATIAL.get(rank - 2, ()))
        return images[axis] if axis < len(images) else ""
    if node.op_type in _PRODUCTS and place < 2 and rank > 2:
        return {rank - 1: "columns", rank - 2: "rows"}.get(axis, "batch" if axis == 0 else "")
    return ""


def _by_place(axis: int, rank: int) -> str:
    if rank == 1:
        return "length"
    return ("rows", "columns")[axis] if rank == 2 else f"axis {axis}"


def _rank(model: onnx.ModelProto, name: str) -> int:
    for graph in walk.graphs(model):
        for weight in graph.initializer:
            if weight.name == name:
                return len(weight.dims)
        for info in graph.input:
            if info.name == name:
                return len(info.type.tensor_type.shape.dim)
    return 0
