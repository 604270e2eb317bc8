"""Where the boxes of a graph stand: layers from top to bottom, few crossings (Sugiyama, Tagawa and Toda 1981).

``fast_sugiyama`` does it where it is installed. It needs Python 3.11; without it the boxes of a layer are ordered by
the mean place of those that they read from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Columns (in widths of a box, from 0) and layers (from 0 at the top) of the items, and the way of each edge.

    A way has the columns that the edge passes at the layers between its ends.
    """

    columns: Sequence[float]
    layers: Sequence[int]
    ways: Sequence[Sequence[float]]


def layered(count: int, edges: Sequence[tuple[int, int]]) -> Layout:
    """The layout of so many items; each edge leads from an item to a later one."""
    connected = sorted({end for edge in edges for end in edge})
    place = {item: at for at, item in enumerate(connected)}
    dense = [(place[source], place[target]) for source, target in edges]
    found = _by_fast_sugiyama(len(connected), dense) or _by_means(len(connected), dense)
    right = max(found.columns, default=-1.0)
    columns, layers = [0.0] * count, [0] * count
    for item in range(count):
        if item in place:
            columns[item], layers[item] = found.columns[place[item]], found.layers[place[item]]
        else:
            right += 1
            columns[item] = right
    return Layout(columns=columns, layers=layers, ways=found.ways)


def _by_fast_sugiyama(count: int, edges: Sequence[tuple[int, int]]) -> Layout | None:
    try:
        from fast_sugiyama import from_edges
    except ImportError:
        return None
    if not edges:
        return None
    columns, layers = [0.0] * count, [0] * count
    ways: dict[tuple[int, int], list[float]] = {}
    right = 0.0
    for positions, _, _, drawn in from_edges(sorted(set(edges)), vertex_spacing=1.0, dummy_vertices=True):
        at = {int(item): place for item, place in positions}
        left, top = min(x for x, _ in at.values()), max(y for _, y in at.values())
        at = {item: (x - left + right, top - y) for item, (x, y) in at.items()}
        for item in at.keys() & set(range(count)):
            columns[item], layers[item] = at[item][0], round(at[item][1])
        ways |= _ways(
            [(int(source), int(target)) for source, target in drawn or ()],
            count,
            {item: x for item, (x, _) in at.items()},
        )
        right = max(x for x, _ in at.values()) + 1
    return Layout(columns=columns, layers=layers, ways=[ways.get(edge, []) for edge in edges])


def _ways(
    drawn: Iterable[tuple[int, int]], count: int, columns: dict[int, float]
) -> dict[tuple[int, int], list[float]]:
    """The columns between the ends of each edge that passes places of its own, which have numbers from ``count``."""
    onward: dict[int, int] = {}
    begins = []
    for source, target in drawn:
        if source >= count:
            onward[source] = target
        elif target >= count:
            begins.append((source, target))
    found = {}
    for source, first in begins:
        passed, here = [], first
        while here >= count:
            passed.append(columns[here])
            here = onward[here]
        found[source, here] = passed
    return found


def _by_means(count: int, edges: Sequence[tuple[int, int]]) -> Layout:
    """Layers by the longest way from a source; within one, by the mean column of what an item reads from."""
    reads: dict[int, list[int]] = defaultdict(list)
    for source, target in edges:
        reads[target].append(source)
    layers = [0] * count
    for item in range(count):
        layers[item] = max((layers[source] + 1 for source in reads[item]), default=0)
    columns = [0.0] * count
    for layer in range(max(layers, default=-1) + 1):
        members = [item for item in range(count) if layers[item] == layer]
        wished = {item: sum(columns[source] for source in reads[item]) / max(len(reads[item]), 1) for item in members}
        free = 0.0
        for item in sorted(members, key=lambda item: (wished[item], item)):
            columns[item] = max(free, wished[item])
            free = columns[item] + 1
    ways = [
        [columns[source] + (columns[target] - columns[source]) * step / (layers[target] - layers[source])
         for step in range(1, layers[target] - layers[source])]
        for source, target in edges
    ]  # fmt: skip
    return Layout(columns=columns, layers=layers, ways=ways)
