"""What a correct conversion to a narrower type gives: a model of which every value is rounded to that type.

It is the yardstick of converters to float16 and of quantizers, as plain float32 is that of optimizers: what such a
model errs by, rounding explains. Values are rounded where they are stored, between the nodes of the main graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from biopsy.blame.transformations.tool import Rounds
from biopsy.model import walk
from biopsy.model.infer import infer_types
from biopsy.tensors.results import Array, Feed

if TYPE_CHECKING:
    import onnx

_LEVELS = 255
_FEWEST = 9
"""Elements of a tensor that is quantized: fewer are sizes or scales of an operator, which stay as they are."""

Ranges = Mapping[str, tuple[float, float]]
"""The least and the greatest value of a tensor."""


def ranges_of(samples: Sequence[Feed]) -> dict[str, tuple[float, float]]:
    """The range of every tensor of floating type, 0 included, over all samples."""
    found: dict[str, tuple[float, float]] = {}
    for sample in samples:
        for name, value in sample.items():
            finite = value[np.isfinite(value)] if value.dtype.kind == "f" else value[:0]
            if finite.size >= _FEWEST:
                low, high = found.get(name, (0.0, 0.0))
                found[name] = (min(low, float(finite.min())), max(high, float(finite.max())))
    return found


def rounded_feeds(feeds: Sequence[Feed], to: Rounds, ranges: Ranges) -> list[dict[str, Array]]:
    """The inputs with every number rounded."""
    return [{name: _rounded(value, to, ranges.get(name)) for name, value in feed.items()} for feed in feeds]


def rounded_model(model: onnx.ModelProto, to: Rounds, ranges: Ranges) -> onnx.ModelProto:
    """A copy of a model that rounds its weights, and what each node of the main graph gives, if that is float32."""
    import onnx
    from onnx import numpy_helper

    copy = onnx.ModelProto.FromString(model.SerializeToString())
    floats = {name for name, kind in infer_types(copy).items() if kind.elem == onnx.TensorProto.FLOAT}
    for weight in copy.graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT and weight.data_location != onnx.TensorProto.EXTERNAL:
            values = numpy_helper.to_array(weight)
            extent = (float(values.min(initial=0)), float(values.max(initial=0))) if values.size >= _FEWEST else None
            weight.CopyFrom(numpy_helper.from_array(_rounded(values, to, extent), weight.name))
    taken = walk.named(copy.graph)
    nodes = []
    for node in copy.graph.node:
        nodes.append(node)
        for place, name in enumerate(node.output):
            if name not in floats or (to == "int8" and name not in ranges):
                continue
            exact = walk.free_name(f"{name}_exact", taken)
            taken.add(exact)
            node.output[place] = exact
            nodes += _float16_nodes(exact, name, taken) if to == "float16" else _int8_nodes(exact, name, ranges[name])
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    return copy


def _float16_nodes(source: str, target: str, taken: set[str]) -> list[onnx.NodeProto]:
    """Engines keep such pairs where they would drop the rounding of a node."""
    from onnx import TensorProto, helper

    half = walk.free_name(f"{target}_half", taken)
    taken.add(half)
    return [
        helper.make_node("Cast", [source], [half], to=TensorProto.FLOAT16),
        helper.make_node("Cast", [half], [target], to=TensorProto.FLOAT),
    ]


def _int8_nodes(source: str, target: str, extent: tuple[float, float]) -> list[onnx.NodeProto]:
    """The steps of a quantization in float32, by operators that every version of the standard has."""
    from onnx import helper

    step = _step(extent)
    if step == 0:
        return [helper.make_node("Identity", [source], [target])]
    names = {part: f"{target}_{part}" for part in ("step", "steps", "half", "shifted", "whole")}
    return [
        _constant(names["step"], step),
        _constant(names["half"], 0.5),
        helper.make_node("Div", [source, names["step"]], [names["steps"]]),
        helper.make_node("Add", [names["steps"], names["half"]], [names["shifted"]]),
        helper.make_node("Floor", [names["shifted"]], [names["whole"]]),
        helper.make_node("Mul", [names["whole"], names["step"]], [target]),
    ]


def _constant(name: str, value: float) -> onnx.NodeProto:
    from onnx import helper, numpy_helper

    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value, np.float32), name))


def _rounded(values: Array, to: Rounds, extent: tuple[float, float] | None) -> Array:
    if values.dtype != np.float32:
        return values
    with np.errstate(all="ignore"):
        if to == "float16":
            return values.astype(np.float16).astype(np.float32)
        step = 0.0 if extent is None else _step(extent)
        return values if step == 0 else (np.floor(values / step + 0.5) * step).astype(np.float32)


def _step(extent: tuple[float, float]) -> float:
    """The distance of two neighbouring values of eight bits, symmetric about 0: as coarse as any quantizer's."""
    return float(np.float32(2 * max(abs(extent[0]), abs(extent[1])) / _LEVELS))
