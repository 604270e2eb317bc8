"""What neither the whole model nor single layers explain: groups of layers, and errors that add up."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.layerwise.findings import Group, TensorError
from biopsy.layerwise.groups import Groups, Wrong
from biopsy.layerwise.tensor_errors import worst
from biopsy.layerwise.whole_model import Whole
from biopsy.model.index import ModelIndex, Node

_MOST_GROUPS = 8
_JUMP = 10.0
"""How many times what is allowed an error must be to be looked at where the model's outputs do not ask for it.

Rounding adds up within a few layers too.
"""

_NEAR = 64
"""Nodes of a neighbourhood: so far it is looked for what makes a layer wrong whose inputs are right."""

_WINDOWS = (4, 16)
"""Nodes of the pieces that are looked through; any half of them that are neighbours stand in one piece together."""

_FEW = 32
"""Nodes of a group that a person can look at; more of them are rounding that adds up."""


class Explanation:
    """Looks for groups. ``found`` are those found so far.

    ``alone``: nodes that are wrong by themselves; ``random``: nodes that are never judged.
    """

    def __init__(
        self, index: ModelIndex, groups: Groups, whole: Whole, alone: frozenset[int], random: frozenset[int]
    ) -> None:
        self.found: list[Group] = []
        self._told: list[str] = []
        self._index = index
        self._groups = groups
        self._whole = whole
        self._alone = alone
        self._random = random
        self._is_wrong = whole.failure is not None or not all(error.passed for error in whole.outputs.values())
        self._windows_are_wrong = False

    def run(self, limit: int) -> None:
        """Look everywhere; at most ``limit`` bytes of tensors are in memory at a time."""
        self._look_through_windows(limit)
        self._whole.narrow(self._inner_names())
        self._explain()

    def look_at(self, layers: Sequence[Node]) -> None:
        """Look around layers that are wrong in the whole model by far, although their inputs are right there."""
        for node in self._unexplained(layers):
            if node in self._rest and not self._is_done:
                self._take(self._groups.around(node, self._rest, most=_NEAR))

    @property
    def remarks(self) -> list[str]:
        """What else is to be said."""
        rounded = self._groups.rounded
        if not rounded:
            return self._told
        most = max(rounded, key=len)
        noise = rounded[most]
        return [
            *self._told,
            f"{len(most)} layers together are out of tolerance by accumulated or amplified rounding; neither a layer "
            f"nor fusion is at fault: their error is {noise.ratio:.2g} times that of plain float32 on the same values, "
            f"and up to {noise.limit:g} times is rounding",
        ]

    @property
    def _blamed(self) -> frozenset[int]:
        return self._alone.union(*(group.nodes for group in self.found))

    @property
    def _rest(self) -> set[int]:
        """Nodes that are not known to be wrong, and not random."""
        return set(range(len(self._index.nodes))) - self._blamed - self._random

    @property
    def _is_done(self) -> bool:
        return len(self.found) >= _MOST_GROUPS or self._groups.is_spent

    def _take(self, group: Group | None) -> None:
        if group is not None and len(group.nodes) <= _FEW:
            self.found.append(group)

    def _is_explained(self) -> bool:
        """Whether the model is right, or nearly, without what is blamed for its being wrong."""
        if not self._is_wrong:
            return True
        if not self._blamed:
            return False
        left = self._groups.wrong(self._rest)
        return left is None or (left.error is not None and left.error.times < _JUMP)

    def _look_through_windows(self, limit: int) -> None:
        """Run few neighbours at a time: so a group is found too whose error nobody sees at the outputs."""
        for size in _WINDOWS:
            for window in self._groups.windows(self._rest, size, limit):
                nodes = set(window) - self._blamed
                found = self._groups.wrong(nodes)
                self._windows_are_wrong = self._windows_are_wrong or found is not None
                if self._is_done or found is None or found.error is None:
                    continue
                if found.error.times >= _JUMP or not self._is_explained():
                    self._take(self._groups.within(nodes, found))

    def _inner_names(self) -> list[str]:
        """Tensors inside groups that are right when those are marked."""
        hiding = (group for group in self.found if group.hides)
        written = (tensor for group in hiding for node in group.nodes for tensor in self._index.node_writes[node])
        return [self._index.names[tensor] for tensor in written]

    def _explain(self) -> None:
        """Take away what is wrong by itself. While the rest is wrong, find out which part of it is, and go on."""
        while not self._is_done and not self._is_explained():
            rest = self._rest
            found = self._groups.wrong(rest)
            if found is None:
                return
            group = self._group_in(rest, found)
            if group is None or len(group.nodes) > _FEW or self._groups.is_spent:
                what = "cannot be run" if found.failure is not None else "are out of tolerance"
                self._told.append(
                    f"{len(rest)} layers together {what}, and no few of them that were found: "
                    + ("a fault that needs many" if found.failure is not None else "rounding that adds up, perhaps")
                )
                return
            self._take(group)

    def _group_in(self, rest: set[int], found: Wrong) -> Group | None:
        """A group within ``rest``, which is wrong: around what points to it, else by halves where there is hope."""
        for centre in (*self._hidden(), *self._unexplained(self._index.nodes)):
            if centre in rest and (group := self._groups.around(centre, rest, found)) is not None:
                return group
        if found.failure is None and not self._windows_are_wrong:
            return None
        return self._groups.within(rest, found)

    def _hidden(self) -> list[int]:
        """The nodes that compute the tensors which hide a failure when they are marked."""
        producer = self._index.producer
        names = [name for one in self._whole.observed if one.change == "gone" for name in one.tensors]
        return [producer[self._index.ids[name]] for name in names if self._index.ids[name] in producer]

    def _unexplained(self, layers: Sequence[Node]) -> list[int]:
        """Layers that are wrong in the whole model by far, although their inputs are right there; the worst first."""
        found = []
        for node in layers:
            error = propagated(self._index, self._whole, node)
            inputs = (self._whole.propagated.get(self._index.names[tensor]) for tensor in node.reads)
            if error is None or error.passed or error.times < _JUMP or node.number in self._random:
                continue
            if all(before is None or before.passed for before in inputs):
                found.append((-error.times, node.number))
        return [number for _, number in sorted(found)]


def propagated(index: ModelIndex, whole: Whole, node: Node) -> TensorError | None:
    """The error of a layer's worst output in the whole model; None if none was measured."""
    found = [whole.propagated.get(index.names[tensor]) for tensor in node.writes]
    known = [error for error in found if error is not None]
    return worst(known) if known else None
