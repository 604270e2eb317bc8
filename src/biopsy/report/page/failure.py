"""What fails: the failure itself, the engines that ran, and every output that was compared."""

from __future__ import annotations

from biopsy.report.page.blocks import Block, Bullets, Cell, Facts, Grid, Listing, Rows, Section
from biopsy.report.page.branch import Branch
from biopsy.report.page.differences import blocks_of_runs
from biopsy.report.page.figures import cut, duration, figure, middle_cut, times
from biopsy.report.page.grids import plain_grid
from biopsy.report.page.tensor_words import source_text

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
