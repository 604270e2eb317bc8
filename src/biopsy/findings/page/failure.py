"""The sections on the failure and the run (engines, compared outputs, and how their values differ) and on the search
(plots of the nodes left by checks and by seconds, its passes, checks and result).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from biopsy.findings.document import Bullets, Cell, Columns, DocumentBlock, Grid, Listing, Passage
from biopsy.findings.page.drawing import Axis, Drawing, Label, Mark, Pointing, Sign, Trace, axes_frame
from biopsy.findings.page.reading import Branch
from biopsy.findings.page.sections import outcome_cell
from biopsy.findings.page.wording import (
    Column,
    code,
    code_of,
    cut,
    duration,
    facts,
    figure,
    listed,
    middle_cut,
    number_of,
    plain_table,
    source_text,
    table,
    times,
    worst_text,
)
from biopsy.text import count

_MOST_OUTPUTS = 200
_MOST_LINES = 60


def failure_blocks(failure: Branch) -> Iterator[DocumentBlock]:
    """How it fails: what the check reported, and how the outputs differ."""
    known = {key: failure.text(key) for key in ("reason", "engine", "stage", "kind", "signature")}
    if known["signature"] == known["reason"]:
        known["signature"] = ""
    known["outputs"] = listed(failure.texts("outputs"))
    rounding = failure.part("rounding")
    if rounding is not None:
        ratio = rounding.number("times")
        measured = "" if ratio is None else f"{times(ratio)} the rounding error of a plain run"
        known["rounding"] = listed([rounding.text("verdict"), rounding.text("reason") or measured], ": ", each=500)
    status = failure.text("status")
    known["exit status"] = "" if status.startswith("-") else status  # a signal, which the signature names
    yield from facts(known, ["signature", "outputs"])
    if mismatches := failure.parts("mismatches"):
        columns: dict[str, Column] = {
            "output": code_of("output"),
            "kind": lambda entry: cut(entry.text("kind") or "mismatch", 40),
            "elements outside": lambda entry: _share(entry.number("wrong"), entry.number("elements")),
            "greatest error": number_of("error"),
            "times tolerance": number_of("times_tolerance", times),
            "worst element": lambda entry: _form(entry) or (worst_text(entry) if "index" in entry else ""),
        }
        yield table("How the outputs differ", mismatches, columns, most=_MOST_OUTPUTS)
    for key, caption in (("message", "What the engine said"), ("output", "The end of what the check printed")):
        lines = failure.text(key).splitlines()
        if lines and (key == "output" or failure.text(key) != failure.text("reason")):
            before = [f"[{len(lines) - _MOST_LINES} lines before]"] if len(lines) > _MOST_LINES else []
            yield Listing(caption=caption, lines=[*before, *(cut(line, 1000) for line in lines[-_MOST_LINES:])])


def _form(mismatch: Branch) -> str:
    """A wrong type or shape, and the one that is expected."""
    form, expected = mismatch.text("form"), mismatch.text("expected_form")
    return cut(f"{form}, expected {expected}", 200) if form else ""


def _share(part: float | None, total: float | None) -> str:
    return "" if part is None else figure(part) + ("" if total is None else f" of {figure(total)}")


def run_blocks(run: Branch) -> Iterator[DocumentBlock]:
    """The engines that ran, the compared outputs, their noise, and values that are not finite."""
    if engines := run.parts("engines")[:50]:
        columns: dict[str, Column] = {
            "engine": lambda entry: cut(entry.text("label") or entry.text("name") or "?", 100),
            "version": "version",
            "time": _mean_time,
            "what happened": _end_of_engine,
            "remarks": lambda entry: listed(entry.texts("remarks"), "; ", each=400),
        }
        yield table("Engines", engines, columns)
    compared = [
        (comparison, iteration, output)
        for comparison in run.parts("comparisons")
        for iteration in comparison.parts("iterations")
        for output in iteration.parts("outputs")
    ]
    if compared:
        rows = [_output_row(*each) for each in compared[:_MOST_OUTPUTS]]
        head = ["output", "compared", "sample", "verdict", "greatest |difference|", "elements outside", "why"]
        left, folded = len(compared) - len(rows), len(rows) > 12
        yield Grid(caption="The outputs compared", head=head, rows=rows, folded=folded, left=left)
    if origins := run.parts("origins")[:_MOST_OUTPUTS]:
        items = [code(f"{middle_cut(each.text('output'))}: {source_text(each)}") for each in origins]
        yield Bullets(caption="Where these outputs come from", items=items)
    yield from _differences(run)
    for noise in run.parts("noise"):
        columns = {
            "output": code_of("name"),
            "verdict": lambda entry: outcome_cell(entry.text("verdict") or "unknown"),
            "error ÷ plain run's": number_of("ratio", times),
            "why": "reason",
        }
        caption = f"Errors of {cut(noise.text('suspect') or '?', 60)} by those of a plain run"
        yield table(caption, noise.parts("outputs"), columns, most=_MOST_OUTPUTS)
    if not_finite := run.parts("not_finite"):
        keys = ["engine", "name", "iteration", "elements", "nan", "inf", "first", "value"]
        yield plain_table("Outputs that are not finite", keys, not_finite)


def _mean_time(engine: Branch) -> str:
    seconds = engine.numbers("seconds") if engine.loose("seconds") else []
    known = [each for each in seconds if each == each]
    return duration(sum(known) / len(known)) if known else ""


def _end_of_engine(engine: Branch) -> Cell:
    failure = engine.part("failure")
    if failure is None:
        return outcome_cell("ran")
    return outcome_cell("failed", listed(map(failure.text, ("stage", "kind", "message")), " · ", each=600))


def _output_row(comparison: Branch, iteration: Branch, output: Branch) -> list[Cell | str]:
    measured = output.child("measured")
    sides = (cut(comparison.text(key) or "?", 50) for key in ("actual", "expected"))
    return [
        code(middle_cut(output.text("name"))),
        " against ".join(sides),
        iteration.text("number"),
        outcome_cell("passes" if output.flag("passed") else "fails"),
        number_of("maximum")(measured.child("absolute")),
        _share(measured.number("mismatching"), measured.number("elements")),
        cut(output.text("reason"), 300),
    ]


_MOST_WITH_PLOTS = 3
"""The most outputs with plots, since each heat map may have 4,096 blocks."""
_MOST_BARS = 200
_MOST_BLOCKS = 64
_WIDTH, _HEIGHT = 620.0, 320.0
_LEFT = 66.0
"""The pixel of the histogram's left axis; the bar of equal elements is between it and the axis below."""


def _differences(run: Branch) -> Iterator[DocumentBlock]:
    """Plots and tables of each output whose differences the report has."""
    outputs = [
        (comparison.text("actual") or "?", len(comparison.parts("iterations")), iteration.whole("number"), output, part)
        for comparison in run.parts("comparisons")
        for iteration in comparison.parts("iterations")
        for output in iteration.parts("outputs")
        if (part := output.part("differences")) is not None
    ]
    for place, (actual, samples, number, output, differences) in enumerate(outputs[:_MOST_WITH_PLOTS]):
        sample = f", sample {number}" if samples > 1 and number is not None else ""
        title = f"'{middle_cut(output.text('name'), 60)}' of {cut(actual, 60)}{sample}"
        drawn = (_histogram(place, title, output, differences), _heat(place, title, differences))
        if plots := [[plot] for plot in drawn if plot is not None]:
            yield Columns(columns=plots)
        if worst := differences.parts("worst"):
            columns = {key: code_of(key) for key in ("index", "actual", "expected", "error")}
            yield table(f"The worst elements: {title}", worst, columns, most=20)
    if len(outputs) > _MOST_WITH_PLOTS:
        left = count(len(outputs) - _MOST_WITH_PLOTS, "more output")
        yield Passage(text=f"How the elements of {left} differ is in the file of the report.")


def _histogram(place: int, title: str, output: Branch, differences: Branch) -> Drawing | None:
    histogram = differences.child("histogram")
    edges, counts = histogram.numbers("edges"), histogram.wholes("counts")[:_MOST_BARS]
    bars = [(low, high, n) for low, high, n in zip(edges, edges[1:], counts, strict=False) if 0 < low < high < math.inf]
    zero, infinite = histogram.whole("zero") or 0, histogram.whole("infinite")
    if not bars:
        return None
    across = Axis(low=bars[0][0], high=bars[-1][1], begin=140.0, end=606.0, logarithmic=True)
    most = max([*(n for *_, n in bars), zero, 2])
    up = Axis(low=0.5, high=most * 1.3, begin=264.0, end=44.0, logarithmic=True)
    traces, words = axes_frame(across, up, ("|actual - expected|", "elements"), _LEFT)
    words.append(Label(x=88, y=up.begin + 8, text="0", style="below", anchor="middle"))
    allowed = output.child("tolerances").number("atol")
    limit = None if allowed is None or not 0 < allowed < math.inf else across.at(allowed)
    columns = [(74.0, 102.0, zero, f"{zero} elements are equal")]
    columns += [
        (across.at(low) + 0.5, across.at(high) - 0.5, n, f"{n} elements differ by {figure(low)} to {figure(high)}")
        for low, high, n in bars
    ]
    paths: dict[str, list[str]] = {"bar": [], "far-bar": []}
    for left, right, n, _ in columns:
        if n > 0:
            style = "far-bar" if limit is not None and left > 120 and left >= limit - 1 else "bar"
            paths[style].append(f"M{left} {up.begin}V{up.at(n)}H{right}V{up.begin}z")
    traces += Trace.each(paths)
    legend = []
    if allowed is not None and across.low < allowed < across.high:
        traces.append(Trace(d=f"M{limit} {up.begin}V{up.end}", style="limit"))
        legend = [Sign(d="M10 0v14", style="limit", text=f"atol {figure(allowed)}")]
        legend.append(Sign(d="M4 2h12v10h-12z", style="far-bar", text="beyond it, unless rtol allows more"))
    beside = f"{count(infinite, 'element')} finite on one side only" if infinite else ""
    return Drawing(
        name=f"histogram-{place}", title=f"How far the elements are off: {title}",
        note=listed(["both axes are logarithmic", beside], " · "),
        width=_WIDTH, height=_HEIGHT, traces=traces, words=words,
        marks=[Mark(x=(left + right) / 2, y=up.at(max(n, 0.5)), lines=[text]) for left, right, n, text in columns],
        legend=legend, pointing=Pointing(nearest="x"),
    )  # fmt: skip


_LEVELS = 5
"""Sizes of the squares of a heat map, which differ by factors of ten."""


def _heat(place: int, title: str, differences: Branch) -> Drawing | None:
    """A heat map: squares that are larger and darker the larger the difference is, crosses for NaN and infinity."""
    heat = differences.child("heat")
    rows = [row[:_MOST_BLOCKS] for row in heat.rows("rows", float)[:_MOST_BLOCKS]]
    across, down = max((len(row) for row in rows), default=0), len(rows)
    most = max((abs(value) for row in rows for value in row if math.isfinite(value)), default=0.0)
    if not across:
        return None
    cell = max(4, min(24, 560 // across, 300 // down))
    paths: dict[str, list[str]] = {}
    marks = []
    for row, values in enumerate(rows):
        for column, value in enumerate(values):
            x, y = 46 + (column + 0.5) * cell, 20 + (row + 0.5) * cell
            marks.append(Mark(x=x, y=y, lines=[f"row {row}, column {column}: at most {figure(value)}"]))
            if not math.isfinite(value):
                half, side = cell * 0.4, cell * 0.8
                cross = f"M{x - half:g} {y - half:g}l{side:g} {side:g}m0 -{side:g}l-{side:g} {side:g}"
                paths.setdefault("heat-no-number", []).append(cross)
            elif value and most:
                level = max(1, _LEVELS + math.ceil(math.log10(abs(value) / most) - 1e-9))
                side = cell * (0.16 + 0.8 * level / _LEVELS)
                square = f"M{x - side / 2:g} {y - side / 2:g}h{side:g}v{side:g}h-{side:g}z"
                paths.setdefault(f"heat-{level}", []).append(square)
    legend = [
        Sign(d=f"M{8.5 - level:g} {5.5 - level:g}h{3 + 2 * level}v{3 + 2 * level}h-{3 + 2 * level}z",
             style=f"heat-{level}", text=f"up to {figure(most * 10.0 ** (level - _LEVELS))}")
        for level in range(_LEVELS, 0, -1) if f"heat-{level}" in paths
    ]  # fmt: skip
    if "heat-no-number" in paths:
        legend.append(Sign(d="M6 3l8 8m0 -8l-8 8", style="heat-no-number", text="not a number, or infinite"))
    border = Trace(d=f"M46 20h{across * cell}v{down * cell}h-{across * cell}z", style="heat-frame")
    return Drawing(
        name=f"heat-{place}", title=f"Where they are off: {title}",
        note=listed((f"{key} {heat.loose(key)}" for key in ("shape", "axes") if heat.loose(key)), " · "),
        width=_WIDTH, height=20 + down * cell + 26, traces=[border, *Trace.each(dict(sorted(paths.items())))],
        words=[Label(x=46, y=20 + down * cell + 16, text=f"{across} columns →", style="axis"),
               Label(x=40, y=30, text="↓", style="axis", anchor="end")],
        marks=marks, legend=legend, pointing=Pointing(stride=across),
    )  # fmt: skip


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
