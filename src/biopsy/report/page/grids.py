"""Tables whose cells are what stands below the keys of a report."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.report.page.blocks import Cell, Grid
from biopsy.report.page.branch import Branch
from biopsy.report.page.figures import middle_cut

MOST_ROWS = 100


def plain_grid(caption: str, keys: Sequence[str], entries: Sequence[Branch]) -> Grid:
    """A table with a column for each key, and a row for each of the first entries."""
    rows = [
        [Cell(text=middle_cut(each.loose(key) or "", 80), code=True) for key in keys] for each in entries[:MOST_ROWS]
    ]
    return Grid(caption=caption, head=keys, rows=rows, left=len(entries) - len(rows))
