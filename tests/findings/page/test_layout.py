"""Where boxes and nodes stand: below what they read from, and no two in one place."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from biopsy.findings.page.model_map import MapNode, map_drawing
from biopsy.findings.page.piece import Layout, layered


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """So many items, and edges to later ones."""
    count = draw(st.integers(1, 25))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    return count, [(min(pair), max(pair)) for pair in draw(st.lists(pairs, max_size=40)) if pair[0] != pair[1]]


def check(layout: Layout, count: int, edges: list[tuple[int, int]]) -> None:
    assert len(layout.columns) == len(layout.layers) == count
    assert min(layout.layers) == 0
    for (source, target), way in zip(edges, layout.paths, strict=True):
        assert len(way) == layout.layers[target] - layout.layers[source] - 1
        for layer, passes in enumerate(way, start=layout.layers[source] + 1):
            beside = [column for column, at in zip(layout.columns, layout.layers, strict=True) if at == layer]
            assert all(abs(column - passes) >= 0.5 for column in beside), "the edge is hidden behind a box"
    by_layer: dict[int, list[float]] = {}
    for column, layer in zip(layout.columns, layout.layers, strict=True):
        by_layer.setdefault(layer, []).append(column)
    for columns in by_layer.values():
        ordered = sorted(columns)
        assert all(after - before >= 0.99 for before, after in pairwise(ordered))


@given(graphs())
def test_each_item_stands_below_what_it_reads_from_and_beside_the_others(
    graph: tuple[int, list[tuple[int, int]]],
) -> None:
    check(layered(*graph), *graph)


def test_a_layout_is_the_same_each_time() -> None:
    edges = [(i // 3, i) for i in range(1, 60)] + [(i, i + 7) for i in range(50)]
    assert layered(60, edges) == layered(60, edges)


@given(st.lists(st.lists(st.integers(-2, 60), max_size=4), max_size=60))
def test_every_node_of_a_map_has_a_place_of_its_own(reads: list[list[int]]) -> None:
    drawing = map_drawing(
        "name", "title", [MapNode(lines=[str(place)], reads=each) for place, each in enumerate(reads)]
    )
    places = {(mark.x, mark.y) for mark in drawing.marks}
    assert len(places) == len(reads)
    assert all(0 < x < drawing.width and 0 < y < drawing.height for x, y in places)


def test_a_model_that_is_one_wide_layer_is_drawn_in_many_columns() -> None:
    drawing = map_drawing("name", "title", [MapNode(lines=[], reads=[]) for _ in range(5000)])
    assert drawing.width < 3000
    assert drawing.height < 3000
