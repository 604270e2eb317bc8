"""Subgraphs of a model that can be run by themselves, fed with recorded values, many of them in one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.model.index import ModelIndex, Node
from biopsy.model.nodes import RANDOM, is_constant_node
from biopsy.model.slice import Subset, candidate_bytes
from biopsy.questions.layers.recorded import RecordedModel, Runs, by_halves
from biopsy.recording.dependence import independent_of_inputs
from biopsy.recording.types import Borders, CutTypes


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


# Layers without a recorded value of their own: the next ones that have, in whose pieces they are measured.
#
# Values that somebody recorded elsewhere, such as those of a PyTorch module, are not of every tensor: an exporter
# makes several nodes of one operator. What lies between two tensors that have values is run as one piece.


def bridges(subgraphs: Subgraphs) -> Mapping[int, tuple[int, ...]]:
    """Each layer that has no recorded output -> the layers at whose ends it is measured; none where nothing follows."""
    nodes = subgraphs.layers(range(len(subgraphs.index.nodes)))
    ends_of: dict[int, tuple[int, ...]] = {node: () for node in nodes if not subgraphs.recorded_writes(node)}
    for end in nodes if ends_of else ():
        if end not in ends_of:
            for node in ends_of.keys() & (subgraphs.closed([end]) or ()):
                ends_of[node] += (end,)
    return ends_of


def with_ends(layers: Iterable[Node], ends_of: Mapping[int, tuple[int, ...]], every: Iterable[Node]) -> list[Node]:
    """Some layers, and those at whose ends they are measured, in the order of the graph."""
    wanted = {number for layer in layers for number in (layer.number, *ends_of.get(layer.number, ()))}
    return [layer for layer in every if layer.number in wanted and layer.op_type not in RANDOM]


# Many subgraphs in one model: batches of them that nothing connects, and their runs.

_MOST_OPEN = 8
"""Batches that are filled at a time: enough for the colours that graphs of layers need."""

_MOST_NODES = 500
"""Nodes of one batch."""


class _Batch:
    def __init__(self) -> None:
        self.subgraphs: list[Subgraph] = []
        self._size = self._nodes = 0
        self._reads: set[int] = set()
        self._writes: set[int] = set()

    def takes(self, subgraph: Subgraph, limit: int, *, strictly: bool) -> bool:
        """Whether a subgraph finds room here, and neither reads nor computes what another one here computes.

        ``strictly``: nor reads what another one reads.
        """
        is_too_large = self._size + subgraph.size > limit or self._nodes + len(subgraph.nodes) > _MOST_NODES
        touched = self._writes | self._reads if strictly else self._writes
        is_apart = subgraph.reads.isdisjoint(touched) and subgraph.writes.isdisjoint(self._writes | self._reads)
        return is_apart and not (self.subgraphs and is_too_large)

    def add(self, subgraph: Subgraph) -> None:
        self.subgraphs.append(subgraph)
        self._size += subgraph.size
        self._nodes += len(subgraph.nodes)
        self._reads |= subgraph.reads
        self._writes |= subgraph.writes


def batches(subgraphs: Iterable[Subgraph], limit: int) -> list[list[Subgraph]]:
    """Subgraphs in batches whose models fall apart into them, so that nothing can be fused across them.

    No subgraph of a batch reads what another one computes. Where it is cheap, no two read the same tensor either. What
    a batch is given and gives takes at most ``limit`` bytes, unless a single subgraph needs more.
    """
    full: list[_Batch] = []
    filling: list[_Batch] = []
    for subgraph in subgraphs:
        batch = next((batch for batch in filling if batch.takes(subgraph, limit, strictly=True)), None)
        if batch is None and len(filling) >= _MOST_OPEN:
            batch = next((batch for batch in filling if batch.takes(subgraph, limit, strictly=False)), None)
        if batch is None:
            batch = _Batch()
            filling.append(batch)
            if len(filling) > _MOST_OPEN:
                full.append(filling.pop(0))
        batch.add(subgraph)
    return [batch.subgraphs for batch in (*full, *filling)]


def run_in_batches(
    subgraphs: Subgraphs,
    suspect: Worker,
    batched: Iterable[list[Subgraph]],
    expected: Callable[[ModelInput], Runs | None],
) -> Iterator[tuple[Subgraph, Runs | errors.BiopsyError, Runs | None]]:
    """Run subgraphs, those of a batch in one model.

    Yields each subgraph with its outputs per sample, or with what the engine raised, and with what ``expected`` gives
    for the model that it was run in. Where the engine fails at a batch, its halves are run, down to the single
    subgraphs that the engine fails at.
    """

    def run(batch: Sequence[Subgraph]) -> tuple[ModelInput, Runs]:
        nodes = sorted({node for subgraph in batch for node in subgraph.nodes})
        model = subgraphs.model(nodes, [tensor for subgraph in batch for tensor in subgraph.outputs])
        return model, suspect.run(model, subgraphs.recorded.fed.path)

    for batch in batched:
        for part, answer in by_halves(batch, run):
            if isinstance(answer, errors.BiopsyError):
                yield part[0], answer, None
                continue
            model, runs = answer
            values = expected(model)
            yield from ((subgraph, runs, values) for subgraph in part)
