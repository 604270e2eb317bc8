"""Many subgraphs in one model: batches of them that nothing connects, and their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.layerwise.reference_values import CANNOT_RUN, Runs
from biopsy.layerwise.subgraphs import Subgraph, Subgraphs

_MOST_OPEN = 8
"""Batches that are filled at a time: enough for the colours that graphs of layers need."""

_MOST_NODES = 500
"""Nodes of one batch."""


class _Batch:
    def __init__(self) -> None:
        self.subgraphs: list[Subgraph] = []
        self.size = 0
        self.nodes = 0
        self._reads: set[int] = set()
        self._writes: set[int] = set()

    def takes(self, subgraph: Subgraph, limit: int, *, strictly: bool) -> bool:
        """Whether a subgraph finds room here, and neither reads nor computes what another one here computes.

        ``strictly``: nor reads what another one reads.
        """
        is_too_large = self.size + subgraph.size > limit or self.nodes + len(subgraph.nodes) > _MOST_NODES
        if self.subgraphs and is_too_large:
            return False
        is_apart = (
            subgraph.reads.isdisjoint(self._writes)
            and subgraph.writes.isdisjoint(self._reads)
            and subgraph.writes.isdisjoint(self._writes)
        )
        return is_apart and not (strictly and not subgraph.reads.isdisjoint(self._reads))

    def add(self, subgraph: Subgraph) -> None:
        self.subgraphs.append(subgraph)
        self.size += subgraph.size
        self.nodes += len(subgraph.nodes)
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
        strict = (batch for batch in filling if batch.takes(subgraph, limit, strictly=True))
        batch = next(strict, None)
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
    keep: Callable[[Subgraph, Runs | errors.BiopsyError, Runs | None], None],
    expected: Callable[[ModelInput], Runs | None],
) -> None:
    """Run subgraphs, those of a batch in one model.

    ``keep`` gets each subgraph with its outputs per sample, or with what the engine raised, and with what ``expected``
    gives for the model that it was run in. Where the engine fails at a batch, its halves are run, down to the single
    subgraphs that the engine fails at.
    """
    waiting = list(batched)[::-1]
    while waiting:
        batch = waiting.pop()
        nodes = tuple(sorted({node for subgraph in batch for node in subgraph.nodes}))
        model = subgraphs.model(nodes, [tensor for subgraph in batch for tensor in subgraph.outputs])
        try:
            runs = suspect.run(model, subgraphs.recorded.fed.path)
        except CANNOT_RUN as error:
            if len(batch) == 1:
                keep(batch[0], error, None)
            else:
                half = len(batch) // 2
                waiting += [batch[half:], batch[:half]]
            continue
        values = expected(model)
        for subgraph in batch:
            keep(subgraph, runs, values)
