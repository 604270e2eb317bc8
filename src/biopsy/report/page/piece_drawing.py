"""The piece as a drawn graph: a box for each node, what flows between them, and the error at each tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from biopsy.quantities import count
from biopsy.report.page.blocks import DrawnBox, DrawnEdge, DrawnGraph, Row, Sign
from biopsy.report.page.branch import Branch
from biopsy.report.page.figures import cut, middle_cut
from biopsy.report.page.layout import layered
from biopsy.report.page.tensor_words import error_text, first_few, node_lines, style_of, tensor_lines, type_text

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
    found = {
        (writer[name], place, name): None
        for place, item in enumerate(items)
        for name in item.reads
        if name in writer and writer[name] < place
    }
    return _placed(items, list(found), tensors)


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
        Row(text=cut(f"{name} = {text}", _CHARACTERS), style="attribute") for name, text in first_few(attributes, 4)
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
        rows += _output_rows(name, tensors.get(name))
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


def _output_rows(name: str, tensor: Branch | None) -> list[Row]:
    if tensor is None or not name:
        return []
    return [Row(text=cut(f"→ {type_text(tensor)}", _CHARACTERS), style="type"), *_error_rows(tensor)]


def _error_rows(tensor: Branch | None) -> list[Row]:
    text = error_text(tensor)
    return [Row(text=cut(text, _CHARACTERS), style=style_of(tensor))] if text else []
