"""Subgraphs of a model that can be run by themselves, fed with recorded values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from biopsy.engines.base import ModelInput
from biopsy.layerwise.recorded import RecordedModel
from biopsy.model.constant_nodes import is_constant_node
from biopsy.model.index import ModelIndex
from biopsy.model.random_operators import RANDOM
from biopsy.model.slice import Subset, candidate_bytes
from biopsy.recording.borders import Borders
from biopsy.recording.cut_types import CutTypes
from biopsy.recording.dependence import independent_of_inputs


class Subgraphs:
    """Makes models of some nodes. What looks like a shape is frozen at their borders, the rest is fed."""

    def __init__(self, index: ModelIndex, recorded: RecordedModel) -> None:
        self.index = index
        self.recorded = recorded
        self._borders = Borders(
            index=index,
            types=CutTypes(index, recorded.fed),
            recorded=recorded.fed,
            independent=independent_of_inputs(index),
        )

    def closed(self, nodes: Iterable[int]) -> tuple[int, ...] | None:
        """The nodes and those that compute what they read and has no recorded value, such as Constants.

        None if they need an input that nobody has a value for, such as what a random node gave.
        """
        index = self.index
        kept = set(nodes)
        waiting = list(kept)
        while waiting:
            for tensor in index.node_reads[waiting.pop()]:
                if tensor in index.weights or index.names[tensor] in self.recorded:
                    continue
                source = index.producer.get(tensor)
                if source is None or (source not in kept and index.nodes[source].op_type in RANDOM):
                    return None
                if source not in kept:
                    kept.add(source)
                    waiting.append(source)
        return tuple(sorted(kept))

    def layers(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """Those of some nodes that are layers: all but Constants."""
        return tuple(node for node in nodes if not is_constant_node(self.index, node))

    def recorded_writes(self, node: int) -> list[int]:
        """The tensors that a node computes and that are recorded."""
        return [tensor for tensor in self.index.node_writes[node] if self.index.names[tensor] in self.recorded]

    def ends(self, nodes: Sequence[int]) -> list[int]:
        """The outputs that a subgraph has by itself, as far as they are recorded: its ends, and the model's outputs."""
        sinks = Subset(self.index, tuple(nodes)).sinks
        return [tensor for tensor in sinks if self.index.names[tensor] in self.recorded]

    def inputs(self, nodes: Sequence[int]) -> list[int]:
        """Tensors that a subgraph must be given."""
        return Subset(self.index, tuple(nodes)).outside

    def model(self, nodes: Sequence[int], outputs: Sequence[int]) -> ModelInput:
        """The model of a subgraph that is closed, with these tensors as its outputs."""
        subset = Subset(self.index, tuple(nodes))
        return ModelInput(candidate_bytes(subset, self._borders.boundary(subset, outputs)), self.index.folder)

    def names(self, tensors: Iterable[int]) -> list[str]:
        """The names of some tensors."""
        return [self.index.names[tensor] for tensor in tensors]

    def size(self, nodes: Sequence[int], outputs: Sequence[int]) -> int:
        """Bytes of what goes into and comes out of a subgraph, over all samples."""
        return sum(map(self.recorded.computed.size, self.names((*self.inputs(nodes), *outputs))))


class Subgraph:
    """A subgraph that is run beside others.

    ``layers`` are the nodes that it is about, ``nodes`` also those that they cannot do without (``Subgraphs.closed``),
    ``outputs`` the tensors that are looked at.
    """

    def __init__(
        self, subgraphs: Subgraphs, layers: tuple[int, ...], nodes: tuple[int, ...], outputs: Sequence[int]
    ) -> None:
        index = subgraphs.index
        self.layers = layers
        self.nodes = nodes
        self.outputs = outputs
        self.reads = frozenset(subgraphs.inputs(nodes))
        computing = (node for node in nodes if not is_constant_node(index, node))
        self.writes = frozenset(tensor for node in computing for tensor in index.node_writes[node])
        self.size = subgraphs.size(nodes, outputs)
