"""What fails: the failure itself, the engines that ran, every output that was compared, and how the values differ."""

from __future__ import annotations

import math

from biopsy.findings.page.blocks import (
    Axis,
    Block,
    Bullets,
    Cell,
    Column,
    Columns,
    Drawing,
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
    code,
    code_of,
    facts,
    frame,
    number_of,
    plain_table,
    table,
    words_of,
)
from biopsy.findings.page.reading import Branch
from biopsy.findings.page.wording import cut, duration, figure, middle_cut, source_text, times
from biopsy.text import count

_MOST_OUTPUTS = 200
_MOST_LINES = 60


def section(report: Branch) -> Section | None:
    """The section on the failure; None where nothing was run or failed."""
    failure, run = report.part("failure"), report.part("run")
    blocks = [*(_failure(failure) if failure is not None else ()), *(_run(run) if run is not None else ())]
    return Section(name="failure", title="What fails" if failure else "What ran", blocks=blocks) if blocks else None


def _failure(failure: Branch) -> list[Block]:
    told = {key: failure.text(key) for key in ("reason", "engine", "stage", "kind", "signature")}
    if told["signature"] == told["reason"]:
        told["signature"] = None
    told["outputs"] = ", ".join(middle_cut(name, 100) for name in failure.texts("outputs")[:20])
    rounding = failure.part("rounding")
    if rounding is not None:
        ratio = rounding.number("times")
        measured = None if ratio is None else f"{times(ratio)} the error of plain float32"
        said = [rounding.text("verdict"), rounding.text("reason") or measured]
        told["rounding"] = cut(": ".join(text for text in said if text), 500)
    told["exit status"] = failure.text("status")
    blocks: list[Block] = [facts(told, 2000, ["signature", "outputs"])] if any(told.values()) else []
    if mismatches := failure.parts("mismatches"):
        columns: dict[str, Column] = {
            "output": code_of("output"),
            "kind": lambda entry: entry.text("kind") or "mismatch",
            "elements outside": lambda entry: _share(entry.number("wrong"), entry.number("elements")),
            "greatest error": number_of("error"),
            "times tolerance": number_of("times_tolerance", times),
            "worst element": _worst_element,
        }
        blocks.append(table("How the outputs differ", mismatches, columns, most=_MOST_OUTPUTS))
    for key, caption in (("message", "What the engine said"), ("output", "The end of what the check printed")):
        text = failure.text(key)
        if text and (key == "output" or text != failure.text("reason")):
            lines = text.splitlines()
            before = [f"[{len(lines) - _MOST_LINES} lines before]"] if len(lines) > _MOST_LINES else []
            shown = [cut(line, 1000) for line in lines[-_MOST_LINES:]]
            blocks.append(Listing(caption=caption, lines=[*before, *shown]))
    return blocks


def _worst_element(entry: Branch) -> str:
    where = entry.loose("index")
    return "" if where is None else f"{where}: {entry.loose('actual')} instead of {entry.loose('expected')}"


def _share(part: float | None, total: float | None) -> str:
    return "" if part is None else figure(part) + ("" if total is None else f" of {figure(total)}")


def _run(run: Branch) -> list[Block]:
    blocks: list[Block] = []
    if engines := run.parts("engines"):
        columns: dict[str, Column] = {
            "engine": lambda entry: cut(entry.text("label") or entry.text("name") or "?", 100),
            "version": words_of("version", 40),
            "time": _mean_time,
            "what happened": _end_of_engine,
            "remarks": lambda entry: cut("; ".join(entry.texts("remarks")), 400),
        }
        blocks.append(table("Engines", engines[:50], columns))
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
    items = [code(f"{middle_cut(each.text('output') or '', 80)}: {source_text(each)}") for each in origins]
    blocks += [Bullets(caption="Where these outputs come from", items=items)] if items else []
    blocks += _differences(run)
    for noise in run.parts("noise"):
        columns = {
            "output": code_of("name"),
            "verdict": _noise_verdict,
            "times plain float32": number_of("ratio", times),
            "why": words_of("reason", 300),
        }
        caption = f"Errors of {cut(noise.text('suspect') or '?', 60)} by those of plain float32"
        blocks.append(table(caption, noise.parts("outputs"), columns, most=_MOST_OUTPUTS))
    if not_finite := run.parts("not_finite"):
        keys = ["engine", "name", "iteration", "elements", "nan", "inf", "first", "value"]
        blocks.append(plain_table("Outputs that are not finite", keys, not_finite))
    return blocks


def _mean_time(engine: Branch) -> str:
    seconds = engine.numbers("seconds") if engine.loose("seconds") not in (None, "") else []
    known = [each for each in seconds if each == each]
    return duration(sum(known) / len(known)) if known else ""


def _end_of_engine(engine: Branch) -> Cell:
    failure = engine.part("failure")
    if failure is None:
        return Cell(text="ran", tone="good", sign="✓")
    said = [failure.text(key) for key in ("stage", "kind", "message")]
    return Cell(text=cut(" · ".join(text for text in said if text), 600), tone="bad", sign="✕")


def _output_row(comparison: Branch, iteration: Branch, output: Branch) -> list[Cell | str]:
    measured = output.part("measured") or Branch({})
    absolute = measured.part("absolute") or Branch({})
    sides = (comparison.text("actual") or "?", comparison.text("expected") or "?")
    return [
        code_of("name")(output),
        f"{cut(sides[0], 50)} against {cut(sides[1], 50)}",
        iteration.text("number") or "",
        _PASSES if output.flag("passed") else _FAILS,
        number_of("maximum")(absolute),
        _share(measured.number("mismatching"), measured.number("elements")),
        cut(output.text("reason") or "", 300),
    ]


_PASSES, _FAILS = Cell(text="passes", tone="good", sign="✓"), Cell(text="fails", tone="bad", sign="✕")


def _noise_verdict(output: Branch) -> Cell:
    verdict = output.text("verdict") or "unknown"
    tone, sign = _TONES.get(verdict, ("unsure", "?"))
    return Cell(text=cut(verdict, 40), tone=tone, sign=sign)


_TONES = {"rounding": ("good", "✓"), "bug": ("bad", "✕")}


# How the outputs differ: a histogram and a map of the differences, and the elements that are farthest off.

_MOST_WITH_PLOTS = 3
"""Outputs: each heat map may have 4,096 blocks."""
_MOST_BARS = 200
_MOST_BLOCKS = 64
_WIDTH, _HEIGHT = 620.0, 320.0
_LEFT = 66.0
"""Where the histogram's axis at the left stands: the bar of equal elements is between it and the axis below."""


def _differences(run: Branch) -> list[Block]:
    """Plots and tables of each output that has its differences told."""
    outputs = []
    for comparison in run.parts("comparisons"):
        iterations = comparison.parts("iterations")
        for iteration in iterations:
            number = iteration.whole("number")
            sample = f", sample {number}" if len(iterations) > 1 and number is not None else ""
            of = f"of {cut(comparison.text('actual') or '?', 60)}{sample}"
            outputs += [
                (f"'{middle_cut(output.text('name') or '', 60)}' {of}", output, differences)
                for output in iteration.parts("outputs")
                if (differences := output.part("differences")) is not None
            ]
    blocks: list[Block] = []
    columns = {key: _code_of_value(key) for key in ("index", "actual", "expected", "error")}
    for place, (title, output, differences) in enumerate(outputs[:_MOST_WITH_PLOTS]):
        drawn = (_histogram(place, title, output, differences), _heat(place, title, differences))
        if plots := [plot for plot in drawn if plot is not None]:
            blocks.append(Columns(blocks=plots))
        if worst := differences.parts("worst"):
            blocks.append(table(f"The worst elements: {title}", worst, columns, most=20))
    if len(outputs) > _MOST_WITH_PLOTS:
        left = count(len(outputs) - _MOST_WITH_PLOTS, "more output")
        blocks.append(Passage(text=f"How the elements of {left} differ is in the file of the report."))
    return blocks


def _code_of_value(key: str) -> Column:
    return lambda entry: code(cut(entry.loose(key) or "", 60))


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
    tolerances = output.part("tolerances")
    allowed = None if tolerances is None else tolerances.number("atol")
    if allowed is not None and not 0 < allowed < math.inf:
        allowed = None
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
    note, infinite = "both axes are logarithmic", histogram.whole("infinite")
    if infinite:
        note += f" · {count(infinite, 'element')} finite on one side only"
    return Drawing(
        name=f"histogram-{place}", title=f"How far the elements are off: {title}", note=note,
        width=_WIDTH, height=_HEIGHT, traces=traces, words=words,
        marks=[Mark(x=(left + right) / 2, y=up.at(max(n, 0.5)), lines=[text]) for left, right, n, text in drawn],
        legend=legend, pointing=Pointing(nearest="x"),
    )  # fmt: skip


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
