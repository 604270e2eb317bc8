"""The section on the search: plots of the nodes left by checks and by seconds, its passes, checks and result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from biopsy.findings.document import Cell, Columns, DocumentBlock
from biopsy.findings.page.drawing import Axis, Drawing, Label, Mark, Pointing, Sign, Trace, axes_frame
from biopsy.findings.page.reading import Branch
from biopsy.findings.page.wording import Column, cut, duration, facts, listed, number_of, table
from biopsy.text import count

_MOST_CHECKS = 4000
_WORDS = 300_000
"""Characters of the texts of all checks together, which bounds the size of the page."""
_MOST_CHECKS_LISTED = 300
_WIDTH, _HEIGHT = 620.0, 320.0
_ACROSS, _UP = (66.0, 606.0), (264.0, 44.0)

_SHAPES = {
    "reproduced": ("reproduces", "M{x} {y}h0", "reproduced: still fails"),
    "passed": ("passes", "M{x} {y}m-3 0h6m-3 -3v6", "passed"),
    "another failure": ("other", "M{x} {y}m0 -4l4 7h-8z", "another failure"),
    "cannot say": ("invalid", "M{x} {y}m-3 -3l6 6m0 -6l-6 6", "cannot say"),
    "timed out": ("late", "M{x} {y}m-3 -3h6v6h-6z", "timed out"),
    "unstable": ("unstable", "M{x} {y}m0 -4l4 4l-4 4l-4 -4z", "unstable"),
}
_UNKNOWN = ("unknown", "M{x} {y}m-3 0h6", "anything else")


def search_blocks(search: Branch) -> Iterator[DocumentBlock]:
    """The section on the search."""
    checks, passes = search.parts("checks"), search.parts("passes")
    if shown := _thinned([check for check in checks if check.whole("nodes") is not None]):
        by_number = [float(check.whole("number") or place) for place, check in enumerate(shown, start=1)]
        plots = [[_plot("checks", "Nodes left, check by check", shown, by_number)]]
        by_time = [end for end in (check.number("at") for check in shown) if end is not None]
        if len(by_time) == len(shown):
            plots.append([_plot("seconds", "Nodes left, second by second", shown, by_time)])
        yield Columns(columns=plots)
    if passes:
        columns: dict[str, Column] = {"pass": "stage", "nodes": _change, "checks": "checks"}
        yield table("Pass by pass", passes, {**columns, "time": number_of("seconds", duration)}, most=200)
    yield from facts(_known(search))
    if checks:
        columns = {"check": number_of("number"), "pass": "stage", "what was tried": "description"}
        columns |= {"nodes": number_of("nodes"), "left": number_of("left"), "outcome": _outcome}
        columns |= {"reason": "reason", "time": number_of("seconds", duration)}
        more = search.whole("more_checks") or 0
        yield table("Every check", checks, columns, most=_MOST_CHECKS_LISTED, folded_above=0, more=more)


def _change(entry: Branch) -> str:
    before, after = entry.whole("before"), entry.whole("after")
    return "" if before is None or after is None else f"{before} → {after}" if before != after else f"{after}"


def _outcome(entry: Branch) -> Cell:
    outcome = entry.text("outcome") or "?"
    return Cell(text=cut(outcome, 40), tone="bad" if outcome == "reproduced" else "plain")


def _known(search: Branch) -> dict[str, str]:
    nodes, left, remembered = search.whole("nodes"), search.whole("left"), search.whole("remembered")
    cannot_say = list(search.texts_by_name("cannot_say").items())
    known = {
        "mode": search.text("mode"),
        "outcomes": listed(f"{number} {name}" for name, number in search.texts_by_name("outcomes").items()),
        "nodes": f"{left} of {nodes} left" if nodes is not None and left is not None else "",
        "from a journal": count(remembered, "run") if remembered else "",
        "could not say, because": "; ".join(f"{cut(why, 100)}: {number}" for why, number in cannot_say[:10]),
        "stopped": search.text("stopped"),
    }
    flaky, verified = search.part("flaky"), search.part("verified")
    if flaky is not None:
        needed = flaky.whole("needed")
        known["flaky"] = f"fails in {flaky.whole('failed')} of {flaky.whole('runs')} runs" + (
            f"; {count(needed, 'passing run')} in a row count as passing" if needed else ""
        )
    if verified is not None:
        on = f", on {verified.text('machine')}" if verified.text("machine") else ""
        runs = f"{verified.whole('failed')} of {verified.whole('runs')} runs"
        known["verified"] = f"the file as written failed in {runs}{on}"
    return known


def _thinned(checks: list[Branch]) -> list[Branch]:
    """At most _MOST_CHECKS checks, with those at which the number of nodes left changes."""
    if len(checks) <= _MOST_CHECKS:
        return checks
    every = -(-len(checks) // (_MOST_CHECKS // 2))
    lefts = [check.whole("left") for check in checks]
    kept = [place for place in range(len(checks)) if place % every == 0 or (place and lefts[place] != lefts[place - 1])]
    return [checks[place] for place in kept[:_MOST_CHECKS]]


def _plot(unit: str, title: str, checks: Sequence[Branch], places: Sequence[float]) -> Drawing:
    nodes, lefts = ([check.whole(key) for check in checks] for key in ("nodes", "left"))
    sizes = [max(size or 0, 1) for size in nodes]
    across = Axis(low=min(*places, 0.0), high=max(*places, 1e-3), begin=_ACROSS[0], end=_ACROSS[1])
    most = max([*sizes, *(left for left in lefts if left is not None), 2])
    up = Axis(low=1.0, high=most * 1.15, begin=_UP[0], end=_UP[1], logarithmic=True)
    grid, words = axes_frame(across, up, (unit, "nodes"))
    known_lefts = ((place, left) for place, left in zip(places, lefts, strict=True) if left is not None)
    corners = [(across.at(place), up.at(max(left, 1))) for place, left in known_lefts]
    smallest = "".join(f"H{x}V{y}" if at else f"M{x} {y}" for at, (x, y) in enumerate(corners)) or "M0 0"
    most_words = max(40, min(200, _WORDS // (2 * len(checks))))
    paths: dict[str, list[str]] = {}
    legend: dict[str, Sign] = {}
    marks = []
    for check, place, size in zip(checks, places, sizes, strict=True):
        style, shape, meaning = _SHAPES.get(check.text("outcome"), _UNKNOWN)
        x, y = across.at(place), up.at(size)
        paths.setdefault(style, []).append(shape.format(x=x, y=y))
        legend.setdefault(style, Sign(d=shape.format(x=10, y=7), style=style, text=meaning))
        marks.append(Mark(x=x, y=y, lines=_lines(check, most_words)))
    band, labels = _bands(checks, places, across, up)
    return Drawing(
        name=unit, title=title, width=_WIDTH, height=_HEIGHT,
        traces=[band, *grid, Trace(d=smallest, style="smallest"), *Trace.each(paths)], words=[*words, *labels],
        marks=marks, pointing=Pointing(texts_of="" if unit == "checks" else "checks"),
        legend=[*legend.values(), Sign(d="M1 4h9v6h9", style="smallest", text="smallest that still fails")],
    )  # fmt: skip


def _bands(checks: Sequence[Branch], places: Sequence[float], across: Axis, up: Axis) -> tuple[Trace, list[Label]]:
    """A shaded band for every other stage, and the names of the stages that are wide enough for them."""
    parts, words = [], []
    begin = across.begin
    stages = groupby(zip(checks, places, strict=True), key=lambda pair: pair[0].text("stage"))
    for turn, (stage, group) in enumerate(stages):
        end = across.at(max(place for _, place in group))
        if turn % 2 == 0:
            parts.append(f"M{begin} {up.end}H{end}V{up.begin}H{begin}z")
        room, middle = int((end - begin) / 7), round((begin + end) / 2, 1)
        if stage and room >= min(len(stage), 6):
            words.append(Label(x=middle, y=up.end - 8, text=cut(stage, room), style="stage", anchor="middle"))
        begin = end
    return Trace(d="".join(parts) or "M0 0", style="band"), words


def _lines(check: Branch, most: int) -> list[str]:
    number, seconds, left = check.whole("number"), check.number("seconds"), check.whole("left")
    head = f"{'check' if number is None else f'check {number}'}: {cut(check.text('outcome') or '?', 40)}"
    sizes = f"{check.whole('nodes')} nodes tried" + (f" · {left} left" if left is not None else "")
    tail = listed([check.text("stage"), "" if seconds is None else duration(seconds)], " · ")
    texts = (cut(check.text(key), most) for key in ("description", "reason"))
    return [line for line in (head, *texts, sizes, tail) if line]
