"""Where the boxes of a graph stand: layers from top to bottom, few crossings (Sugiyama, Tagawa and Toda 1981)."""

from __future__ import annotations

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
    """The layout of so many items; each edge leads from an item to a later one. Parts of the graph stand in a row."""
    columns, layers = [0.0] * count, [0] * count
    ways: list[Sequence[float]] = [()] * len(edges)
    right = 0.0
    for members, among in _components(count, edges):
        place = {item: at for at, item in enumerate(members)}
        dense = [(place[edges[number][0]], place[edges[number][1]]) for number in among]
        part = _connected(len(members), dense)
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


def _connected(count: int, edges: Sequence[tuple[int, int]]) -> Layout:
    """The layout of a connected graph.

    Given several parts at once, fast_sugiyama numbers the places that an edge of one passes like items of another.
    """
    if not edges:
        return Layout(columns=[0.0], layers=[0], ways=[])
    from fast_sugiyama import from_edges

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
