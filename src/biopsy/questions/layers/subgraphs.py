"""Subgraphs of a model that run by themselves on recorded values, many of them in one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import CANNOT_RUN, Worker
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.nodes import RANDOM, is_constant_node
from biopsy.model.slice import Subset, candidate_bytes
from biopsy.questions.layers.question import Judge
from biopsy.questions.layers.recorded import RecordedModel, Runs, by_halves
from biopsy.recording.dependence import independent_of_inputs
from biopsy.recording.types import Borders, CutTypes
from biopsy.tensors.files import write_feeds
from biopsy.tensors.results import Array


class Subgraphs:
    """Makes models of some nodes. At their borders, tensors that look like shapes are frozen, all others are fed."""

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
        """The nodes, and those that compute inputs without a recorded value, such as Constants; sorted.

        None if they need an input that has no value at all, such as the output of a random node.
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

    def behind(self, tensors: Iterable[int]) -> set[int]:
        """The nodes that read some tensors, or what follows from them."""
        nodes: set[int] = set()
        waiting = list(tensors)
        while waiting:
            for node in self.index.consumers.get(waiting.pop(), ()):
                if node not in nodes:
                    nodes.add(node)
                    waiting += self.index.node_writes[node]
        return nodes

    def layers(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """The nodes that are layers: all but Constants."""
        return tuple(node for node in nodes if not is_constant_node(self.index, node))

    def recorded_writes(self, node: int) -> list[int]:
        """The recorded outputs of a node."""
        return [tensor for tensor in self.index.node_writes[node] if self.index.names[tensor] in self.recorded]

    def ends(self, nodes: Sequence[int]) -> list[int]:
        """The recorded outputs of a subgraph: its own ends and those of the model."""
        sinks = Subset(self.index, tuple(nodes)).sinks
        return [tensor for tensor in sinks if self.index.names[tensor] in self.recorded]

    def inputs(self, nodes: Sequence[int]) -> list[int]:
        """The tensors that a subgraph must be fed."""
        return Subset(self.index, tuple(nodes)).outside

    def model(self, nodes: Sequence[int], outputs: Sequence[int]) -> ModelInput:
        """The model of a closed subgraph with these outputs."""
        subset = Subset(self.index, tuple(nodes))
        return ModelInput(candidate_bytes(subset, self._borders.boundary(subset, outputs)), self.index.folder)

    def names(self, tensors: Iterable[int]) -> list[str]:
        """The names of tensors."""
        return [self.index.names[tensor] for tensor in tensors]

    def size(self, nodes: Sequence[int], outputs: Sequence[int]) -> int:
        """Bytes of the inputs and outputs of a subgraph, over all samples."""
        return sum(map(self.recorded.computed.size, self.names((*self.inputs(nodes), *outputs))))


class Subgraph:
    """A subgraph that is run in a batch.

    ``layers`` are the nodes to measure, ``nodes`` also those that they need (``Subgraphs.closed``), ``outputs`` the
    tensors to measure.
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


def is_hidden(
    subgraphs: Subgraphs, judge: Judge, worker: Worker, wrong: Mapping[str, list[Array]], scratch: Path
) -> bool | None:
    """Whether a model whose outputs are right has the same outputs with the ``wrong`` values inside.

    ``wrong`` has a value per sample for each tensor. ``worker`` runs the nodes behind these tensors, on them and on
    recorded values. If other outputs follow, the nodes behind got the right values in the model: what was wrong is only
    what an engine returns if the tensors are outputs. None if that cannot be found out.
    """
    index, recorded = subgraphs.index, subgraphs.recorded
    tensors = {index.ids[name] for name in wrong}
    if not tensors.isdisjoint(index.outputs):
        return False  # the model gives them itself
    nodes = subgraphs.behind(tensors)
    outputs = [tensor for tensor in index.outputs if index.producer.get(tensor) in nodes]
    judged = [name for name in subgraphs.names(outputs) if name in recorded.outputs]
    closed = subgraphs.closed(nodes)
    if not judged or closed is None:
        return None
    model = subgraphs.model(closed, [index.ids[name] for name in judged])
    part = index_bytes(model.data, model.folder)
    fed = {part.names[tensor] for tensor in part.fed_inputs()}
    read = {index.names[tensor] for tensor in tensors.intersection(subgraphs.inputs(closed))}
    if not read <= fed:  # it looks like a shape, which is frozen
        return None
    file = scratch / "wrong_inside.safetensors"
    samples = recorded.fed.samples
    write_feeds(
        file,
        [
            {name: wrong[name][number] if name in wrong else sample[name] for name in fed}
            for number, sample in enumerate(samples)
        ],
    )
    try:
        runs = worker.run(model, file)
    except CANNOT_RUN:
        return None
    finally:
        file.unlink(missing_ok=True)
    return all(
        judge.error(name, [run[name] for run in runs], recorded.outputs.values(name) or []).passed for name in judged
    )


def measuring_layers(subgraphs: Subgraphs) -> Mapping[int, tuple[int, ...]]:
    """Each layer without a recorded output -> the next layers with one, in whose pieces it is measured.

    Golden values, such as those of a PyTorch module, do not cover every tensor, since an exporter makes several nodes
    of one operator. All nodes between two tensors with values are run as one piece.
    """
    nodes = subgraphs.layers(range(len(subgraphs.index.nodes)))
    ends_of: dict[int, tuple[int, ...]] = {node: () for node in nodes if not subgraphs.recorded_writes(node)}
    for end in nodes if ends_of else ():
        if end not in ends_of:
            for node in ends_of.keys() & (subgraphs.closed([end]) or ()):
                ends_of[node] += (end,)
    return ends_of


_MOST_OPEN = 8
"""Batches that are filled at a time, enough to colour usual graphs of layers."""

_MOST_NODES = 500
"""Nodes in one batch."""


class _Batch:
    def __init__(self) -> None:
        self.subgraphs: list[Subgraph] = []
        self._size = self._nodes = 0
        self._reads: set[int] = set()
        self._writes: set[int] = set()

    def takes(self, subgraph: Subgraph, limit: int, *, strictly: bool) -> bool:
        """Whether a subgraph fits, and neither reads nor computes what another one in the batch computes.

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
    """Subgraphs in batches of disconnected ones, so that nothing can be fused across them.

    No subgraph of a batch reads what another one computes, and if that is cheap, no two read the same tensor. Inputs
    and outputs of a batch take at most ``limit`` bytes, unless a single subgraph needs more.
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
    """Run subgraphs, each batch as one model.

    Yields each subgraph, its outputs per sample or the engine's error, and ``expected`` of the model that it ran in. If
    the engine fails at a batch, its halves are run, down to the single subgraphs at fault.
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
