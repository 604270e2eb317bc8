"""The sections on the whole model: a map of its nodes, with the piece and the errors of layers, and tables of wrong
layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from biopsy.findings.document import Bullets, Cell, DocumentBlock, Facts, Grid, Passage
from biopsy.findings.page.drawing import Drawing, Mark, Pointing, Sign, Trace
from biopsy.findings.page.reading import Branch, DamagedReport
from biopsy.findings.page.sections import outcome_cell
from biopsy.findings.page.wording import (
    OUT_OF_TOLERANCE,
    Column,
    code,
    cut,
    listed,
    middle_cut,
    number_of,
    plain_table,
    table,
    times,
)
from biopsy.text import count

_MOST_NODES = 40_000
_NAMES = 400_000
"""Characters of all names together, which bounds the size of the page."""


def map_blocks(model: Branch) -> Iterator[DocumentBlock]:
    """The model as a map."""
    nodes = _nodes(model)
    if not nodes:
        return
    measured = sum(node.introduced is not None or node.propagated is not None for node in nodes)
    in_piece = sum(node.in_piece for node in nodes)
    notes = [f"{count(in_piece, 'node')} in the piece" if in_piece else "", f"{measured} measured" if measured else ""]
    if len(nodes) > _MOST_NODES:
        yield Passage(text=f"The first {_MOST_NODES} of {len(nodes)} nodes are drawn.")
    title = f"{count(len(nodes), 'node')}, read from left to right, row below row"
    yield map_drawing("map", title, nodes[:_MOST_NODES], listed(notes, " · "))


def _nodes(model: Branch) -> list[MapNode]:
    ops, op, names = model.texts("ops"), model.wholes("op"), model.texts("names")
    reads, piece = model.rows("reads", int), set(model.wholes("piece"))
    ratios: dict[str, dict[int, float]] = {}
    for key in ("introduced", "propagated"):
        try:
            ratios[key] = {int(number): ratio for number, ratio in model.numbers_by_name(key).items()}
        except ValueError as error:
            raise DamagedReport(f"its 'whole.{key}' has a key that is not a number of a node") from error
    if not all(0 <= each < len(ops) for each in op):
        raise DamagedReport("its 'whole.op' has places that 'whole.ops' lacks")
    most = max(12, min(90, _NAMES // max(len(op), 1)))
    nodes = []
    for place, kind in enumerate(op):
        name = names[place] if place < len(names) else ""
        introduced, propagated = ratios["introduced"].get(place), ratios["propagated"].get(place)
        lines = [f"{cut(ops[kind], 40)}  {middle_cut(name, most)}".rstrip(), f"node {place}"]
        lines += ["in the piece"] if place in piece else []
        lines += [f"introduces {_ratio(introduced)}"] if introduced is not None else []
        lines += [f"carries on {_ratio(propagated)}"] if propagated is not None else []
        read = reads[place] if place < len(reads) else []
        nodes.append(
            MapNode(lines=lines, reads=read, in_piece=place in piece, introduced=introduced, propagated=propagated)
        )
    return nodes


def _ratio(value: float) -> str:
    return "an error that is not a number" if math.isnan(value) else f"{times(value)} the tolerance"


# A map is read like a text: from left to right in the order of the graph, row below row. A layered layout of thousands
# of nodes would be several metres long; broken into rows it fits a screen. All nodes of a style are one path, so that
# 10,000 of them draw at once.

_LANES = 12
"""The most nodes of a column; a larger layer has several columns."""
_CELL = 10  # pixels
_SHAPE, _SHAPE_OF_LARGE, _LARGE = 3.0, 1.6, 1000
"""Width of the drawing by its height; the second is for maps with at least this many columns, whose nodes get small."""
_FEWEST = 72
"""The fewest columns in a row, so that nodes of a small model are not drawn larger than text."""
_MOST_EDGES = 25_000
"""The most edges that are drawn, which bounds the size of the page."""


@dataclass(frozen=True, kw_only=True)
class MapNode:
    """A node of a map. ``introduced`` and ``propagated`` are ratios of its error to the tolerance."""

    lines: Sequence[str]
    reads: Sequence[int]
    in_piece: bool = False
    introduced: float | None = None
    propagated: float | None = None

    @property
    def matters(self) -> bool:
        """Whether it is in the piece or introduces an error."""
        return self.in_piece or _is_wrong(self.introduced)


def map_drawing(name: str, title: str, nodes: Sequence[MapNode], note: str = "") -> Drawing:
    """The map of nodes, most of which should come after the nodes that they read from."""
    cells = _cells(nodes)
    columns = max((column for column, _ in cells), default=0) + 1
    lanes = [0] * columns
    for column, lane in cells:
        lanes[column] = max(lanes[column], lane + 1)
    shape = _SHAPE if len(lanes) < _LARGE else _SHAPE_OF_LARGE
    mean = sum(lanes) / len(lanes) + 1
    across = max(_FEWEST, math.ceil(math.sqrt(len(lanes) * mean * shape)))
    tops = [0]
    for begin in range(0, len(lanes), across):
        tops.append(tops[-1] + (max(lanes[begin : begin + across]) + 1) * _CELL)
    places = [
        ((column % across) * _CELL + _CELL, tops[column // across] + lane * _CELL + _CELL) for column, lane in cells
    ]
    edges, drawn = _edges(nodes, cells, places, across)
    paths: dict[str, list[str]] = {}
    for node, (x, y) in zip(nodes, places, strict=True):
        for style, d in _node_paths(node, x, y):
            paths.setdefault(style, []).append(d)
    traces = [Trace(d=edges, style="flow", count=drawn)] if edges else []
    traces += Trace.each({style: paths[style] for style in _ORDER if style in paths})
    if drawn == _MOST_EDGES:
        note = f"{note} · only the first {drawn} edges are drawn".removeprefix(" · ")
    return Drawing(
        name=name, title=title, note=note, width=(across + 1) * _CELL, height=tops[-1] + _CELL,
        traces=traces, wide=True,
        marks=[Mark(x=x, y=y, lines=node.lines) for node, (x, y) in zip(nodes, places, strict=True)],
        legend=[sign for sign in _LEGEND if sign.style in paths],
        pointing=Pointing(flags=[place for place, node in enumerate(nodes) if node.matters]),
    )  # fmt: skip


def _cells(nodes: Sequence[MapNode]) -> list[tuple[int, int]]:
    """Column and lane (place in the column) of each node: a chain keeps its lane, a layer may need several columns."""
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
            taken: set[int] = set()
            for place in members[begin : begin + _LANES]:
                ideal = min((cells[source][1] for source in nodes[place].reads if 0 <= source < place), default=0)
                _, lane = min((abs(lane - ideal), lane) for lane in range(_LANES) if lane not in taken)
                taken.add(lane)
                cells[place] = (column, lane)
            column += 1
    return cells


def _edges(
    nodes: Sequence[MapNode], cells: Sequence[tuple[int, int]], places: Sequence[tuple[int, int]], across: int
) -> tuple[str, int]:
    """The edges as one path, and how many they are. Of an edge between rows only both ends are drawn."""
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


def _node_paths(node: MapNode, x: int, y: int) -> Iterator[tuple[str, str]]:
    """The path of a node in each of its styles."""
    propagated = _is_wrong(node.propagated)
    if node.introduced is not None and _is_wrong(node.introduced):
        size = 1 if node.introduced <= 10 else 2 if node.introduced <= 1000 else 3
        half = size + 2
        yield f"made-{size}", f"M{x} {y - half}l{half} {half}l-{half} {half}l-{half} -{half}z"
    elif propagated or node.introduced is not None or node.propagated is not None:
        style = "carried" if propagated else "within"
        yield style, f"M{x} {y}h0"
        yield f"{style}-hole", f"M{x} {y}h0"
    else:
        yield "dot", f"M{x} {y}h0"
    if node.in_piece:
        yield "frame", f"M{x - 5} {y - 5}h10v10h-10z"


def _is_wrong(ratio: float | None) -> bool:
    """Whether an error was measured and is out of tolerance, as NaN is."""
    return ratio is not None and not ratio <= OUT_OF_TOLERANCE


def layers_blocks(part: Branch) -> Iterator[DocumentBlock]:
    """Which layers are wrong, alone and together."""
    yield Facts(rows=_layer_facts(part))
    grouped = [each.wholes("nodes") for each in part.parts("groups")]
    for key, caption in (("ranking", "What to look at, the worst first"), ("groups", "Wrong only together")):
        entries = [each for each in part.parts(key) if key == "groups" or each.wholes("nodes") not in grouped]
        if entries:
            yield _grid_of_layers(caption, entries)
    if origins := part.parts("non_finite_origins"):
        yield plain_table("Where NaN or infinity begins", ["engine", "label", "tensor", "nan", "inf"], origins)
    if remarks := part.texts("remarks")[:30]:
        yield Bullets(caption="Remarks", items=[cut(text, 500) for text in remarks])


def _layer_facts(part: Branch) -> list[tuple[str, Cell | str]]:
    rows: list[tuple[str, Cell | str]] = [("verdict", outcome_cell(part.text("verdict") or "unknown"))]
    for key in ("suspect", "reference"):
        side = part.child(key)
        rows.append((key, listed([side.text("label"), side.text("version")], " ")))
    golden, first = part.part("golden"), part.part("first_wrong")
    if golden is not None:
        rows.append(("golden values", f"of {golden.whole('tensors')} of {golden.whole('of')} tensors"))
        misfits = [f"{middle_cut(name, 60)}: {cut(why, 200)}" for name, why in golden.texts_by_name("misfits").items()]
        rows.append(("do not fit", Cell(text="; ".join(misfits[:5]), tone="unsure", sign="?")))
    if first is not None:
        rows.append(("first wrong tensor", code(middle_cut(first.text("tensor")))))
    if part.flag("masked"):
        rows.append(("masked", "layers are wrong although the outputs are right"))
    if part.flag("complete") is False:
        rows.append(("complete", "no: it was interrupted"))
    return [(term, text) for term, text in rows if (text if isinstance(text, str) else text.text)]


def _grid_of_layers(caption: str, entries: Sequence[Branch]) -> Grid:
    places = {id(each): str(place) for place, each in enumerate(entries, start=1)}
    columns: dict[str, Column] = {
        "rank": lambda each: places[id(each)],
        "layers": _layers,
        "made at": lambda each: code(listed(each.child("origins").texts("places"), " · ", 3, 200)),
        "times tolerance": _times_tolerance,
        "greatest error": lambda each: number_of("absolute")(each.child("error")),
        "error ÷ plain run's": number_of("rounding_ratio", times),
        "failure": lambda each: listed(map(each.child("failure").text, ("stage", "message")), " · ", each=200),
    }
    return table(caption, entries, columns)


def _layers(entry: Branch) -> Cell:
    labels, name = entry.texts("labels"), entry.child("origins").text("name")
    named = listed(labels, " + ", 12)
    return code(f"{name} ({named})" if name and len(labels) > 1 else named)


def _times_tolerance(entry: Branch) -> Cell | str:
    ratio = entry.child("error").number("tolerance_ratio")
    is_wrong = _is_wrong(ratio)
    return "" if ratio is None else Cell(text=times(ratio), tone="bad", sign="✕") if is_wrong else times(ratio)
