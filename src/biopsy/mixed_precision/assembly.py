"""From a mixed graph to the bytes of a model: only nodes are written anew, weights are the bytes that they were.

A message of protobuf may be written in pieces, one after the other: what stands apart is merged by who reads it. Field
numbers: onnx.proto3, messages ModelProto and GraphProto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from biopsy.model.wire import head, string_field

if TYPE_CHECKING:
    import onnx

    from biopsy.mixed_precision.caster import Mixed

_GRAPH, _INITIALIZER = 7, 5


class Assembly:
    """Everything of a model that no candidate changes, as bytes.

    ``places`` are serialized TensorProtos by name for weights that must be referred to from another folder.
    """

    def __init__(self, model: onnx.ModelProto, places: Mapping[str, bytes]) -> None:
        graph = model.graph
        self._weights = {
            weight.name: string_field(_INITIALIZER, places.get(weight.name) or weight.SerializeToString())
            for weight in graph.initializer
        }
        rest = type(graph)()
        for field in ("name", "doc_string"):
            if graph.HasField(field):
                setattr(rest, field, getattr(graph, field))
        for field in ("input", "output", "sparse_initializer", "quantization_annotation", "metadata_props"):
            if hasattr(graph, field):
                getattr(rest, field).extend(getattr(graph, field))
        self._rest = rest.SerializeToString()
        around = type(model)()
        for descriptor, value in model.ListFields():
            if descriptor.name == "graph":
                continue
            if hasattr(value, "append"):
                getattr(around, descriptor.name).extend(value)
            else:
                setattr(around, descriptor.name, value)
        self._around = around.SerializeToString()

    def parts(self, made: Mixed) -> Sequence[bytes]:
        """The bytes of a mixed model, in pieces."""
        nodes = made.graph.SerializeToString(deterministic=True)
        weights = [field for name, field in self._weights.items() if name not in made.unread]
        weights += [string_field(_INITIALIZER, weight.SerializeToString()) for weight in made.weights.values()]
        length = len(nodes) + len(self._rest) + sum(map(len, weights))
        return [self._around, head(_GRAPH, length), nodes, *weights, self._rest]


def unchanged(model: onnx.ModelProto, places: Mapping[str, bytes]) -> Sequence[bytes]:
    """The bytes of the model itself, its weights referred to at ``places``."""
    from biopsy.mixed_precision.caster import Mixed

    nodes = type(model.graph)()
    nodes.node.extend(model.graph.node)
    nodes.value_info.extend(model.graph.value_info)
    return Assembly(model, places).parts(Mixed(nodes, {}, frozenset()))
