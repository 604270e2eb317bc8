"""What fails: the failure itself, the engines that ran, every output that was compared, and how the values differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from biopsy.findings.page.blocks import (
    Axis,
    Block,
    Bullets,
    Cell,
    Columns,
    Drawing,
    Facts,
    Grid,
    Listing,
    Mark,
    Passage,
    Pointing,
    Rows,
    Section,
    Sign,
    Trace,
    Words,
    frame,
    plain_grid,
)
from biopsy.findings.page.reading import Branch
from biopsy.findings.page.wording import cut, duration, figure, middle_cut, source_text, times
from biopsy.text import count

_MOST_OUTPUTS = 200
_MOST_LINES = 60


def section(report: Branch) -> Section | None:
    """The section on the failure; None where nothing was run or failed."""
    failure, run = report.part("failure"), report.part("run")
    blocks: list[Block] = []
    if failure is not None:
        blocks += _failure(failure)
    if run is not None:
        blocks += _run(run)
    return Section(name="failure", title="What fails" if failure else "What ran", blocks=blocks) if blocks else None


def _failure(failure: Branch) -> list[Block]:
    rows: list[tuple[str, Cell | str]] = []
    for key in ("reason", "engine", "stage", "kind", "signature"):
        text = failure.text(key)
        if text and not (key == "signature" and text == failure.text("reason")):
            rows.append((key, Cell(text=cut(text, 2000), code=key == "signature")))
    outputs = failure.texts("outputs")
    if outputs:
        rows.append(("outputs", Cell(text=", ".join(middle_cut(name, 100) for name in outputs[:20]), code=True)))
    rounding = failure.part("rounding")
    if rounding is not None:
        ratio = rounding.number("times")
        measured = None if ratio is None else f"{times(ratio)} the error of plain float32"
        told = [rounding.text("verdict"), rounding.text("reason") or measured]
        rows.append(("rounding", cut(": ".join(text for text in told if text), 500)))
    status = failure.text("status")
    if status is not None:
        rows.append(("exit status", status))
    blocks: list[Block] = [Facts(rows=rows)] if rows else []
    mismatches = failure.parts("mismatches")
    if mismatches:
        blocks.append(_grid_of_mismatches(mismatches))
    for key, caption in (("message", "What the engine said"), ("output", "The end of what the check printed")):
        text = failure.text(key)
        if text and (key == "output" or text != failure.text("reason")):
            blocks.append(Listing(caption=caption, lines=_last_lines(text)))
    return blocks


def _last_lines(text: str) -> list[str]:
    """The end of an output, a line each."""
    lines = text.splitlines()
    left = len(lines) - _MOST_LINES
    shown = [cut(line, 1000) for line in lines[-_MOST_LINES:]]
    return [f"[{left} lines before]", *shown] if left > 0 else shown


def _grid_of_mismatches(mismatches: list[Branch]) -> Grid:
    rows: Rows = []
    for each in mismatches[:_MOST_OUTPUTS]:
        wrong, elements, error, ratio = (each.number(key) for key in ("wrong", "elements", "error", "times_tolerance"))
        where = each.loose("index")
        values = (each.loose("actual"), each.loose("expected"))
        rows.append(
            [
                Cell(text=middle_cut(each.text("output") or "", 80), code=True),
                each.text("kind") or "mismatch",
                "" if wrong is None else figure(wrong) + ("" if elements is None else f" of {figure(elements)}"),
                "" if error is None else figure(error),
                "" if ratio is None else times(ratio),
                "" if where is None else f"{where}: {values[0]} instead of {values[1]}",
            ]
        )
    head = ["output", "kind", "elements outside", "greatest error", "times tolerance", "worst element"]
    return Grid(caption="How the outputs differ", head=head, rows=rows, left=len(mismatches) - len(rows))


def _run(run: Branch) -> list[Block]:
    blocks: list[Block] = []
    engines = run.parts("engines")
    if engines:
        blocks.append(_grid_of_engines(engines))
    rows: Rows = []
    total = 0
    for comparison in run.parts("comparisons"):
        for iteration in comparison.parts("iterations"):
            for output in iteration.parts("outputs"):
                total += 1
                if len(rows) < _MOST_OUTPUTS:
                    rows.append(_output_row(comparison, iteration, output))
    if rows:
        head = ["output", "compared", "sample", "verdict", "greatest |difference|", "elements outside", "why"]
        blocks.append(
            Grid(caption="The outputs compared", head=head, rows=rows, folded=len(rows) > 12, left=total - len(rows))
        )
    origins = run.parts("origins")[:_MOST_OUTPUTS]
    items = [
        Cell(text=f"{middle_cut(each.text('output') or '', 80)}: {source_text(each)}", code=True) for each in origins
    ]
    blocks += [Bullets(caption="Where these outputs come from", items=items)] if items else []
    blocks += blocks_of_runs(run)
    for noise in run.parts("noise"):
        blocks.append(_grid_of_noise(noise))
    not_finite = run.parts("not_finite")
    if not_finite:
        keys = ["engine", "name", "iteration", "elements", "nan", "inf", "first", "value"]
        blocks.append(plain_grid("Outputs that are not finite", keys, not_finite))
    return blocks


def _grid_of_engines(engines: list[Branch]) -> Grid:
    rows: Rows = []
    for engine in engines[:50]:
        failure = engine.part("failure")
        told = Cell(text="ran", tone="good", sign="✓")
        if failure is not None:
            said = [failure.text(key) for key in ("stage", "kind", "message")]
            told = Cell(text=cut(" · ".join(text for text in said if text), 600), tone="bad", sign="✕")
        seconds = engine.numbers("seconds") if engine.loose("seconds") not in (None, "") else []
        known = [each for each in seconds if each == each]
        rows.append(
            [
                cut(engine.text("label") or engine.text("name") or "?", 100),
                cut(engine.text("version") or "", 40),
                duration(sum(known) / len(known)) if known else "",
                told,
                cut("; ".join(engine.texts("remarks")), 400),
            ]
        )
    return Grid(caption="Engines", head=["engine", "version", "time", "what happened", "remarks"], rows=rows)


def _output_row(comparison: Branch, iteration: Branch, output: Branch) -> list[Cell | str]:
    measured, passed = output.part("measured"), output.flag("passed")
    greatest, outside = None, None
    if measured is not None:
        absolute = measured.part("absolute")
        greatest = None if absolute is None else absolute.number("maximum")
        outside = (measured.number("mismatching"), measured.number("elements"))
    sides = (comparison.text("actual") or "?", comparison.text("expected") or "?")
    return [
        Cell(text=middle_cut(output.text("name") or "", 80), code=True),
        f"{cut(sides[0], 50)} against {cut(sides[1], 50)}",
        iteration.text("number") or "",
        Cell(text="passes", tone="good", sign="✓") if passed else Cell(text="fails", tone="bad", sign="✕"),
        "" if greatest is None else figure(greatest),
        "" if outside is None or outside[0] is None else figure(outside[0]) + _of(outside[1]),
        cut(output.text("reason") or "", 300),
    ]


def _of(total: float | None) -> str:
    return "" if total is None else f" of {figure(total)}"


_TONES = {"rounding": ("good", "✓"), "bug": ("bad", "✕")}


def _grid_of_noise(noise: Branch) -> Grid:
    rows: Rows = []
    outputs = noise.parts("outputs")
    for output in outputs[:_MOST_OUTPUTS]:
        verdict, ratio = output.text("verdict") or "unknown", output.number("ratio")
        tone, sign = _TONES.get(verdict, ("unsure", "?"))
        rows.append(
            [
                Cell(text=middle_cut(output.text("name") or "", 80), code=True),
                Cell(text=cut(verdict, 40), tone=tone, sign=sign),
                "" if ratio is None else times(ratio),
                cut(output.text("reason") or "", 300),
            ]
        )
    caption = f"Errors of {cut(noise.text('suspect') or '?', 60)} by those of plain float32"
    head = ["output", "verdict", "times plain float32", "why"]
    return Grid(caption=caption, head=head, rows=rows, left=len(outputs) - len(rows))


# How the outputs differ: a histogram and a map of the differences, and the elements that are farthest off.

_DIFFERENCES_MOST_OUTPUTS = 3
"""With plots: each heat map may have 4,096 blocks."""
_MOST_BARS = 200
_MOST_BLOCKS = 64
_WIDTH, _HEIGHT = 620.0, 320.0
_LEFT = 66.0
"""Where the histogram's axis at the left stands: the bar of equal elements is between it and the axis below."""


def blocks_of_runs(run: Branch) -> list[Block]:
    """Plots and tables of each output that has its differences told."""
    found = list(_outputs(run))
    blocks: list[Block] = []
    for place, (title, output) in enumerate(found[:_DIFFERENCES_MOST_OUTPUTS]):
        differences = output.part("differences")
        assert differences is not None
        plots = [
            plot for plot in (_histogram(place, title, output, differences), _heat(place, title, differences)) if plot
        ]
        if plots:
            blocks.append(Columns(blocks=plots))
        worst = differences.parts("worst")
        if worst:
            blocks.append(_grid_of_worst(title, worst))
    if len(found) > _DIFFERENCES_MOST_OUTPUTS:
        left = count(len(found) - _DIFFERENCES_MOST_OUTPUTS, "more output")
        blocks.append(Passage(text=f"How the elements of {left} differ is in the file of the report."))
    return blocks


def _outputs(run: Branch) -> Iterator[tuple[str, Branch]]:
    for comparison in run.parts("comparisons"):
        iterations = comparison.parts("iterations")
        for iteration in iterations:
            for output in iteration.parts("outputs"):
                if "differences" in output:
                    name = middle_cut(output.text("name") or "", 60)
                    number = iteration.whole("number")
                    sample = f", sample {number}" if len(iterations) > 1 and number is not None else ""
                    yield f"'{name}' of {cut(comparison.text('actual') or '?', 60)}{sample}", output


def _histogram(place: int, title: str, output: Branch, differences: Branch) -> Drawing | None:
    histogram = differences.part("histogram")
    if histogram is None:
        return None
    edges, counts = histogram.numbers("edges"), histogram.wholes("counts")[:_MOST_BARS]
    bars = [(low, high, n) for low, high, n in zip(edges, edges[1:], counts, strict=False) if 0 < low < high < math.inf]
    zero = histogram.whole("zero") or 0
    if not bars:
        return None
    across = Axis(low=bars[0][0], high=bars[-1][1], begin=140.0, end=606.0, logarithmic=True)
    most = max([*(n for *_, n in bars), zero, 1])
    up = Axis(low=0.5, high=max(most, 2) * 1.3, begin=264.0, end=44.0, logarithmic=True)
    traces, words = frame(across, up, ("|actual - expected|", "elements"), (across.ticks(5), up.ticks(5)), _LEFT)
    drawn = [(74.0, 102.0, zero, f"{zero} elements are equal")]
    drawn += [
        (across.at(low) + 0.5, across.at(high) - 0.5, n, f"{n} elements differ by {figure(low)} to {figure(high)}")
        for low, high, n in bars
    ]
    words.append(Words(x=88, y=up.begin + 8, text="0", style="below", anchor="middle"))
    allowed = _allowed(output)
    inside: list[str] = []
    outside: list[str] = []
    for left, right, n, _ in drawn:
        if n > 0:
            far = allowed is not None and left > 120 and left >= across.at(allowed) - 1
            (outside if far else inside).append(f"M{left} {up.begin}V{up.at(n)}H{right}V{up.begin}z")
    traces += [Trace(d="".join(parts), style=style, count=len(parts))
               for parts, style in ((inside, "bar"), (outside, "far-bar")) if parts]  # fmt: skip
    legend = []
    if allowed is not None and across.low < allowed < across.high:
        at = across.at(allowed)
        traces.append(Trace(d=f"M{at} {up.begin}V{up.end}", style="limit"))
        legend = [Sign(d="M10 0v14", style="limit", text=f"atol {figure(allowed)}")]
        legend.append(Sign(d="M4 2h12v10h-12z", style="far-bar", text="beyond it, unless rtol allows more"))
    return Drawing(
        name=f"histogram-{place}", title=f"How far the elements are off: {title}", note=_note(histogram),
        width=_WIDTH, height=_HEIGHT, traces=traces, words=words,
        marks=[Mark(x=(left + right) / 2, y=up.at(max(n, 0.5)), lines=[text]) for left, right, n, text in drawn],
        legend=legend, pointing=Pointing(nearest="x"),
    )  # fmt: skip


def _note(histogram: Branch) -> str:
    infinite = histogram.whole("infinite")
    said = "both axes are logarithmic"
    return f"{said} · {count(infinite, 'element')} finite on one side only" if infinite else said


def _allowed(output: Branch) -> float | None:
    tolerances = output.part("tolerances")
    atol = None if tolerances is None else tolerances.number("atol")
    return atol if atol is not None and 0 < atol < math.inf else None


_LEVELS = 5
"""Sizes of the squares of a heat map, each a factor of ten below the next."""


def _heat(place: int, title: str, differences: Branch) -> Drawing | None:
    heat = differences.part("heat")
    if heat is None:
        return None
    rows = [row[:_MOST_BLOCKS] for row in heat.rows_of_numbers("rows")[:_MOST_BLOCKS]]
    across, down = max((len(row) for row in rows), default=0), len(rows)
    most = max((abs(value) for row in rows for value in row if math.isfinite(value)), default=0.0)
    if not across:
        return None
    cell = max(4, min(24, 560 // across, 300 // down))
    parts: dict[str, list[str]] = {}
    marks = []
    for y, row in enumerate(rows):
        for x, value in enumerate(row):
            middle = (46 + (x + 0.5) * cell, 20 + (y + 0.5) * cell)
            marks.append(Mark(x=middle[0], y=middle[1], lines=[f"row {y}, column {x}: at most {figure(value)}"]))
            drawn = _square(middle, cell, value, most)
            if drawn is not None:
                parts.setdefault(drawn[0], []).append(drawn[1])
    traces = [Trace(d=f"M46 20h{across * cell}v{down * cell}h-{across * cell}z", style="heat-frame")]
    traces += [Trace(d="".join(d), style=style, count=len(d)) for style, d in sorted(parts.items())]
    shape, axes = heat.loose("shape"), heat.loose("axes")
    note = " · ".join(text for text in (f"shape {shape}" if shape else "", f"axes {axes}" if axes else "") if text)
    words = [Words(x=46, y=20 + down * cell + 16, text=f"{across} columns →", style="axis"),
             Words(x=40, y=30, text="↓", style="axis", anchor="end")]  # fmt: skip
    return Drawing(
        name=f"heat-{place}", title=f"Where they are off: {title}", note=note,
        width=_WIDTH, height=20 + down * cell + 26,
        traces=traces,
        words=words, marks=marks, legend=_heat_legend(parts, most), pointing=Pointing(stride=across),
    )  # fmt: skip


def _square(middle: tuple[float, float], cell: float, value: float, most: float) -> tuple[str, str] | None:
    """The style and the path of a block: larger and darker the greater its difference; a cross if it is no number."""
    x, y = middle
    if not math.isfinite(value):
        half = cell * 0.4
        return (
            "heat-no-number",
            f"M{x - half:g} {y - half:g}l{2 * half:g} {2 * half:g}m0 -{2 * half:g}l-{2 * half:g} {2 * half:g}",
        )
    if value == 0 or most == 0:
        return None
    level = max(1, _LEVELS + math.ceil(math.log10(abs(value) / most) - 1e-9))
    side = cell * (0.16 + 0.8 * level / _LEVELS)
    return f"heat-{level}", f"M{x - side / 2:g} {y - side / 2:g}h{side:g}v{side:g}h-{side:g}z"


def _heat_legend(parts: dict[str, list[str]], most: float) -> list[Sign]:
    signs = []
    for level in range(_LEVELS, 0, -1):
        if f"heat-{level}" in parts:
            side = 3 + 2 * level
            d = f"M{10 - side / 2:g} {7 - side / 2:g}h{side}v{side}h-{side}z"
            text = f"up to {figure(most * 10.0 ** (level - _LEVELS))}"
            signs.append(Sign(d=d, style=f"heat-{level}", text=text))
    if "heat-no-number" in parts:
        signs.append(Sign(d="M6 3l8 8m0 -8l-8 8", style="heat-no-number", text="not a number, or infinite"))
    return signs


def _grid_of_worst(title: str, worst: Sequence[Branch]) -> Grid:
    rows: Rows = []
    for element in worst[:20]:
        told = [element.loose(key) or "" for key in ("index", "actual", "expected", "error")]
        rows.append([Cell(text=cut(text, 60), code=True) for text in told])
    return Grid(
        caption=f"The worst elements: {title}",
        head=["index", "actual", "expected", "error"],
        rows=rows,
        left=len(worst) - len(rows),
    )
