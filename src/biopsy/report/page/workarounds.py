"""What makes the model right, as ``debug workaround`` has found it: the best, their differences, all that was tried."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.report.page.blocks import Block, Cell, Grid, Listing, Passage, Rows, Section
from biopsy.report.page.branch import Branch
from biopsy.report.page.figures import cut
from biopsy.report.page.grids import MOST_ROWS

_MOST_LINES = 200


def section(report: Branch) -> Section | None:
    """None where the report is of another command."""
    found = report.part("workaround")
    if found is None:
        return None
    best, tried = found.parts("best"), found.parts("tried")
    blocks: list[Block] = [Passage(text=_trust(found))]
    blocks += [_grid_of_best(best)] if best else [Passage(text="Nothing that was tried makes the model right.")]
    for one in best[:MOST_ROWS]:
        blocks += _lines_of(one)
    blocks += [_grid_of_tried(tried)] if tried else []
    return Section(name="workaround", title="What makes the model right", blocks=blocks)


def _trust(found: Branch) -> str:
    reference, other = cut(found.text("reference") or "?", 80), found.text("confirmed_by")
    agrees = f", as {cut(other, 80)} does" if other else "; no engine of another package confirms that"
    samples, fresh = found.whole("samples") or 0, found.whole("fresh_samples") or 0
    return f"Right is what {reference} gives{agrees}: on {samples} of the check's inputs and {fresh} fresh ones."


def _grid_of_best(best: Sequence[Branch]) -> Grid:
    rows: Rows = [
        [
            cut(one.text("kind") or "?", 40),
            Cell(text=cut(one.loose("text") or "", 300), tone="good", sign="✓"),
            Cell(text=cut(one.text("engine") or "", 200), code=True),
            _latency(one.part("latency")),
        ]
        for one in best[:MOST_ROWS]
    ]
    return Grid(
        caption="The best, the cheapest first",
        head=["kind", "change", "engine", "latency"],
        rows=rows,
        folded=False,
        left=len(best) - len(rows),
    )


def _latency(latency: Branch | None) -> str:
    if latency is None:
        return ""
    ratio, low, high, after = (latency.number(key) for key in ("ratio", "low", "high", "after"))
    if ratio is not None and low is not None and high is not None:
        return f"{ratio:.2f} times as long ({low:.2f} to {high:.2f})"
    return "" if after is None else f"{after:.3g} ms"


def _lines_of(one: Branch) -> list[Block]:
    """What is different in the model, or how the engine is called."""
    title = cut(one.loose("text") or "", 100)
    difference, python = one.texts("difference")[:_MOST_LINES], one.texts("python")[:_MOST_LINES]
    blocks: list[Block] = []
    if difference:
        blocks.append(Listing(caption=f"In the model: {title}", lines=difference))
    if one.texts("holds"):
        blocks.append(Listing(caption=f"The same function only for: {title}", lines=one.texts("holds")[:_MOST_LINES]))
    if python:
        blocks.append(Listing(caption=f"In Python: {title}", lines=python))
    return blocks


def _grid_of_tried(tried: Sequence[Branch]) -> Grid:
    rows: Rows = []
    for one in tried[:MOST_ROWS]:
        right = one.flag("right")
        told = Cell(text="right", tone="good", sign="✓") if right else Cell(text="not right", tone="bad", sign="✕")
        rows.append(
            [
                cut(one.text("kind") or "?", 40),
                cut(one.loose("text") or "", 300),
                told,
                cut(one.text("reason") or "", 200),
            ]
        )
    return Grid(
        caption="What was tried",
        head=["kind", "change", "outcome", "reason"],
        rows=rows,
        folded=len(rows) > 12,
        left=len(tried) - len(rows),
    )
