"""The section on the piece: its drawn graph and the layout of that, the source of its nodes, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from biopsy.findings.document import Bullets, Cell, Columns, DocumentBlock, Grid, Passage
from biopsy.findings.page.drawing import Box, DrawnEdge, Graph, Sign
from biopsy.findings.page.model_map import MapNode, map_drawing
from biopsy.findings.page.reading import Branch
from biopsy.findings.page.wording import (
    MOST_SHOWN,
    Column,
    attributes_of,
    code,
    code_of,
    cut,
    error_of,
    error_text,
    facts,
    listed,
    middle_cut,
    node_lines,
    source_cell,
    source_text,
    style_of,
    table,
    tensor_lines,
    times,
    type_text,
    worst_text,
)
from biopsy.text import count, size_text

MOST_BOXES = 150
"""The most nodes that are drawn as boxes; a larger piece is drawn as a map."""
_MOST_EDGES = 600
_MOST_BESIDE = 12
"""The most nodes of a piece whose drawing leaves room for the facts beside it."""


def piece_blocks(piece: Branch) -> Iterator[DocumentBlock]:
    """The smallest part that still fails."""
    nodes, tensors = piece.parts("nodes"), piece.parts_by_name("tensors")
    drawn: list[DocumentBlock] = []
    if len(nodes) > MOST_BOXES or sum(len(node.texts("inputs")) for node in nodes) > _MOST_EDGES:
        yield Passage(text=f"The piece has {len(nodes)} nodes: each is a dot, read from left to right.")
        writer = {name: place for place, node in enumerate(nodes) for name in node.texts("outputs") if name}
        dots = [
            MapNode(
                lines=[f"{node.text('op_type') or '?'}  {middle_cut(node.text('name'), 60)}"],
                reads=sorted({writer[name] for name in node.texts("inputs") if name in writer}),
            )
            for node in nodes
        ]
        drawn = [map_drawing("piece-map", f"The piece: {count(len(nodes), 'node')}", dots)]
    elif nodes:
        drawn = [piece_drawing(piece, nodes, tensors)]
    small = 0 < len(nodes) <= _MOST_BESIDE
    operators: dict[str, list[str]] = {}  # by the line of code that they come from
    for node in nodes:
        operators.setdefault(source_text(node), []).append(cut(node.text("op_type") or "?", 40))
    lines = [f"{', '.join(dict.fromkeys(ops))}: {source}" for source, ops in operators.items() if source]
    beside: list[DocumentBlock] = [*_facts(piece)]
    if lines:
        beside.append(Bullets(caption="Where it comes from", items=[code(line) for line in lines[:MOST_SHOWN]]))
    beside += [_grid_of_tensors(tensors, folded=not small)] if tensors else []
    yield from [Columns(columns=[drawn, beside])] if small else [*drawn, *beside]
    if nodes:
        columns: dict[str, Column] = {
            "number": "number",
            "operator": lambda node: cut(node.text("op_type") or "?", 60),
            "name": code_of("name"),
            "attributes": lambda node: code(", ".join(attributes_of(node, 10))),
            "reads": lambda node: code(listed(node.texts("inputs"))),
            "writes": lambda node: code(listed(node.texts("outputs"))),
            "made at": source_cell,
        }
        left = piece.whole("more_nodes") or 0
        yield table("The nodes as a table", nodes, columns, most=MOST_BOXES, folded_above=0, more=left)


def _facts(piece: Branch) -> list[DocumentBlock]:
    size, failure = piece.whole("bytes"), piece.child("failure")
    known = {
        "file": piece.text("path"),
        "size": None if size is None else size_text(size),
        "SHA-256": piece.text("sha256"),
        "inputs": piece.text("inputs_path"),
        "fails": failure.text("reason") or failure.text("message"),
    }
    ratios = [(each.number("times_tolerance") or 0.0, each) for each in failure.parts("mismatches")]
    ratio, worst = max(ratios, key=lambda pair: pair[0], default=(0.0, piece))
    if ratio:
        output = f" of '{middle_cut(worst.text('output'))}'"
        known["worst element"] = f"{worst_text(worst, output)}, {times(ratio)} the tolerance"
    return [*facts(known, ["file", "SHA-256", "inputs"], ["file", "inputs"])]


def _grid_of_tensors(tensors: Mapping[str, Branch], *, folded: bool) -> Grid:
    rows: list[list[Cell | str]] = []
    for name, tensor in list(tensors.items())[: 2 * MOST_BOXES]:
        sign, amount, _ = error_of(tensor)
        tone = {"✕": "bad", "✓": "good"}.get(sign, "plain")
        known: list[Cell | str] = [
            code(middle_cut(name)),
            tensor.text("kind"),
            code(type_text(tensor)),
            code(tensor.loose("values")),
        ]
        rows.append([*known, Cell(text=cut(amount, 200), sign=sign, tone=tone)])
    head = ["tensor", "kind", "type", "values", "error by tolerance"]
    return Grid(caption="The tensors as a table", head=head, rows=rows, folded=folded, left=len(tensors) - len(rows))


_MOST_ENDS = 150
"""The most inputs or outputs that are drawn."""
_WIDTH, _GAP, _LAYER_GAP, _MARGIN = Box.width, 28.0, 44.0, 12.0
_CHARACTERS = 33
"""The most characters of a line in a box."""


def piece_drawing(piece: Branch, nodes: Sequence[Branch], tensors: Mapping[str, Branch]) -> Graph:
    """The piece as a graph: a box for each node, input and output, and an edge for each tensor between two boxes."""
    boxes = [
        *(_end_box(value, tensors, "input") for value in piece.parts("inputs")[:_MOST_ENDS]),
        *(_node_box(node, tensors) for node in nodes),
        *(_end_box(value, tensors, "output") for value in piece.parts("outputs")[:_MOST_ENDS]),
    ]
    writer = {name: place for place, box in reversed(list(enumerate(boxes))) for name in box.writes if name}
    reads = {
        (writer[name], place, name): None
        for place, box in enumerate(boxes)
        for name in box.reads
        if name in writer and writer[name] < place
    }
    graph = _positioned(boxes, list(reads), tensors)
    return replace(graph, note=cut(piece.text("fault"), 200))


def _positioned(unplaced: Sequence[Box], reads: Sequence[tuple[int, int, str]], tensors: Mapping[str, Branch]) -> Graph:
    layout = layered(len(unplaced), [(source, target) for source, target, _ in reads])
    heights = [0.0] * (max(layout.layers, default=0) + 1)
    for box, layer in zip(unplaced, layout.layers, strict=True):
        heights[layer] = max(heights[layer], box.height)
    tops = [_MARGIN]
    for height in heights:
        tops.append(tops[-1] + height + _LAYER_GAP)

    # A waypoint has a column of its own, in the middle of which the edge passes.
    waypoints = [column * (_WIDTH + _GAP) + _WIDTH / 2 - _GAP for path in layout.paths for column in path]
    first_left = min([column * (_WIDTH + _GAP) for column in layout.columns] + waypoints, default=0.0)

    def left(column: float) -> float:
        return _MARGIN + column * (_WIDTH + _GAP) - first_left

    boxes = [
        replace(box, x=left(column), y=tops[layer] + (heights[layer] - box.height) / 2)
        for box, column, layer in zip(unplaced, layout.columns, layout.layers, strict=True)
    ]
    edges = []
    for (source, target, name), path in zip(reads, layout.paths, strict=True):
        points = [(boxes[source].x + _WIDTH / 2, boxes[source].y + boxes[source].height)]
        for layer, column in enumerate(path, start=layout.layers[source] + 1):
            x = left(column) + _WIDTH / 2
            points += [(x, tops[layer]), (x, tops[layer] + heights[layer])]
        points.append((boxes[target].x + _WIDTH / 2, boxes[target].y))
        edges.append(DrawnEdge(d=_curve(points), style=style_of(tensors.get(name)), lines=tensor_lines(name, tensors)))
    ends = [box.x + box.width for box in boxes] + [x + _MARGIN - first_left + 2 * _GAP for x in waypoints]
    styles = {edge.style for edge in edges}
    return Graph(
        title=f"The piece: {count(sum(box.style == 'node' for box in boxes), 'node')}",
        width=max(ends, default=0.0) + _MARGIN, height=tops[-1] - _LAYER_GAP + _MARGIN, boxes=boxes, edges=edges,
        legend=[sign for sign in _LEGEND if sign.style in styles] if styles - {"unmeasured"} else [],
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
        middle = (y + next_y) / 2
        bend = f"C{x:.0f} {middle:.0f} {next_x:.0f} {middle:.0f} {next_x:.0f} {next_y:.0f}"
        parts.append(f"V{next_y:.0f}" if next_x == x else bend)
        x, y = next_x, next_y
    return "".join(parts)


def _node_box(node: Branch, tensors: Mapping[str, Branch]) -> Box:
    inputs, outputs, name = node.texts("inputs"), node.texts("outputs"), node.text("name")
    attributes, more = attributes_of(node, 4), len(node.texts_by_name("attributes")) - 4
    rows = [(middle_cut(name, _CHARACTERS), "name")] if name else []
    rows += [(text, "attribute") for text in attributes]
    rows += [(f"and {count(more, 'more attribute')}", "attribute")] if more > 0 else []
    read = [(name, tensors[name]) for name in inputs if name in tensors and tensors[name].text("kind") == "weight"]
    rows += [(f"▪ {middle_cut(name, 12)} {type_text(tensor)}", "weight") for name, tensor in read]
    if len(rows) > 9:
        rows = [*rows[:9], ("…", "weight")]
    for tensor in [tensors[name] for name in outputs[:4] if name in tensors]:
        rows += [(f"→ {type_text(tensor)}", "type"), *_error_rows(tensor)]
    return Box(
        style="node", title=cut(node.text("op_type") or "?", 24), at_fault=node.flag("at_fault") is True,
        rows=[(cut(text, _CHARACTERS), style) for text, style in rows],
        lines=node_lines(node, tensors), reads=inputs, writes=outputs,
    )  # fmt: skip


def _end_box(value: Branch, tensors: Mapping[str, Branch], kind: str) -> Box:
    name, (reads, writes) = value.text("name"), ([], [value.text("name")])
    rows = [(type_text(value), "type")]
    if kind == "input":
        rows += _error_rows(tensors.get(name))
    else:
        reads, writes = writes, reads
    lines = [f"{kind} {cut(name, 300)}", type_text(value), error_text(tensors.get(name)) or ""]
    return Box(
        style=kind, title=f"{kind} {middle_cut(name, 20)}", rows=[(cut(text, _CHARACTERS), x) for text, x in rows],
        lines=[line for line in lines if line], reads=reads, writes=writes,
    )  # fmt: skip


def _error_rows(tensor: Branch | None) -> list[tuple[str, str]]:
    text = error_text(tensor)
    return [(text, style_of(tensor))] if text else []


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Columns (in widths of a box, from 0) and layers (from 0 at the top) of items, and the path of each edge.

    A path has the column of the edge at each layer between its ends.
    """

    columns: Sequence[float]
    layers: Sequence[int]
    paths: Sequence[Sequence[float]]


def layered(count: int, edges: Sequence[tuple[int, int]]) -> Layout:
    """The layered layout of a graph (Sugiyama, Tagawa and Toda 1981), with its connected parts side by side.

    Items are numbers below ``count``; each edge leads from an item to a later one.
    """
    columns, layers = [0.0] * count, [0] * count
    paths: list[Sequence[float]] = [()] * len(edges)
    right = 0.0
    for members, edge_numbers in _components(count, edges):
        place = {item: at for at, item in enumerate(members)}
        dense = [(place[edges[number][0]], place[edges[number][1]]) for number in edge_numbers]
        part = _connected(len(members), dense)
        every = [*part.columns, *(column for path in part.paths for column in path)]
        shift = right - min(every)
        for item, column, layer in zip(members, part.columns, part.layers, strict=True):
            columns[item], layers[item] = column + shift, layer
        for number, path in zip(edge_numbers, part.paths, strict=True):
            paths[number] = [column + shift for column in path]
        right = max(every) + shift + 1
    return Layout(columns=columns, layers=layers, paths=paths)


def _components(count: int, edges: Sequence[tuple[int, int]]) -> list[tuple[list[int], list[int]]]:
    """The connected parts of a graph: items in ascending order, and the numbers of their edges."""
    part = list(range(count))
    for source, target in edges:
        joined, into = part[source], part[target]
        part = [into if each == joined else each for each in part]
    return [
        (
            [item for item in range(count) if part[item] == each],
            [number for number, (source, _) in enumerate(edges) if part[source] == each],
        )
        for each in dict.fromkeys(part)
    ]


def _connected(count: int, edges: Sequence[tuple[int, int]]) -> Layout:
    """The layout of a connected graph. For an unconnected one, fast_sugiyama confuses waypoints with items."""
    if not edges:
        return Layout(columns=[0.0], layers=[0], paths=[])
    try:
        from fast_sugiyama import from_edges
    except ImportError:  # it has no wheel for every platform
        return _plain(count, edges)
    ((positions, _, _, lines),) = from_edges(sorted(set(edges)), vertex_spacing=1.0, dummy_vertices=True)
    at = {int(item): place for item, place in positions}
    top = max(y for _, y in at.values())
    columns = {item: float(x) for item, (x, _) in at.items()}
    paths = _paths([(int(source), int(target)) for source, target in lines or ()], count, columns)
    return Layout(
        columns=[columns[item] for item in range(count)],
        layers=[round(top - at[item][1]) for item in range(count)],
        paths=[paths.get(edge, ()) for edge in edges],
    )


def _plain(count: int, edges: Sequence[tuple[int, int]]) -> Layout:
    """The layout with each item below all that it reads, in the order of the items, and with straight edges."""
    layers = [0] * count
    for source, target in sorted(edges):
        layers[target] = max(layers[target], layers[source] + 1)
    columns = [float(layers[:item].count(layers[item])) for item in range(count)]
    paths = []
    for source, target in edges:
        steps = layers[target] - layers[source]
        slope = (columns[target] - columns[source]) / steps
        paths.append([columns[source] + slope * step for step in range(1, steps)])
    return Layout(columns=columns, layers=layers, paths=paths)


def _paths(
    lines: Iterable[tuple[int, int]], count: int, columns: dict[int, float]
) -> dict[tuple[int, int], Sequence[float]]:
    """The path of each edge that has waypoints, which are numbered from ``count``."""
    following: dict[int, int] = {}
    begins = []
    for source, target in lines:
        if source >= count:
            following[source] = target
        elif target >= count:
            begins.append((source, target))
    paths: dict[tuple[int, int], Sequence[float]] = {}
    for source, first in begins:
        passed, here = [], first
        while here >= count:
            passed.append(columns[here])
            here = following[here]
        paths[source, here] = passed
    return paths
