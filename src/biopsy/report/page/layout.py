"""Where the boxes of a graph stand: layers from top to bottom, few crossings (Sugiyama, Tagawa and Toda 1981).

``fast_sugiyama`` does it where it is installed. It needs Python 3.11; without it the boxes of a layer are ordered by
the mean place of those that they read from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Columns (in widths of a box, from 0) and layers (from 0 at the top) of the items, and the way of each edge.

    A way has the columns that the edge passes at the layers between its ends.
    """

    columns: Sequence[float]
    layers: Sequence[int]
    ways: Sequence[Sequence[float]]


def layered(count: int, edges: Sequence[tuple[int, int]]) -> Layout:
    """The layout of so many items; each edge leads from an item to a later one. Parts of the graph stand in a row."""
    columns, layers = [0.0] * count, [0] * count
    ways: list[Sequence[float]] = [()] * len(edges)
    right = 0.0
    for members, among in _components(count, edges):
        place = {item: at for at, item in enumerate(members)}
        dense = [(place[edges[number][0]], place[edges[number][1]]) for number in among]
        part = _by_fast_sugiyama(len(members), dense) or _by_means(len(members), dense)
        every = [*part.columns, *(column for way in part.ways for column in way)]
        shift = right - min(every)
        for item, column, layer in zip(members, part.columns, part.layers, strict=True):
            columns[item], layers[item] = column + shift, layer
        for number, way in zip(among, part.ways, strict=True):
            ways[number] = [column + shift for column in way]
        right = max(every) + shift + 1
    return Layout(columns=columns, layers=layers, ways=ways)


def _components(count: int, edges: Sequence[tuple[int, int]]) -> list[tuple[list[int], list[int]]]:
    """The connected parts of a graph: items in ascending order, and the numbers of the edges among them."""
    root = list(range(count))

    def root_of(item: int) -> int:
        while root[item] != item:
            root[item] = root[root[item]]
            item = root[item]
        return item

    for source, target in edges:
        root[root_of(source)] = root_of(target)
    members: dict[int, tuple[list[int], list[int]]] = {}
    for item in range(count):
        members.setdefault(root_of(item), ([], []))[0].append(item)
    for number, (source, _) in enumerate(edges):
        members[root_of(source)][1].append(number)
    return list(members.values())


def _by_fast_sugiyama(count: int, edges: Sequence[tuple[int, int]]) -> Layout | None:
    """The layout of a connected graph; None without the package, or without edges.

    Given several parts at once, it numbers the places that an edge of one passes like items of another.
    """
    try:
        from fast_sugiyama import from_edges
    except ImportError:
        return None
    if not edges:
        return None
    ((positions, _, _, lines),) = from_edges(sorted(set(edges)), vertex_spacing=1.0, dummy_vertices=True)
    at = {int(item): place for item, place in positions}
    top = max(y for _, y in at.values())
    columns = {item: float(x) for item, (x, _) in at.items()}
    ways = _ways([(int(source), int(target)) for source, target in lines or ()], count, columns)
    return Layout(
        columns=[columns[item] for item in range(count)],
        layers=[round(top - at[item][1]) for item in range(count)],
        ways=[ways.get(edge, ()) for edge in edges],
    )


def _ways(
    drawn: Iterable[tuple[int, int]], count: int, columns: dict[int, float]
) -> dict[tuple[int, int], Sequence[float]]:
    """The columns between the ends of each edge that passes places of its own, which have numbers from ``count``."""
    onward: dict[int, int] = {}
    begins = []
    for source, target in drawn:
        if source >= count:
            onward[source] = target
        elif target >= count:
            begins.append((source, target))
    found: dict[tuple[int, int], Sequence[float]] = {}
    for source, first in begins:
        passed, here = [], first
        while here >= count:
            passed.append(columns[here])
            here = onward[here]
        found[source, here] = passed
    return found


def _by_means(count: int, edges: Sequence[tuple[int, int]]) -> Layout:
    """Layers by the longest way from a source; within one, by the mean column of what an item reads from.

    An edge that passes layers has a place of its own in each of them, which stands in its way like an item.
    """
    layers = [0] * count
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        layers[target] = max(layers[target], layers[source] + 1)
    reads: dict[int, list[int]] = defaultdict(list)
    passed: dict[tuple[int, int], list[int]] = {}
    for source, target in dict.fromkeys(edges):
        places = range(len(layers), len(layers) + layers[target] - layers[source] - 1)
        layers += range(layers[source] + 1, layers[target])
        for before, after in pairwise([source, *places, target]):
            reads[after].append(before)
        passed[source, target] = list(places)
    columns = _ordered(layers, reads)
    return Layout(
        columns=columns[:count],
        layers=layers[:count],
        ways=[[columns[place] for place in passed[edge]] for edge in edges],
    )


def _ordered(layers: Sequence[int], reads: Mapping[int, Sequence[int]]) -> list[float]:
    """The columns of items whose layers are known."""
    members_of: dict[int, list[int]] = defaultdict(list)
    for item, layer in enumerate(layers):
        members_of[layer].append(item)
    columns = [0.0] * len(layers)
    for layer in sorted(members_of):
        wished = {
            item: sum(columns[source] for source in reads.get(item, ())) / max(len(reads.get(item, ())), 1)
            for item in members_of[layer]
        }
        free = 0.0
        for item in sorted(wished, key=lambda item: (wished[item], item)):
            columns[item] = max(free, wished[item])
            free = columns[item] + 1
    return columns
