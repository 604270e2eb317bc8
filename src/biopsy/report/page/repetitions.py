"""What was repeated: runs of a command, and builds of a model."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.report.page.blocks import Block, Cell, Facts, Grid, Rows, Section
from biopsy.report.page.branch import Branch
from biopsy.report.page.figures import cut, duration, figure
from biopsy.report.page.grids import MOST_ROWS, plain_grid


def runs(report: Branch) -> Section | None:
    """How often a command failed, and how."""
    found = report.part("repeat")
    if found is None:
        return None
    told = {"command": " ".join(found.texts("command"))}
    told |= {name: found.text(name) or "" for name in ("iterations", "passed", "failed")}
    interval = found.numbers("pass_rate_interval")
    rate = found.number("pass_rate")
    if rate is not None and len(interval) == 2:
        low, high = (f"{100 * end:.0f} %" for end in interval)
        told["passes in"] = f"{100 * rate:.0f} % of runs; the true rate is between {low} and {high}"
    told |= {cut(name, 60): text for name, text in list(found.texts_by_name("others").items())[:20]}
    rows = [(term, Cell(text=cut(text, 500), code=term == "command")) for term, text in told.items() if text]
    blocks: list[Block] = [Facts(rows=rows)]
    failures = found.parts("failures")
    if failures:
        blocks.append(plain_grid("How it failed", ["reason", "times", "first"], failures))
    return Section(name="repeat", title="Repeated runs", blocks=blocks)


def builds(report: Branch) -> Section | None:
    """How many builds are bad, and which choices of the engine go with them."""
    found = report.part("builds")
    if found is None:
        return None
    outcomes = found.texts_by_name("outcomes")
    told = {
        "engine": " ".join(text for text in (found.text("engine"), found.text("version")) if text),
        "builds": found.text("runs") or "",
        "outcomes": ", ".join(f"{times} {name}" for name, times in list(outcomes.items())[:20]),
    }
    seconds, difference = found.number("seconds"), found.part("difference")
    told["time"] = "" if seconds is None else duration(seconds)
    groups: Sequence[Branch] = []
    if difference is not None:
        groups = difference.parts("groups")
        told["good and bad"] = f"{difference.text('good') or '?'} and {difference.text('bad') or '?'}"
        told["more builds needed"] = difference.text("more_builds") or ""
    blocks: list[Block] = [Facts(rows=[(term, cut(text, 500)) for term, text in told.items() if text])]
    if groups:
        blocks.append(_grid_of_groups(groups))
    return Section(name="builds", title="Repeated builds", blocks=blocks)


def _grid_of_groups(groups: Sequence[Branch]) -> Grid:
    rows: Rows = []
    for group in groups[:MOST_ROWS]:
        choices = [
            " ".join(text for text in (each.text("where"), each.text("kind"), each.text("value")) if text)
            for each in group.parts("choices")[:10]
        ]
        chance = group.number("adjusted")
        rows.append(
            [
                Cell(text=cut("; ".join(choices), 400), code=True),
                group.text("bad") or "",
                group.text("good") or "",
                "" if chance is None else figure(chance),
            ]
        )
    head = ["choices that go together", "bad builds", "good builds", "chance, for all tests"]
    return Grid(caption="What bad builds have in common", head=head, rows=rows, left=len(groups) - len(rows))
