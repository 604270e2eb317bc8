"""What neither the whole model nor isolated layers explain: groups of layers, and errors that add up."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.layerwise.findings import LayerGroup
from biopsy.layerwise.groups import GroupSearch
from biopsy.layerwise.marked_tensors import MarkedTensors
from biopsy.layerwise.subgraph_faults import SubgraphFault
from biopsy.model.index import ModelIndex, Node

_MOST_GROUPS = 8
_JUMP = 10.0
"""The tolerance ratio from which an error is looked at even where the model's outputs do not ask for it.

Rounding adds up within a few layers too.
"""

_NEAR = 64
"""Nodes of a neighbourhood that is searched for what makes a layer wrong whose inputs are right."""

_WINDOWS = (4, 16)
"""Nodes of the subgraphs that are looked through; any half of them that are neighbours stand in one together."""

_FEW = 32
"""Nodes of a group that a person can look at; more of them are rounding that adds up."""


class Explanation:
    """Looks for groups. ``groups`` are those found so far.

    ``is_wrong``: the whole model is. ``isolated``: nodes that are wrong in isolation; ``random``: nodes that are never
    judged.
    """

    def __init__(
        self,
        index: ModelIndex,
        search: GroupSearch,
        marked: MarkedTensors,
        *,
        is_wrong: bool,
        isolated: frozenset[int],
        random: frozenset[int],
    ) -> None:
        self.groups: list[LayerGroup] = []
        self._unexplained_rest: list[str] = []
        self._index = index
        self._search = search
        self._runs = search.runs
        self._marked = marked
        self._isolated = isolated
        self._random = random
        self._is_wrong = is_wrong
        self._windows_are_wrong = False

    def run(self, limit: int) -> None:
        """Look everywhere; at most ``limit`` bytes of tensors are in memory at a time."""
        self._look_through_windows(limit)
        self._marked.narrow(self._inner_names())
        self._explain()

    def look_at(self, layers: Sequence[Node]) -> None:
        """Look around layers that are wrong in the whole model by far, although their inputs are right there."""
        for node in self._unexplained(layers):
            if node in self._rest and not self._is_done:
                self._take(self._search.around(node, self._rest, most=_NEAR))

    @property
    def remarks(self) -> list[str]:
        """What a reader must know besides."""
        rounded = self._runs.rounded
        if not rounded:
            return self._unexplained_rest
        most = max(rounded, key=len)
        noise = rounded[most]
        return [
            *self._unexplained_rest,
            f"{len(most)} layers together are out of tolerance by accumulated or amplified rounding; neither a layer "
            f"nor fusion is at fault: their error is {noise.ratio:.2g} times that of plain float32 on the same values, "
            f"and up to {noise.limit:g} times is rounding",
        ]

    @property
    def _blamed(self) -> frozenset[int]:
        return self._isolated.union(*(group.nodes for group in self.groups))

    @property
    def _rest(self) -> set[int]:
        """Nodes that are not known to be wrong, and not random."""
        return set(range(len(self._index.nodes))) - self._blamed - self._random

    @property
    def _is_done(self) -> bool:
        return len(self.groups) >= _MOST_GROUPS or self._runs.is_spent

    def _take(self, group: LayerGroup | None) -> None:
        if group is not None and len(group.nodes) <= _FEW:
            self.groups.append(group)

    def _is_explained(self) -> bool:
        """Whether the model is right, or nearly, without what is blamed for its being wrong."""
        if not self._is_wrong:
            return True
        if not self._blamed:
            return False
        left = self._runs.fault(self._rest)
        return left is None or (left.error is not None and left.error.tolerance_ratio < _JUMP)

    def _look_through_windows(self, limit: int) -> None:
        """Run few neighbours at a time: so a group is found too whose error nobody sees at the outputs."""
        for size in _WINDOWS:
            for window in self._search.windows(self._rest, size, limit):
                nodes = set(window) - self._blamed
                fault = self._runs.fault(nodes)
                self._windows_are_wrong = self._windows_are_wrong or fault is not None
                if self._is_done or fault is None or fault.error is None:
                    continue
                if fault.error.tolerance_ratio >= _JUMP or not self._is_explained():
                    self._take(self._search.within(nodes, fault))

    def _inner_names(self) -> list[str]:
        """Tensors inside groups that are right when those are marked."""
        hiding = (group for group in self.groups if group.hides)
        written = (tensor for group in hiding for node in group.nodes for tensor in self._index.node_writes[node])
        return [self._index.names[tensor] for tensor in written]

    def _explain(self) -> None:
        """Take away what is wrong by itself. While the rest is wrong, find out which part of it is, and go on."""
        while not self._is_done and not self._is_explained():
            rest = self._rest
            fault = self._runs.fault(rest)
            if fault is None:
                return
            group = self._group_in(rest, fault)
            if group is None or len(group.nodes) > _FEW or self._runs.is_spent:
                what = "cannot be run" if fault.failure is not None else "are out of tolerance"
                self._unexplained_rest.append(
                    f"{len(rest)} layers together {what}, and no few of them that were found: "
                    + ("a fault that needs many" if fault.failure is not None else "rounding that adds up, perhaps")
                )
                return
            self._take(group)

    def _group_in(self, rest: set[int], fault: SubgraphFault) -> LayerGroup | None:
        """A group within ``rest``, which is wrong: around what points to it, else by halves where there is hope."""
        for centre in (*self._hidden(), *self._unexplained(self._index.nodes)):
            if centre in rest and (group := self._search.around(centre, rest, fault)) is not None:
                return group
        if fault.failure is None and not self._windows_are_wrong:
            return None
        return self._search.within(rest, fault)

    def _hidden(self) -> list[int]:
        """The nodes that compute the tensors which hide a failure when they are marked."""
        producer, ids = self._index.producer, self._index.ids
        names = [name for effect in self._marked.effects if effect.change == "gone" for name in effect.tensors]
        return [producer[ids[name]] for name in names if ids[name] in producer]

    def _unexplained(self, layers: Sequence[Node]) -> list[int]:
        """Layers that are wrong in the whole model by far, although their inputs are right there; the worst first."""
        far_off = []
        for node in layers:
            error = self._marked.error_of(self._index, node)
            inputs = (self._marked.propagated.get(self._index.names[tensor]) for tensor in node.reads)
            if error is None or error.passed or error.tolerance_ratio < _JUMP or node.number in self._random:
                continue
            if all(before is None or before.passed for before in inputs):
                far_off.append((-error.tolerance_ratio, node.number))
        return [number for _, number in sorted(far_off)]
