"""The section on the piece: the drawn graph, where its boxes stand and its nodes come from, and the same as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from biopsy.findings.page.blocks import (
    Block,
    Bullets,
    Cell,
    Column,
    Columns,
    Drawing,
    DrawnBox,
    DrawnEdge,
    DrawnGraph,
    Facts,
    Grid,
    Passage,
    Row,
    Rows,
    Section,
    Sign,
    Stack,
    code,
    code_of,
    facts,
    table,
    whole_of,
    words_of,
)
from biopsy.findings.page.model_map import Bead, ribbon
from biopsy.findings.page.reading import Branch
from biopsy.findings.page.wording import (
    MOST_SHOWN,
    cut,
    error_of,
    error_text,
    middle_cut,
    node_lines,
    source_text,
    style_of,
    tensor_lines,
    times,
    type_text,
)
from biopsy.text import count, size_text

MOST_BOXES = 150
"""A larger piece is drawn as a map is: nobody reads so many boxes."""
_MOST_EDGES = 600
_MOST_BESIDE = 12
"""Nodes of a piece that leaves room for the facts beside it."""


def section(report: Branch) -> Section | None:
    """The section on the smallest part that still fails; None without one."""
    piece = report.part("piece")
    if piece is None:
        return None
    nodes, tensors = piece.parts("nodes"), piece.parts_by_name("tensors")
    blocks: list[Block] = []
    if len(nodes) > MOST_BOXES or sum(len(node.texts("inputs")) for node in nodes) > _MOST_EDGES:
        blocks += [Passage(text=f"The piece has {len(nodes)} nodes: each is a dot, read from left to right.")]
        blocks.append(_as_ribbon(nodes))
    elif nodes:
        blocks.append(drawn_piece(piece, nodes, tensors))
    small = 0 < len(nodes) <= _MOST_BESIDE
    more: list[Block] = [_facts(piece)]
    made: dict[str, list[str]] = {}  # the lines of the program that nodes come from, each once, with the nodes
    for node in nodes:
        if where := source_text(node):
            made.setdefault(where, []).append(cut(node.text("op_type") or "?", 40))
    sources = [code(f"{', '.join(dict.fromkeys(ops))}: {where}") for where, ops in list(made.items())[:MOST_SHOWN]]
    more += [Bullets(caption="Where it comes from", items=sources)] if sources else []
    if tensors:
        more.append(_grid_of_tensors(tensors, folded=not small))
    blocks = [Columns(blocks=[*blocks, Stack(blocks=more)])] if small else [*blocks, *more]
    if nodes:
        columns: dict[str, Column] = {
            "number": whole_of("number"),
            "operator": words_of("op_type", 60, "?"),
            "name": code_of("name"),
            "attributes": _attributes,
            "reads": lambda node: code(cut(", ".join(node.texts("inputs")[:MOST_SHOWN]), 300)),
            "writes": lambda node: code(cut(", ".join(node.texts("outputs")[:MOST_SHOWN]), 300)),
            "made at": lambda node: code(source_text(node)),
        }
        left = piece.whole("more_nodes") or 0
        blocks.append(table("The nodes as a table", nodes, columns, most=MOST_BOXES, folded_above=0, more=left))
    return Section(name="piece", title="The failing piece", blocks=blocks)


def _attributes(node: Branch) -> Cell:
    attributes = list(node.texts_by_name("attributes").items())[:10]
    return code(cut(", ".join(f"{name} = {cut(text, 60)}" for name, text in attributes), 300))


def _facts(piece: Branch) -> Facts:
    size, failure = piece.whole("bytes"), piece.part("failure")
    known = {
        "file": piece.text("path"),
        "size": None if size is None else size_text(size),
        "SHA-256": piece.text("sha256"),
        "inputs": piece.text("inputs_path"),
    }
    if failure is not None:
        known["fails"] = failure.text("reason") or failure.text("message")
        ratios = [(each.number("times_tolerance"), each) for each in failure.parts("mismatches")]
        ratio, worst = max(((ratio or 0.0, each) for ratio, each in ratios if ratio is not None),
                           key=lambda pair: pair[0], default=(0.0, None))  # fmt: skip
        if worst is not None:
            where = f"at {worst.loose('index')} of '{middle_cut(worst.text('output') or '', 80)}'"
            sides = f"{worst.loose('actual')} instead of {worst.loose('expected')}"
            known["worst element"] = f"{sides} {where}, {times(ratio)} the tolerance"
    return facts(known, 500, ["file", "SHA-256", "inputs"])


def _grid_of_tensors(tensors: Mapping[str, Branch], *, folded: bool) -> Grid:
    rows: Rows = []
    for name, tensor in list(tensors.items())[: 2 * MOST_BOXES]:
        sign, amount, _ = error_of(tensor) or ("", "", False)
        rows.append(
            [
                code(middle_cut(name, 80)),
                tensor.text("kind") or "",
                code(cut(type_text(tensor), 100)),
                code(cut(tensor.loose("values") or "", 60)),
                Cell(text=cut(amount, 200), sign=sign, tone={"✕": "bad", "✓": "good"}.get(sign, "plain")),
            ]
        )
    head = ["tensor", "kind", "type", "values", "error by tolerance"]
    return Grid(caption="The tensors as a table", head=head, rows=rows, folded=folded, left=len(tensors) - len(rows))


def _as_ribbon(nodes: Sequence[Branch]) -> Drawing:
    writer = {name: place for place, node in enumerate(nodes) for name in node.texts("outputs") if name}
    drawn = [
        Bead(
            lines=[f"{node.text('op_type') or '?'}  {middle_cut(node.text('name') or '', 60)}"],
            reads=sorted({writer[name] for name in node.texts("inputs") if name in writer}),
        )
        for node in nodes
    ]
    return ribbon("piece-map", f"The piece: {count(len(nodes), 'node')}", drawn)


# The piece as a drawn graph: a box for each node, what flows between them, and the error at each tensor.

_MOST_ENDS = 150
"""Inputs or outputs that are drawn."""
_WIDTH, _GAP, _LAYER_GAP, _LINE, _MARGIN = 236.0, 28.0, 44.0, 17.0, 12.0
_CHARACTERS = 33
"""Of a line within a box."""


@dataclass(frozen=True, kw_only=True)
class _Item:
    """A box before it has a place: a node, or a tensor that comes in or goes out."""

    style: str
    title: str
    rows: Sequence[Row]
    lines: Sequence[str]
    reads: Sequence[str]
    writes: Sequence[str]

    @property
    def height(self) -> float:
        return 32 + _LINE * len(self.rows) + (6 if self.rows else 0)


def drawn_piece(piece: Branch, nodes: Sequence[Branch], tensors: Mapping[str, Branch]) -> DrawnGraph:
    """The drawing of a graph of few nodes; ``tensors`` are what is known of them, by name."""
    values = {name: piece.parts(name) for name in ("inputs", "outputs")}
    items = [
        *(_end_item(value, tensors, "input") for value in values["inputs"][:_MOST_ENDS]),
        *(_node_item(node, tensors) for node in nodes),
        *(_end_item(value, tensors, "output") for value in values["outputs"][:_MOST_ENDS]),
    ]
    writer = {name: place for place, item in reversed(list(enumerate(items))) for name in item.writes if name}
    reads = {
        (writer[name], place, name): None
        for place, item in enumerate(items)
        for name in item.reads
        if name in writer and writer[name] < place
    }
    return _placed(items, list(reads), tensors)


def _placed(items: Sequence[_Item], reads: Sequence[tuple[int, int, str]], tensors: Mapping[str, Branch]) -> DrawnGraph:
    layout = layered(len(items), [(source, target) for source, target, _ in reads])
    tops, heights = [], []
    top = _MARGIN
    for layer in range(max(layout.layers, default=0) + 1):
        tallest = max((item.height for item, at in zip(items, layout.layers, strict=True) if at == layer), default=0.0)
        tops.append(top)
        heights.append(tallest)
        top += tallest + _LAYER_GAP

    # A way takes the room of a box, of which it needs the middle.
    ways = [column * (_WIDTH + _GAP) + _WIDTH / 2 - _GAP for way in layout.ways for column in way]
    first_left = min([column * (_WIDTH + _GAP) for column in layout.columns] + ways, default=0.0)

    def left(column: float) -> float:
        return _MARGIN + column * (_WIDTH + _GAP) - first_left

    boxes = []
    for item, column, layer in zip(items, layout.columns, layout.layers, strict=True):
        rows = [(44 + _LINE * place, row) for place, row in enumerate(item.rows)]
        y = tops[layer] + (heights[layer] - item.height) / 2
        boxes.append(
            DrawnBox(
                x=left(column), y=y, width=_WIDTH, height=item.height,
                style=item.style, title=item.title, rows=rows, lines=item.lines,
            )
        )  # fmt: skip
    edges = []
    for (source, target, name), way in zip(reads, layout.ways, strict=True):
        first = layout.layers[source] + 1
        points = [(boxes[source].x + _WIDTH / 2, boxes[source].y + boxes[source].height)]
        for place, column in enumerate(way):
            passes = left(column) + _WIDTH / 2
            points += [(passes, tops[first + place]), (passes, tops[first + place] + heights[first + place])]
        points.append((boxes[target].x + _WIDTH / 2, boxes[target].y))
        edges.append(DrawnEdge(d=_curve(points), style=style_of(tensors.get(name)), lines=tensor_lines(name, tensors)))
    ends = [box.x + box.width for box in boxes] + [at + _MARGIN - first_left + 2 * _GAP for at in ways]
    width = max(ends, default=0.0)
    measured = any(edge.style != "unmeasured" for edge in edges)
    return DrawnGraph(
        title=f"The piece: {count(sum(item.style == 'node' for item in items), 'node')}",
        width=width + _MARGIN, height=top - _LAYER_GAP + _MARGIN, boxes=boxes, edges=edges,
        legend=[sign for sign in _LEGEND if any(edge.style == sign.style for edge in edges)] if measured else [],
    )  # fmt: skip


_LEGEND = (
    Sign(d="M1 7h18", style="wrong", text="out of tolerance"),
    Sign(d="M1 7h18", style="right", text="within the tolerance"),
    Sign(d="M1 7h18", style="unmeasured", text="not measured"),
)


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """A line from above to below that bends only between layers."""
    x, y = points[0]
    parts = [f"M{x:.0f} {y:.0f}"]
    for next_x, next_y in points[1:]:
        if next_x == x:
            parts.append(f"V{next_y:.0f}")
        else:
            middle = (y + next_y) / 2
            parts.append(f"C{x:.0f} {middle:.0f} {next_x:.0f} {middle:.0f} {next_x:.0f} {next_y:.0f}")
        x, y = next_x, next_y
    return "".join(parts)


def _node_item(node: Branch, tensors: Mapping[str, Branch]) -> _Item:
    inputs, outputs = node.texts("inputs"), node.texts("outputs")
    attributes = node.texts_by_name("attributes")
    rows = [Row(text=middle_cut(name, _CHARACTERS), style="name") for name in [node.text("name")] if name]
    rows += [
        Row(text=cut(f"{name} = {text}", _CHARACTERS), style="attribute") for name, text in list(attributes.items())[:4]
    ]
    if len(attributes) > 4:
        rows.append(Row(text=f"and {count(len(attributes) - 4, 'more attribute')}", style="attribute"))
    for name in inputs:
        tensor = tensors.get(name)
        if tensor is not None and tensor.text("kind") == "weight":
            rows.append(Row(text=cut(f"▪ {middle_cut(name, 12)} {type_text(tensor)}", _CHARACTERS), style="weight"))
    if len(rows) > 9:
        rows = [*rows[:9], Row(text="…", style="weight")]
    for name in outputs[:4]:
        tensor = tensors.get(name) if name else None
        if tensor is not None:
            rows += [Row(text=cut(f"→ {type_text(tensor)}", _CHARACTERS), style="type"), *_error_rows(tensor)]
    return _Item(
        style="node", title=cut(node.text("op_type") or "?", 24), rows=rows, lines=node_lines(node, tensors),
        reads=inputs, writes=outputs,
    )  # fmt: skip


def _end_item(value: Branch, tensors: Mapping[str, Branch], kind: str) -> _Item:
    name = value.text("name") or ""
    rows = [Row(text=type_text(value), style="type")]
    rows += _error_rows(tensors.get(name)) if kind == "input" else []
    lines = [f"{kind} {cut(name, 300)}", type_text(value)]
    reads, writes = ([], [name]) if kind == "input" else ([name], [])
    lines += [text for text in [error_text(tensors.get(name))] if text]
    return _Item(style=kind, title=f"{kind} {middle_cut(name, 20)}", rows=rows, lines=lines, reads=reads, writes=writes)


def _error_rows(tensor: Branch | None) -> list[Row]:
    text = error_text(tensor)
    return [Row(text=cut(text, _CHARACTERS), style=style_of(tensor))] if text else []


# Where the boxes of a graph stand: layers from top to bottom, few crossings (Sugiyama, Tagawa and Toda 1981).


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
    ways: dict[tuple[int, int], Sequence[float]] = {}
    for source, first in begins:
        passed, here = [], first
        while here >= count:
            passed.append(columns[here])
            here = onward[here]
        ways[source, here] = passed
    return ways
