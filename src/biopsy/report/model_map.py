"""A whole model as a map: each node a number, its operator, and the nodes that it reads from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from biopsy.model.index import ModelIndex
from biopsy.report.tree import Tree
from biopsy.text import shortened

MOST_NODES = 20_000
"""A model with more has no map: nobody could look at it."""

_LONGEST_NAME = 120
_MOST_READ = 64
"""Nodes that one node is drawn to read from."""


@dataclass(frozen=True, kw_only=True)
class MeasuredErrors:
    """The greatest ratio of an error to the tolerance by the number of the node, where it was measured."""

    introduced: Mapping[int, float] = field(default_factory=dict)
    propagated: Mapping[int, float] = field(default_factory=dict)


def map_tree(index: ModelIndex, piece: Iterable[int] = (), measured: MeasuredErrors | None = None) -> Tree | None:
    """The map of a model, the nodes of the piece marked; None of a model that is too large for one."""
    if len(index.nodes) > MOST_NODES:
        return None
    places: dict[str, int] = {}
    op = [places.setdefault(shortened(node.op_type, _LONGEST_NAME), len(places)) for node in index.nodes]
    found = measured or MeasuredErrors()
    return {
        "ops": list(places),
        "op": op,
        "names": [shortened(node.name, _LONGEST_NAME) for node in index.nodes],
        "reads": [_reads(index, node.reads) for node in index.nodes],
        "piece": sorted(piece),
        "introduced": {str(node): ratio for node, ratio in found.introduced.items()},
        "propagated": {str(node): ratio for node, ratio in found.propagated.items()},
    }


def _reads(index: ModelIndex, tensors: Sequence[int]) -> list[int]:
    return sorted({index.producer[tensor] for tensor in tensors if tensor in index.producer})[:_MOST_READ]
