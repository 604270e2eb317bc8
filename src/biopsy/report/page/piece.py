"""The section on the piece: the drawn graph, where its nodes come from, and the same as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from biopsy.quantities import count, size_text
from biopsy.report.page.blocks import (
    Block,
    Bullets,
    Cell,
    Columns,
    Drawing,
    Facts,
    Grid,
    Passage,
    Rows,
    Section,
    Stack,
)
from biopsy.report.page.branch import Branch
from biopsy.report.page.figures import cut, middle_cut, times
from biopsy.report.page.piece_drawing import drawn_piece
from biopsy.report.page.ribbon import Bead, ribbon
from biopsy.report.page.tensor_words import MOST_SHOWN, error_of, first_few, source_text, type_text

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
    more: list[Block] = [Facts(rows=_facts(piece)), *_sources(nodes)]
    if tensors:
        more.append(_grid_of_tensors(tensors, folded=not small))
    blocks = [Columns(blocks=[*blocks, Stack(blocks=more)])] if small else [*blocks, *more]
    if nodes:
        blocks.append(_grid_of_nodes(nodes, piece.whole("more_nodes") or 0))
    return Section(name="piece", title="The failing piece", blocks=blocks)


def _facts(piece: Branch) -> list[tuple[str, Cell | str]]:
    size = piece.whole("bytes")
    known = [
        ("file", piece.text("path")),
        ("size", None if size is None else size_text(size)),
        ("SHA-256", piece.text("sha256")),
        ("inputs", piece.text("inputs_path")),
    ]
    failure = piece.part("failure")
    if failure is not None:
        known.append(("fails", failure.text("reason") or failure.text("message")))
        known.append(("worst element", _worst(failure)))
    coded = ("file", "SHA-256", "inputs")
    return [(term, Cell(text=cut(text, 500), code=term in coded)) for term, text in known if text is not None]


def _worst(failure: Branch) -> str | None:
    """The mismatch that is the most times its tolerance off."""
    mismatches = [each for each in failure.parts("mismatches") if each.number("times_tolerance") is not None]
    if not mismatches:
        return None
    worst = max(mismatches, key=lambda each: each.number("times_tolerance") or 0.0)
    sides = f"{worst.loose('actual')} instead of {worst.loose('expected')}"
    ratio = times(worst.number("times_tolerance") or 0.0)
    return f"{sides} at {worst.loose('index')} of '{middle_cut(worst.text('output') or '', 80)}', {ratio} the tolerance"


def _sources(nodes: Sequence[Branch]) -> list[Block]:
    """The lines of the program that nodes come from, each once, with the nodes."""
    made: dict[str, list[str]] = {}
    for node in nodes:
        where = source_text(node)
        if where:
            made.setdefault(where, []).append(cut(node.text("op_type") or "?", 40))
    items = [
        Cell(text=f"{', '.join(dict.fromkeys(ops))}: {where}", code=True)
        for where, ops in list(made.items())[:MOST_SHOWN]
    ]
    return [Bullets(caption="Where it comes from", items=items)] if items else []


def _grid_of_nodes(nodes: Sequence[Branch], more: int) -> Grid:
    rows: Rows = []
    for node in nodes[:MOST_BOXES]:
        number = node.whole("number")
        attributes = first_few(node.texts_by_name("attributes"), 10)
        rows.append(
            [
                "" if number is None else str(number),
                cut(node.text("op_type") or "?", 60),
                Cell(text=middle_cut(node.text("name") or "", 80), code=True),
                Cell(text=cut(", ".join(f"{name} = {cut(text, 60)}" for name, text in attributes), 300), code=True),
                Cell(text=cut(", ".join(node.texts("inputs")[:MOST_SHOWN]), 300), code=True),
                Cell(text=cut(", ".join(node.texts("outputs")[:MOST_SHOWN]), 300), code=True),
                Cell(text=source_text(node), code=True),
            ]
        )
    head = ["number", "operator", "name", "attributes", "reads", "writes", "made at"]
    return Grid(caption="The nodes as a table", head=head, rows=rows, folded=True, left=len(nodes) - len(rows) + more)


def _grid_of_tensors(tensors: Mapping[str, Branch], *, folded: bool) -> Grid:
    rows: Rows = []
    for name, tensor in list(tensors.items())[: 2 * MOST_BOXES]:
        sign, amount, _ = error_of(tensor) or ("", "", False)
        rows.append(
            [
                Cell(text=middle_cut(name, 80), code=True),
                tensor.text("kind") or "",
                Cell(text=cut(type_text(tensor), 100), code=True),
                Cell(text=cut(tensor.loose("values") or "", 60), code=True),
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
