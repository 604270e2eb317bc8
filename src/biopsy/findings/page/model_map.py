"""The whole model as a map that is read like a text: where the piece is, and which layers are wrong, one by one and
together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from biopsy.findings.page.blocks import (
    MOST_ROWS,
    Block,
    Bullets,
    Cell,
    Drawing,
    Facts,
    Grid,
    Mark,
    Passage,
    Pointing,
    Rows,
    Section,
    Sign,
    Trace,
    code,
    plain_table,
)
from biopsy.findings.page.reading import Branch, DamagedReport
from biopsy.findings.page.wording import OUT_OF_TOLERANCE, cut, figure, middle_cut, times
from biopsy.text import count

_MOST_NODES = 40_000
_NAMES = 400_000
"""Characters of all names together, so that the page stays small."""


def section(report: Branch) -> Section | None:
    """The section on the whole model; None without a map."""
    whole = report.part("whole")
    if whole is None:
        return None
    nodes = _nodes(whole)
    if not nodes:
        return None
    measured = sum(node.introduced is not None or node.propagated is not None for node in nodes)
    in_piece = sum(node.in_piece for node in nodes)
    said = [f"{count(in_piece, 'node')} in the piece"] if in_piece else []
    said += [f"{measured} measured"] if measured else []
    title, drawn = f"{count(len(nodes), 'node')}, read from left to right, row below row", nodes[:_MOST_NODES]
    blocks: list[Block] = [ribbon("map", title, drawn, " · ".join(said))]
    if len(drawn) < len(nodes):
        blocks.insert(0, Passage(text=f"The first {len(drawn)} of {len(nodes)} nodes are drawn."))
    return Section(name="map", title="The whole model", blocks=blocks)


def _nodes(whole: Branch) -> list[Bead]:
    ops, op, names = whole.texts("ops"), whole.wholes("op"), whole.texts("names")
    reads, piece = whole.rows_of_wholes("reads"), set(whole.wholes("piece"))
    ratios: dict[str, dict[int, float]] = {}
    for key in ("introduced", "propagated"):
        try:
            ratios[key] = {int(number): ratio for number, ratio in whole.numbers_by_name(key).items()}
        except ValueError as error:
            raise DamagedReport(f"its 'whole.{key}' has a key that is no number of a node") from error
    if not all(0 <= each < len(ops) for each in op):
        raise DamagedReport("its 'whole.op' has places that 'whole.ops' lacks")
    most = max(12, min(90, _NAMES // max(len(op), 1)))
    nodes = []
    for place, kind in enumerate(op):
        name = names[place] if place < len(names) else ""
        made, carried = ratios["introduced"].get(place), ratios["propagated"].get(place)
        lines = [f"{cut(ops[kind], 40)}  {middle_cut(name, most)}".rstrip(), f"node {place}"]
        lines += ["in the piece"] if place in piece else []
        lines += [f"introduces {_ratio(made)}"] if made is not None else []
        lines += [f"carries on {_ratio(carried)}"] if carried is not None else []
        nodes.append(
            Bead(
                lines=lines,
                reads=reads[place] if place < len(reads) else [],
                in_piece=place in piece,
                introduced=made,
                propagated=carried,
            )
        )
    return nodes


def _ratio(value: float) -> str:
    return "an error that is not a number" if math.isnan(value) else f"{times(value)} the tolerance"


# A whole model as a ribbon that is read like a text: from left to right in the order of the graph, row below row.
#
# A layered layout of thousands of nodes is a line of several metres; broken into rows it fits a screen. Every kind of
# node is one path, however many there are, so that 10,000 of them draw at once. What a node is, its shape says.

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


def ribbon(name: str, title: str, nodes: Sequence[Bead], note: str = "") -> Drawing:
    """The drawing of nodes in an order in which most of them come after those that they read from."""
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
        for style, d in _drawn(node, x, y):
            paths.setdefault(style, []).append(d)
    traces = [Trace(d=edges, style="flow", count=drawn)] if edges else []
    traces += [
        Trace(d="".join(paths[style]), style=style, count=len(paths[style])) for style in _ORDER if style in paths
    ]
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
        legend=[sign for sign in _LEGEND if sign.style in paths],
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
            taken: set[int] = set()  # lanes: each node gets that of what it reads from, or the next one that is free
            for place in members[begin : begin + _LANES]:
                wished = min((cells[source][1] for source in nodes[place].reads if 0 <= source < place), default=0)
                _, lane = min((abs(lane - wished), lane) for lane in range(_LANES) if lane not in taken)
                taken.add(lane)
                cells[place] = (column, lane)
            column += 1
    return cells


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


def _drawn(bead: Bead, x: int, y: int) -> Iterator[tuple[str, str]]:
    """The styles of a node and the paths in them."""
    propagated = _is_wrong(bead.propagated)
    if bead.introduced is not None and _is_wrong(bead.introduced):
        size = 1 if bead.introduced <= 10 else 2 if bead.introduced <= 1000 else 3
        half = size + 2
        yield f"made-{size}", f"M{x} {y - half}l{half} {half}l-{half} {half}l-{half} -{half}z"
    elif propagated or bead.introduced is not None or bead.propagated is not None:
        style = "carried" if propagated else "within"
        yield style, f"M{x} {y}h0"
        yield f"{style}-hole", f"M{x} {y}h0"
    else:
        yield "dot", f"M{x} {y}h0"
    if bead.in_piece:
        yield "frame", f"M{x - 5} {y - 5}h10v10h-10z"


def _is_wrong(ratio: float | None) -> bool:
    """Whether an error was measured and is out of tolerance; NaN is."""
    return ratio is not None and not ratio <= OUT_OF_TOLERANCE


# Which layers are wrong, one by one and together.

_MOST_PLACES = 3
_MOST_MISFITS = 5


def layers_section(report: Branch) -> Section | None:
    """Which layers are wrong."""
    part = report.part("layers")
    if part is None:
        return None
    blocks: list[Block] = [Facts(rows=_layer_facts(part))]
    grouped = [each.wholes("nodes") for each in part.parts("groups")]
    for key, caption in (("ranking", "What to look at, the worst first"), ("groups", "Wrong only together")):
        entries = [each for each in part.parts(key) if key == "groups" or each.wholes("nodes") not in grouped]
        if entries:
            blocks.append(_grid_of_layers(caption, entries))
    if origins := part.parts("non_finite_origins"):
        keys = ["engine", "label", "tensor", "nan", "inf"]
        blocks.append(plain_table("Where NaN or infinity begins", keys, origins))
    remarks = [cut(text, 500) for text in part.texts("remarks")[:30]]
    if remarks:
        blocks.append(Bullets(caption="Remarks", items=remarks))
    return Section(name="layers", title="Layer by layer", blocks=blocks)


def _layer_facts(part: Branch) -> list[tuple[str, Cell | str]]:
    verdict = part.text("verdict") or "unknown"
    tone, sign = {"right": ("good", "✓"), "wrong": ("bad", "✕")}.get(verdict, ("unsure", "?"))
    rows: list[tuple[str, Cell | str]] = [("verdict", Cell(text=cut(verdict, 40), tone=tone, sign=sign))]
    for key in ("suspect", "reference"):
        side = part.part(key)
        if side is not None:
            rows.append((key, cut(" ".join(text for text in (side.text("label"), side.text("version")) if text), 100)))
    golden = part.part("golden")
    if golden is not None:
        rows.append(("golden values", f"of {golden.whole('tensors')} of {golden.whole('of')} tensors"))
        misfits = golden.texts_by_name("misfits")
        told = [f"{middle_cut(name, 60)}: {cut(why, 200)}" for name, why in list(misfits.items())[:_MOST_MISFITS]]
        rows += [("do not fit", Cell(text="; ".join(told), tone="unsure", sign="?"))] if told else []
    first = part.part("first_wrong")
    if first is not None:
        rows.append(("first wrong tensor", Cell(text=middle_cut(first.text("tensor") or "", 100), code=True)))
    if part.flag("masked"):
        rows.append(("masked", "layers are wrong although the outputs are right"))
    if part.flag("complete") is False:
        rows.append(("complete", "no: it was interrupted"))
    return rows


def _grid_of_layers(caption: str, entries: Sequence[Branch]) -> Grid:
    rows: Rows = []
    for place, each in enumerate(entries[:MOST_ROWS], start=1):
        error, failure, rounding = each.part("error"), each.part("failure"), each.number("rounding_ratio")
        ratio = None if error is None else error.number("tolerance_ratio")
        absolute = None if error is None else error.number("absolute")
        labels = [middle_cut(label, 60) for label in each.texts("labels")[:12]]
        origins, listed = each.part("origins"), " + ".join(labels)
        name = None if origins is None else origins.text("name")
        places = [] if origins is None else [cut(place, 200) for place in origins.texts("places")[:_MOST_PLACES]]
        said = "" if failure is None else " · ".join(t for t in (failure.text("stage"), failure.text("message")) if t)
        rows.append(
            [
                str(place),
                code(cut(f"{name} ({listed})" if name and len(labels) > 1 else listed, 400)),
                code(" · ".join(places)),
                Cell(text=times(ratio), tone="bad", sign="✕") if ratio is not None and not ratio <= 1 else
                "" if ratio is None else times(ratio),
                "" if absolute is None else figure(absolute),
                "" if rounding is None else times(rounding),
                cut(said, 200),
            ]
        )  # fmt: skip
    head = ["rank", "layers", "made at", "times tolerance", "greatest error", "times plain float32", "failure"]
    return Grid(caption=caption, head=head, rows=rows, left=len(entries) - len(rows))
