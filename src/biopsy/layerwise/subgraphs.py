"""Pieces of a model that can be run by themselves, fed with recorded values; batches of them that nothing connects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from biopsy import events
from biopsy.engines.base import ModelInput
from biopsy.layerwise.recorded import Recorded, is_constant
from biopsy.model.index import ModelIndex
from biopsy.model.slice import Subset, candidate_bytes
from biopsy.recording.cut_types import CutTypes
from biopsy.recording.reference_run import Recording
from biopsy.reduction.candidate import Candidate
from biopsy.reduction.problem import Problem
from biopsy.tensors.results import Array

_MOST_OPEN = 8
"""Batches that are filled at a time: enough for the colours that graphs of layers need."""

_MOST_NODES = 500
"""Nodes of one batch."""


class _Stored(Recording):
    """Recorded values as borders of candidates ask for them, all from one file: nothing is run for them."""

    def __init__(self, index: ModelIndex, recorded: Recorded) -> None:
        super().__init__(index, lambda: recorded.fed, Path(), events.ignore)
        self._recorded = recorded
        self._names = index.names

    def values(self, tensor: int) -> list[Array] | None:
        name = self._names[tensor]
        return [sample[name] for sample in self._recorded.fed] if name in self._recorded else None


class Pieces:
    """Makes models of some nodes; their borders are those that a reduction gives its candidates."""

    def __init__(self, index: ModelIndex, recorded: Recorded) -> None:
        self.index = index
        self.recorded = recorded
        self._stored = _Stored(index, recorded)
        self._types = CutTypes(index, self._stored.tensor_type)

    def closed(self, nodes: Iterable[int]) -> tuple[int, ...] | None:
        """The nodes and those that compute what they read and has no recorded value, such as Constants.

        None if they need an input that nobody has a value for.
        """
        index = self.index
        kept = set(nodes)
        waiting = list(kept)
        while waiting:
            for tensor in index.node_reads[waiting.pop()]:
                if tensor in index.weights or index.names[tensor] in self.recorded:
                    continue
                source = index.producer.get(tensor)
                if source is None:
                    return None
                if source not in kept:
                    kept.add(source)
                    waiting.append(source)
        return tuple(sorted(kept))

    def recorded_writes(self, node: int) -> list[int]:
        """The tensors that a node computes and that are recorded."""
        return [tensor for tensor in self.index.node_writes[node] if self.index.names[tensor] in self.recorded]

    def ends(self, nodes: Sequence[int]) -> list[int]:
        """The outputs that a piece has by itself, as far as they are recorded: its ends, and outputs of the model."""
        sinks = Subset(self.index, tuple(nodes)).sinks
        return [tensor for tensor in sinks if self.index.names[tensor] in self.recorded]

    def fed(self, nodes: Sequence[int]) -> list[int]:
        """Tensors that a piece must be given."""
        return Subset(self.index, tuple(nodes)).outside

    def model(self, nodes: Sequence[int], outputs: Sequence[int]) -> ModelInput:
        """The model of a piece that is closed, with these tensors as its outputs."""
        problem = Problem(self.index, self._types, self._stored)
        candidate = Candidate(tuple(nodes))
        border = problem.boundary(candidate)
        infos = dict(border.infos)
        for tensor in outputs:
            info = self._types.info(tensor)
            if tensor not in infos and info is not None:
                infos[tensor] = info
        data = candidate_bytes(problem.subset(candidate), replace(border, infos=infos, outputs=list(outputs)))
        return ModelInput(data, self.index.folder)

    def size(self, nodes: Sequence[int], outputs: Sequence[int]) -> int:
        """Bytes of what goes into and comes out of a piece, over all samples."""
        names = (self.index.names[tensor] for tensor in (*self.fed(nodes), *outputs))
        return sum(map(self.recorded.size, names))


class Part:
    """A piece that is run beside others: the nodes it is about, those it cannot do without, and the outputs looked at.

    ``nodes`` are closed (see ``Pieces.closed``).
    """

    def __init__(self, pieces: Pieces, about: tuple[int, ...], nodes: tuple[int, ...], outputs: Sequence[int]) -> None:
        self.about = about
        self.nodes = nodes
        self.outputs = outputs
        self.reads = frozenset(pieces.fed(nodes))
        own = (one for one in nodes if not is_constant(pieces.index, one))
        self.writes = frozenset(tensor for one in own for tensor in pieces.index.node_writes[one])
        self.size = pieces.size(nodes, self.outputs)


class _Batch:
    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.size = 0
        self.nodes = 0
        self._reads: set[int] = set()
        self._writes: set[int] = set()

    def takes(self, part: Part, limit: int, *, strictly: bool) -> bool:
        """Whether a part finds room here, and neither reads nor computes what another one here computes.

        ``strictly``: nor reads what another one reads.
        """
        if self.parts and (self.size + part.size > limit or self.nodes + len(part.nodes) > _MOST_NODES):
            return False
        apart = (
            part.reads.isdisjoint(self._writes)
            and part.writes.isdisjoint(self._reads)
            and part.writes.isdisjoint(self._writes)
        )
        return apart and not (strictly and not part.reads.isdisjoint(self._reads))

    def add(self, part: Part) -> None:
        self.parts.append(part)
        self.size += part.size
        self.nodes += len(part.nodes)
        self._reads |= part.reads
        self._writes |= part.writes


def batches(parts: Iterable[Part], limit: int) -> list[list[Part]]:
    """Parts in batches whose models fall apart into those parts, so that nothing can be fused across them.

    No part of a batch reads what another one computes. Where it is cheap, no two read the same tensor either. What a
    batch is given and gives takes at most ``limit`` bytes, but for a part that needs more by itself.
    """
    done: list[_Batch] = []
    filling: list[_Batch] = []
    for part in parts:
        strict = (batch for batch in filling if batch.takes(part, limit, strictly=True))
        batch = next(strict, None)
        if batch is None and len(filling) >= _MOST_OPEN:
            batch = next((batch for batch in filling if batch.takes(part, limit, strictly=False)), None)
        if batch is None:
            batch = _Batch()
            filling.append(batch)
            if len(filling) > _MOST_OPEN:
                done.append(filling.pop(0))
        batch.add(part)
    return [batch.parts for batch in (*done, *filling)]
