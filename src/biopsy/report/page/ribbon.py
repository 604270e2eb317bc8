"""A whole model as a ribbon that is read like a text: from left to right in the order of the graph, row below row.

A layered layout of thousands of nodes is a line of several metres; broken into rows it fits a screen. Every kind of
node is one path, however many there are, so that 10,000 of them draw at once. What a node is, its shape says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from biopsy.report.page.blocks import Drawing, Mark, Pointing, Sign, Trace
from biopsy.report.page.figures import OUT_OF_TOLERANCE

_LANES = 12
"""Nodes side by side; the others of a layer stand in the next column."""
_CELL = 10
_SHAPE, _SHAPE_OF_LARGE, _LARGE = 3.0, 1.6, 1000
"""Width of the drawing by its height, as far as that can be had; of so many columns, whose nodes get small."""
_FEWEST = 72
"""Columns in a row, also where a small model needs fewer: its nodes shall not be drawn larger than words."""
_MOST_EDGES = 25_000
"""So that the page stays small; of a model with more, the first ones are drawn."""


@dataclass(frozen=True, kw_only=True)
class Bead:
    """A node on a ribbon. ``introduced`` and ``propagated`` are ratios of its error to the tolerance."""

    lines: Sequence[str]
    reads: Sequence[int]
    in_piece: bool = False
    introduced: float | None = None
    propagated: float | None = None

    @property
    def matters(self) -> bool:
        """Whether it is in the piece or introduces an error."""
        return self.in_piece or _is_wrong(self.introduced)


@dataclass
class _Shapes:
    """The parts of each path, by its style."""

    parts: dict[str, list[str]] = field(default_factory=dict)

    def add(self, style: str, d: str) -> None:
        self.parts.setdefault(style, []).append(d)


def ribbon(name: str, title: str, nodes: Sequence[Bead], note: str = "") -> Drawing:
    """The drawing of nodes in an order in which most of them come after those that they read from."""
    cells = _cells(nodes)
    columns = max((column for column, _ in cells), default=0) + 1
    lanes = [0] * columns
    for column, lane in cells:
        lanes[column] = max(lanes[column], lane + 1)
    across = _columns_of_a_row(lanes)
    tops = _tops(lanes, across)
    places = [
        ((column % across) * _CELL + _CELL, tops[column // across] + lane * _CELL + _CELL) for column, lane in cells
    ]
    edges, drawn = _edges(nodes, cells, places, across)
    shapes = _Shapes()
    for node, (x, y) in zip(nodes, places, strict=True):
        _draw(shapes, node, x, y)
    traces = [Trace(d=edges, style="flow", count=drawn)] if edges else []
    traces += [Trace(d="".join(shapes.parts[style]), style=style, count=len(shapes.parts[style]))
               for style in _ORDER if style in shapes.parts]  # fmt: skip
    if drawn == _MOST_EDGES:
        note = f"{note} · only the first {drawn} edges are drawn".removeprefix(" · ")
    width = (across + 1) * _CELL
    return Drawing(
        name=name,
        title=title,
        note=note,
        width=width,
        height=tops[-1] + _CELL,
        traces=traces,
        marks=[Mark(x=x, y=y, lines=node.lines) for node, (x, y) in zip(nodes, places, strict=True)],
        legend=[sign for sign in _LEGEND if sign.style in shapes.parts],
        wide=True,
        pointing=Pointing(flags=[place for place, node in enumerate(nodes) if node.matters]),
    )


def _cells(nodes: Sequence[Bead]) -> list[tuple[int, int]]:
    """Column and lane of each node: a chain keeps its lane, a layer has one column or more."""
    layers: list[int] = []
    for place, node in enumerate(nodes):
        layers.append(max((layers[source] + 1 for source in node.reads if 0 <= source < place), default=0))
    members_of: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for place, layer in enumerate(layers):
        members_of[layer].append(place)
    cells = [(0, 0)] * len(nodes)
    column = 0
    for members in members_of:
        for begin in range(0, len(members), _LANES):
            _fill(cells, nodes, members[begin : begin + _LANES], column)
            column += 1
    return cells


def _fill(cells: list[tuple[int, int]], nodes: Sequence[Bead], members: Sequence[int], column: int) -> None:
    """Give the nodes of a column the lanes of what they read from, or those next to them that are free."""
    taken: set[int] = set()
    for place in members:
        wished = min((cells[source][1] for source in nodes[place].reads if 0 <= source < place), default=0)
        lane = min((each for each in range(_LANES) if each not in taken), key=lambda each: (abs(each - wished), each))
        taken.add(lane)
        cells[place] = (column, lane)


def _columns_of_a_row(lanes: Sequence[int]) -> int:
    """How many columns stand in a row."""
    shape = _SHAPE if len(lanes) < _LARGE else _SHAPE_OF_LARGE
    mean = sum(lanes) / len(lanes) + 1
    return max(_FEWEST, math.ceil(math.sqrt(len(lanes) * mean * shape)))


def _tops(lanes: Sequence[int], across: int) -> list[int]:
    """Where each row begins, and at the end where the last one ends."""
    tops = [0]
    for begin in range(0, len(lanes), across):
        tops.append(tops[-1] + (max(lanes[begin : begin + across]) + 1) * _CELL)
    return tops


def _edges(
    nodes: Sequence[Bead], cells: Sequence[tuple[int, int]], places: Sequence[tuple[int, int]], across: int
) -> tuple[str, int]:
    """What flows, as one path; between rows only how it leaves and how it comes. Also how many edges that are."""
    parts: list[str] = []
    drawn = 0
    for place, node in enumerate(nodes):
        x, y = places[place]
        for source in node.reads:
            if not 0 <= source < len(nodes) or source == place or drawn >= _MOST_EDGES:
                continue
            drawn += 1
            from_x, from_y = places[source]
            if cells[source][0] // across != cells[place][0] // across:
                parts.append(f"M{from_x} {from_y}h6M{x - 6} {y}h6")
            elif from_y == y and abs(x - from_x) > _CELL:
                parts.append(f"M{from_x} {y}Q{(x + from_x) // 2} {y - 7} {x} {y}")
            else:
                parts.append(f"M{from_x} {from_y}L{x} {y}")
    return "".join(parts), drawn


_ORDER = ("dot", "within", "within-hole", "carried", "carried-hole", "made-1", "made-2", "made-3", "frame")
_LEGEND = (
    Sign(d="M10 7h0", style="dot", text="node"),
    Sign(d="M10 7h0", style="within", text="measured, within the tolerance"),
    Sign(d="M10 7h0", style="carried", text="carries an error on"),
    Sign(d="M10 4l3 3l-3 3l-3 -3z", style="made-1", text="introduces an error, up to 10× the tolerance"),
    Sign(d="M10 3l4 4l-4 4l-4 -4z", style="made-2", text="up to 1,000×"),
    Sign(d="M10 2l5 5l-5 5l-5 -5z", style="made-3", text="more"),
    Sign(d="M5 2h10v10h-10z", style="frame", text="in the piece"),
)


def _draw(shapes: _Shapes, bead: Bead, x: int, y: int) -> None:
    propagated = _is_wrong(bead.propagated)
    if _is_wrong(bead.introduced):
        assert bead.introduced is not None
        size = 1 if bead.introduced <= 10 else 2 if bead.introduced <= 1000 else 3
        half = size + 2
        shapes.add(f"made-{size}", f"M{x} {y - half}l{half} {half}l-{half} {half}l-{half} -{half}z")
    elif propagated or bead.introduced is not None or bead.propagated is not None:
        style = "carried" if propagated else "within"
        shapes.add(style, f"M{x} {y}h0")
        shapes.add(f"{style}-hole", f"M{x} {y}h0")
    else:
        shapes.add("dot", f"M{x} {y}h0")
    if bead.in_piece:
        shapes.add("frame", f"M{x - 5} {y - 5}h10v10h-10z")


def _is_wrong(ratio: float | None) -> bool:
    """Whether an error was measured and is out of tolerance; NaN is."""
    return ratio is not None and not ratio <= OUT_OF_TOLERANCE
