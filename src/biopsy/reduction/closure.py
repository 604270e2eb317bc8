"""What must be taken in, so that a set of nodes can stand alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

from biopsy.model.index import ModelIndex


class Closure:
    """A set of nodes that grows. Each node, and each tensor that it reads or writes, is looked at once.

    ``rewired`` maps tensors to those that are read instead. ``can_cut`` says whether a tensor can come from outside,
    ``is_told`` whether its type is known, so that it can be an output.
    """

    def __init__(
        self,
        index: ModelIndex,
        rewired: Mapping[int, int],
        can_cut: Callable[[int], bool],
        is_told: Callable[[int], bool],
    ) -> None:
        self._index = index
        self._rewired = rewired
        self._can_cut = can_cut
        self._is_told = is_told
        self._outputs = frozenset(index.outputs)
        self._read: set[int] = set()
        self._unseen_writes: list[int] = []
        self.kept: set[int] = set()

    def take_in(self, nodes: Iterable[int]) -> None:
        """Add nodes, and whatever computes what they read and cannot be fed."""
        index, kept, read = self._index, self.kept, self._read
        waiting = list(nodes)
        kept.update(waiting)
        while waiting:
            node = waiting.pop()
            self._unseen_writes += index.node_writes[node]
            for original in index.node_reads[node]:
                tensor = self._rewired.get(original, original)
                if tensor in read:
                    continue
                read.add(tensor)
                source = index.producer.get(tensor)
                if source is not None and source not in kept and not self._can_cut(tensor):
                    kept.add(source)
                    waiting.append(source)

    def take_in_readers(self) -> None:
        """Add, for each end of a type that nobody can tell, one node that reads it, until there is no such end."""
        while nodes := self._readers_of_untold_ends() - self.kept:
            self.take_in(nodes)

    def _readers_of_untold_ends(self) -> Set[int]:
        consumers, read = self._index.consumers, self._read
        ends = [tensor for tensor in self._unseen_writes if tensor not in read or tensor in self._outputs]
        self._unseen_writes = []
        return {consumers[end][0] for end in ends if end in consumers and not self._is_told(end)}
