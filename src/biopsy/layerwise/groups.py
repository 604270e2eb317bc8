"""Groups: layers that are right one by one, and wrong where the engine runs them together.

Observing does not help there: what is marked is not fused. So the neighbourhood of a layer that something points to
grows until the error shows at its ends; then what is not needed for it goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from biopsy import errors, events
from biopsy.layerwise.batches import batches, run_in_batches
from biopsy.layerwise.findings import LayerGroup
from biopsy.layerwise.layers import origins_of
from biopsy.layerwise.reference_values import Runs
from biopsy.layerwise.subgraph_faults import SubgraphFault, SubgraphRuns
from biopsy.layerwise.subgraphs import Subgraph, Subgraphs
from biopsy.layerwise.tensor_errors import worst
from biopsy.model.node_order import neighbourhood_order
from biopsy.search.subset import minimized


class GroupSearch:
    """Looks for groups of layers that are wrong together, by runs of subgraphs."""

    def __init__(self, runs: SubgraphRuns) -> None:
        self.runs = runs
        self._subgraphs: Subgraphs = runs.subgraphs
        self._index = runs.subgraphs.index

    def windows(self, among: Iterable[int], size: int, limit: int) -> list[tuple[int, ...]]:
        """The subgraphs of ``size`` neighbours, each half over the next one, that are wrong; the worst first.

        They are run many at a time, below ``limit`` bytes of tensors. An engine that fails at one says nothing: a cut
        may be what it does not take.
        """
        windows = list(self._windows(among, size))
        wrong: list[tuple[float, tuple[int, ...]]] = []
        done = itertools.count(1)

        def keep(window: Subgraph, runs: Runs | errors.BiopsyError, expected: Runs | None) -> None:
            self.runs.listener(events.Measured("windows", next(done), len(windows)))
            beyond = [] if isinstance(runs, errors.BiopsyError) else self.runs.errors(window.outputs, runs, expected)
            if beyond:
                wrong.append((-worst(beyond).tolerance_ratio, window.layers))

        for _ in range(self.runs.runs_each):
            batched = batches(windows, limit)
            run_in_batches(self._subgraphs, self.runs.suspect, batched, keep, self.runs.reference.of)
        return list(dict.fromkeys(layers for _, layers in sorted(wrong)))

    def _windows(self, among: Iterable[int], size: int) -> Iterable[Subgraph]:
        order = neighbourhood_order(self._index, sorted(among))
        for start in range(0, max(len(order) - size // 2, 1), size // 2):
            layers = tuple(order[start : start + size])
            closed = self._subgraphs.closed(layers)
            if closed and (outputs := self._subgraphs.ends(closed)):
                yield Subgraph(self._subgraphs, layers, closed, outputs)

    def around(
        self, centre: int, among: Iterable[int], like: SubgraphFault | None = None, most: int | None = None
    ) -> LayerGroup | None:
        """The group of layers around ``centre`` that is wrong: its neighbourhood grows until the error shows.

        It grows to about ``most`` nodes, and only over those of ``among``. ``like``: wrong in this way.
        """
        allowed = set(among)
        area, edge, steps = {centre}, {centre}, 1
        while not self.runs.is_spent:
            for _ in range(steps):
                edge = self._neighbours(edge) & allowed - area
                area |= edge
            fault = self.runs.fault(area)
            if fault is not None and (like is None or fault.is_like(like)):
                return self.within(area, fault)
            if not edge or (most is not None and len(area) > most):
                return None
            steps *= 2
        return None

    def _neighbours(self, nodes: Iterable[int]) -> set[int]:
        index = self._index
        neighbours: set[int] = set()
        for node in nodes:
            neighbours.update(index.producer[tensor] for tensor in index.node_reads[node] if tensor in index.producer)
            for tensor in index.node_writes[node]:
                neighbours.update(index.consumers.get(tensor, ()))
        return neighbours

    def within(self, nodes: Iterable[int], fault: SubgraphFault) -> LayerGroup:
        """The few of some nodes that are wrong in the same way together."""
        order = neighbourhood_order(self._index, sorted(nodes))
        few_nodes = tuple(sorted(minimized(order, lambda some: self._is_wrong(some, fault))))
        last = self.runs.fault(few_nodes) or fault
        rate = self.runs.flaky_rate(few_nodes, last)
        if rate is not None and self.runs.runs_each == 1:  # it is noticed only now
            self.runs.expect_flakiness()
            return self.within(nodes, fault)
        closed = self._subgraphs.closed(few_nodes) or few_nodes
        layers = self._subgraphs.layers(closed) or few_nodes
        return LayerGroup(
            nodes=layers,
            labels=tuple(self._index.nodes[node].label for node in layers),
            inputs=tuple(self._subgraphs.names(self._subgraphs.inputs(closed))),
            outputs=tuple(self._subgraphs.names(self._subgraphs.ends(few_nodes))),
            error=last.error,
            failure=last.failure,
            hides=self._hides(few_nodes, last),
            rounding_ratio=last.noise.ratio if last.noise is not None else None,
            flaky=rate,
            is_of_model=last.is_of_model,
            origins=origins_of(self._index, layers),
        )

    def _is_wrong(self, nodes: Sequence[int], like: SubgraphFault) -> bool:
        fault = self.runs.fault(nodes)
        return fault is not None and fault.is_like(like)

    def _hides(self, nodes: tuple[int, ...], fault: SubgraphFault) -> bool | None:
        """Whether a group is right when the tensors inside it are marked; None if there are none."""
        closed = self._subgraphs.closed(nodes) or nodes
        ends = self._subgraphs.ends(closed)
        inner = [
            tensor
            for node in nodes
            for tensor in self._subgraphs.recorded_writes(node)
            if tensor not in ends and tensor in self._index.consumers
        ]
        if not inner:
            return None
        marked = self.runs.fault_at(closed, [*ends, *inner])
        return marked is None or not marked.is_like(fault)
