"""What the other questions have found: settings, precision, what may vary, other failures, and what makes the model
right.
"""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.findings.page.blocks import (
    MOST_ROWS,
    AnsweredQuestion,
    Block,
    Bullets,
    Cell,
    Columns,
    Facts,
    Grid,
    Listing,
    Passage,
    Questions,
    Rows,
    Section,
    plain_grid,
)
from biopsy.findings.page.reading import Branch
from biopsy.findings.page.wording import cut, duration, middle_cut, source_text
from biopsy.text import count

_OUTCOMES = {
    "done": ("plain", "✓"),
    "skipped": ("unsure", "-"),
    "stopped": ("unsure", "■"),
    "failed": ("bad", "✕"),
}
_MOST_KNOWN = 5
_TESTS = {
    "passed": ("good", "✓"),
    "passes": ("good", "✓"),
    "reproduced": ("bad", "✕"),
    "fails": ("bad", "✕"),
    "another failure": ("bad", "△"),
}


def steps(report: Branch) -> Section | None:
    """The questions that ``diagnose`` asked; None where it was another command."""
    told = report.parts("steps")
    questions = []
    for step in told[:50]:
        tone, sign = _OUTCOMES.get(step.text("outcome") or "", ("unsure", "?"))
        checks, seconds = step.whole("checks"), step.number("seconds")
        figures = [count(checks, "check")] if checks else []
        figures += [duration(seconds)] if seconds else []
        answer = step.text("answer") or step.text("outcome") or ""
        questions.append(
            AnsweredQuestion(
                name=cut(step.text("name") or "", 60),
                question=cut(step.text("question") or "", 300),
                answer=Cell(text=cut(answer.replace(" -> ", " → "), 600), tone=tone, sign=sign),
                figures=" · ".join(figures),
                evidence=step.text("evidence"),
            )
        )
    return Section(name="steps", title="What was asked", blocks=[Questions(questions=questions)]) if questions else None


def settings(report: Branch) -> Section | None:
    """Which settings and optimizers were tried, and which switch the failure off."""
    found = report.part("settings")
    if found is None:
        return None
    blocks: list[Block] = []
    engine, switches, tried = found.text("engine"), found.parts("switches"), found.parts("tried")
    said = f" of {cut(engine, 60)}" if engine else ""
    if switches:
        items = [Cell(text=_switch(each), tone="good", sign="✓") for each in switches[:50]]
        blocks.append(Bullets(caption=f"The smallest changes{said} with which it passes", items=items))
    elif tried:
        blocks.append(Passage(text=f"No setting{said} that was tried makes it pass."))
    if found.flag("complete") is False:
        blocks.append(Passage(text="Not all settings were tried."))
    optimizers = found.texts("optimizers_that_changed_the_model")
    if optimizers:
        shown = ", ".join(cut(each, 80) for each in optimizers[:MOST_ROWS])
        blocks.append(Passage(text=f"Optimizers that changed the model: {shown}"))
    if tried:
        blocks.append(_grid_of_settings(tried))
    return Section(name="settings", title="Settings and optimizers", blocks=blocks) if blocks else None


def transformation(report: Branch) -> Section | None:
    """Both models of the piece, before a tool and after it, and the passes that do it."""
    found = report.part("transformation")
    if found is None:
        return None
    tool = " ".join(cut(each, 60) for each in (found.text("tool"), found.text("release")) if each)
    piece, passes = found.part("piece"), found.part("passes")
    blocks: list[Block] = []
    if passes is not None:
        alone, without = passes.texts("alone"), passes.text("command") or passes.text("python")
        rows: list[tuple[str, Cell | str]] = []
        rows += [("does it alone", ", ".join(cut(each, 80) for each in alone[:MOST_ROWS]))] if alone else []
        rows += [("left out by", Cell(text=cut(without, 400), code=True))] if without else []
        blocks += [Facts(rows=rows)] if rows else []
    if piece is not None:
        before, after = (piece.texts(key)[:200] for key in ("text_before", "text_after"))
        shown = after or ["it writes no model"]
        sides = (("before", before), (f"after {tool}", shown))
        blocks.append(Columns(blocks=[Listing(caption=caption, lines=lines) for caption, lines in sides]))
    return Section(name="transformation", title="Before and after", blocks=blocks) if blocks else None


def _switch(switch: Branch) -> str:
    change, text = cut(switch.text("change") or "", 300), cut(switch.text("text") or "", 300)
    unsure = " (not confirmed in fresh processes)" if switch.flag("verified") is False else ""
    return ": ".join(said for said in (change, f"it passes {text}" if text else "") if said) + unsure


def _grid_of_settings(tried: Sequence[Branch]) -> Grid:
    rows: Rows = []
    for each in tried[:MOST_ROWS]:
        outcome = each.text("outcome") or "?"
        tone, sign = _TESTS.get(outcome, ("unsure", "?"))
        rows.append(
            [
                Cell(text=cut(each.loose("change") or "", 200), code=True),
                Cell(text=cut(outcome, 40), tone=tone, sign=sign),
                cut(each.text("reason") or "", 200),
            ]
        )
    return Grid(
        caption="What was tried",
        head=["change", "outcome", "reason"],
        rows=rows,
        folded=len(rows) > 12,
        left=len(tried) - len(rows),
    )


def releases(report: Branch) -> Section | None:
    """Which release of a package broke the model, or mended it, and what each answered."""
    found = report.part("releases")
    if found is None:
        return None
    blocks: list[Block] = []
    borders, package = found.parts("borders"), cut(found.text("package") or "", 60)
    if borders:
        items = [_border(each) for each in borders[:50]]
        blocks.append(Bullets(caption=f"Releases of {package} between which it changes", items=items))
    elif text := found.text("text"):
        blocks.append(Passage(text=f"{cut(text, 300)}."))
    if yardstick := found.text("yardstick"):
        blocks.append(Passage(text=f"As installed in every check: {cut(yardstick, 200)}."))
    if doubt := found.text("doubt"):
        blocks.append(Passage(text=cut(doubt, 400)))
    if tried := found.parts("tried"):
        blocks.append(_grid_of_releases(tried))
    return Section(name="releases", title="Releases", blocks=blocks) if blocks else None


def _border(border: Branch) -> Cell:
    unsure = " (not confirmed when asked again)" if border.flag("verified") is False else ""
    notes = f" Notes: {cut(border.text('notes') or '', 200)}" if border.text("notes") else ""
    tone, sign = ("bad", "✕") if border.text("change") == "broke" else ("good", "✓")
    return Cell(text=f"{cut(border.text('text') or '?', 300)}{unsure}.{notes}", tone=tone, sign=sign)


def _grid_of_releases(tried: Sequence[Branch]) -> Grid:
    rows: Rows = []
    for each in tried[:MOST_ROWS]:
        outcome = each.text("outcome") or "?"
        tone, sign = _TESTS.get(outcome, ("unsure", "?"))
        added = ", ".join(cut(one, 60) for one in each.texts("added")[:5])
        rows.append(
            [
                Cell(text=cut(each.text("version") or "?", 60), code=True),
                cut(each.text("date") or "", 20),
                Cell(text=cut(outcome, 40), tone=tone, sign=sign),
                added,
                cut(each.text("reason") or "", 200),
            ]
        )
    return Grid(
        caption="What was asked",
        head=["release", "date", "outcome", "with", "reason"],
        rows=rows,
        folded=len(rows) > 20,
        left=len(tried) - len(rows),
    )


def precision(report: Branch) -> Section | None:
    """Which layers must stay in high precision."""
    found = report.part("precision")
    if found is None:
        return None
    low, high, form = (found.text(key) for key in ("low", "high", "form"))
    total, chosen = found.whole("layers"), found.parts("high_layers")
    rows: list[tuple[str, Cell | str]] = []
    if low or high:
        rows.append(("precisions", f"{low or '?'} below {high or '?'}{f', {form}' if form else ''}"))
    if total is not None:
        rows.append(("layers that must stay high", f"{len(chosen)} of {total}"))
    minimal = found.flag("one_minimal")
    if minimal is not None:
        rows.append(("smallest set", "lowering any one of them fails" if minimal else "not shown to be one"))
    blocks: list[Block] = [Facts(rows=rows)] if rows else []
    if chosen:
        blocks.append(_grid_of_high_layers(chosen))
    weights = found.parts("damaged_weights")
    if weights:
        keys = ["name", "count", "saturated", "vanished"]
        blocks.append(plain_grid("Weights that low precision damages", keys, weights))
    return Section(name="precision", title="Precision", blocks=blocks) if blocks else None


def _grid_of_high_layers(chosen: Sequence[Branch]) -> Grid:
    rows: Rows = [
        [
            *(Cell(text=middle_cut(each.text(key) or "", 80), code=True) for key in ("name", "op", "output")),
            Cell(text=source_text(each), code=True),
        ]
        for each in chosen[:MOST_ROWS]
    ]
    head = ["name", "op", "output", "made at"]
    return Grid(caption="Layers in high precision", head=head, rows=rows, left=len(chosen) - len(rows))


def variation(report: Branch) -> Section | None:
    """What may be anything while it still fails, and what must be as it is."""
    found = report.part("variation")
    if found is None:
        return None
    sentence = found.text("sentence")
    blocks: list[Block] = [Passage(text=_as_sentence(cut(sentence, 1000)), tone="strong")] if sentence else []
    lists: list[Block] = []
    for key, caption, sign in (("free", "What may be anything", "○"), ("fixed", "What it needs", "●")):
        items: list[Cell | str] = []
        for each in found.parts(key)[:MOST_ROWS]:
            name = middle_cut(each.text("name") or "", 80)
            items.append(
                Cell(text=f"{each.text('what') or ''} {name}: {cut(each.text('text') or '', 300)}".strip(), sign=sign)
            )
        if items:
            lists.append(Bullets(caption=caption, items=items))
    if lists:
        blocks.append(Columns(blocks=lists))
    if found.flag("complete") is False:
        blocks.append(Passage(text="The search for what may vary was not finished."))
    return Section(name="variation", title="What may vary", blocks=blocks) if blocks else None


def known(report: Branch) -> Section | None:
    """Which known bugs the piece looks like."""
    found = report.part("known")
    if found is None:
        return None
    sentence, digest = found.text("sentence"), found.text("fingerprint")
    matches = found.parts("matches")[:_MOST_KNOWN]
    blocks: list[Block] = []
    if sentence and sentence not in [match.text("sentence") for match in matches]:
        blocks.append(Passage(text=_as_sentence(cut(f"it is {sentence}", 600)), tone="strong"))
    for match in matches:
        rows: list[tuple[str, Cell | str]] = [
            (cut(each.text("about") or "", 40), cut(each.text("text") or "", 600))
            for each in match.parts("evidence")[:MOST_ROWS]
        ]
        told = _as_sentence(cut(f"it {match.text('sentence') or '?'}", 600))
        blocks += [Passage(text=told, tone="strong" if match.flag("looks_like_it") else "plain"), Facts(rows=rows)]
    lines = (found.text("graph") or "").splitlines()
    if lines:
        caption = f"The pattern of the piece, {cut(digest or '?', 60)}"
        blocks.append(Listing(caption=caption, lines=[cut(line, 300) for line in lines[:40]]))
    return Section(name="known", title="Known failures", blocks=blocks) if blocks else None


def _as_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def others(report: Branch) -> Section | None:
    """Other failures met on the way."""
    found = report.parts("other_failures")
    rows: Rows = [
        [
            cut(each.text("reason") or "", 300),
            each.text("times") or "",
            Cell(text=each.text("model") or "not kept", code=True),
        ]
        for each in found[:MOST_ROWS]
    ]
    if not rows:
        return None
    grid = Grid(
        caption="They are failures too", head=["reason", "times", "model"], rows=rows, left=len(found) - len(rows)
    )
    return Section(name="others", title="Other failures met", blocks=[grid])


def remarks(report: Branch) -> Section | None:
    """What the command had to say on the way."""
    blocks: list[Block] = []
    for each in report.parts("remarks")[:MOST_ROWS]:
        sign = "⚠ " if each.flag("warning") else ""
        blocks.append(Passage(text=f"{sign}{cut(each.text('text') or '', 1000)}", tone="unsure" if sign else "plain"))
        lines = each.texts("lines")
        if lines:
            blocks.append(Listing(caption="", lines=[cut(line, 500) for line in lines[:40]]))
    return Section(name="remarks", title="Remarks", blocks=blocks) if blocks else None


# What makes the model right, as ``debug workaround`` has found it: the best, their differences, all that was tried.

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
