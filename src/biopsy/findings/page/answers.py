"""What the other questions have found: settings, precision, what may vary, other failures, and what makes the model
right.
"""

from __future__ import annotations

from biopsy.findings.page.blocks import (
    MOST_ROWS,
    AnsweredQuestion,
    Block,
    Bullets,
    Cell,
    Column,
    Columns,
    Facts,
    Listing,
    Passage,
    Questions,
    Section,
    code,
    code_of,
    facts,
    loose_words_of,
    plain_table,
    table,
    words_of,
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


def _outcome(entry: Branch) -> Cell:
    """What a test came to, with its sign."""
    outcome = entry.text("outcome") or "?"
    tone, sign = _TESTS.get(outcome, ("unsure", "?"))
    return Cell(text=cut(outcome, 40), tone=tone, sign=sign)


def steps(report: Branch) -> Section | None:
    """The questions that ``diagnose`` asked; None where it was another command."""
    questions = []
    for step in report.parts("steps")[:50]:
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
    of_engine = f" of {cut(engine, 60)}" if engine else ""
    items: list[Cell | str] = []
    for switch in switches[:50]:
        change, text = cut(switch.text("change") or "", 300), cut(switch.text("text") or "", 300)
        unsure = " (not confirmed in fresh processes)" if switch.flag("verified") is False else ""
        said = ": ".join(part for part in (change, f"it passes {text}" if text else "") if part)
        items.append(Cell(text=said + unsure, tone="good", sign="✓"))
    if items:
        blocks.append(Bullets(caption=f"The smallest changes{of_engine} with which it passes", items=items))
    elif tried:
        blocks.append(Passage(text=f"No setting{of_engine} that was tried makes it pass."))
    if found.flag("complete") is False:
        blocks.append(Passage(text="Not all settings were tried."))
    optimizers = found.texts("optimizers_that_changed_the_model")
    if optimizers:
        shown = ", ".join(cut(each, 80) for each in optimizers[:MOST_ROWS])
        blocks.append(Passage(text=f"Optimizers that changed the model: {shown}"))
    if tried:
        columns: dict[str, Column] = {
            "change": lambda entry: code(cut(entry.loose("change") or "", 200)),
            "outcome": _outcome,
            "reason": words_of("reason", 200),
        }
        blocks.append(table("What was tried", tried, columns, folded_above=12))
    return Section(name="settings", title="Settings and optimizers", blocks=blocks) if blocks else None


def transformation(report: Branch) -> Section | None:
    """Both models of the piece, before a tool and after it, and the passes that do it."""
    part = report.part("transformation")
    if part is None:
        return None
    tool = " ".join(cut(each, 60) for each in (part.text("tool"), part.text("release")) if each)
    piece, passes = part.part("piece"), part.part("passes")
    blocks: list[Block] = []
    if passes is not None:
        alone = ", ".join(cut(each, 80) for each in passes.texts("alone")[:MOST_ROWS])
        without = cut(passes.text("command") or passes.text("python") or "", 400)
        told = {"does it alone": alone, "left out by": without}
        blocks += [facts(told, 2000, ["left out by"])] if alone or without else []
    if piece is not None:
        before, after = (piece.texts(key)[:200] for key in ("text_before", "text_after"))
        sides = (("before", before), (f"after {tool}", after or ["it writes no model"]))
        blocks.append(Columns(blocks=[Listing(caption=caption, lines=lines) for caption, lines in sides]))
    return Section(name="transformation", title="Before and after", blocks=blocks) if blocks else None


def releases(report: Branch) -> Section | None:
    """Which release of a package broke the model, or mended it, and what each answered."""
    part = report.part("releases")
    if part is None:
        return None
    blocks: list[Block] = []
    items: list[Cell | str] = []
    for border in part.parts("borders")[:50]:
        unsure = " (not confirmed when asked again)" if border.flag("verified") is False else ""
        notes = f" Notes: {cut(border.text('notes') or '', 200)}" if border.text("notes") else ""
        tone, sign = ("bad", "✕") if border.text("change") == "broke" else ("good", "✓")
        items.append(Cell(text=f"{cut(border.text('text') or '?', 300)}{unsure}.{notes}", tone=tone, sign=sign))
    if items:
        package = cut(part.text("package") or "", 60)
        blocks.append(Bullets(caption=f"Releases of {package} between which it changes", items=items))
    elif text := part.text("text"):
        blocks.append(Passage(text=f"{cut(text, 300)}."))
    if yardstick := part.text("yardstick"):
        blocks.append(Passage(text=f"As installed in every check: {cut(yardstick, 200)}."))
    if doubt := part.text("doubt"):
        blocks.append(Passage(text=cut(doubt, 400)))
    if tried := part.parts("tried"):
        columns: dict[str, Column] = {
            "release": lambda entry: code(cut(entry.text("version") or "?", 60)),
            "date": words_of("date", 20),
            "outcome": _outcome,
            "with": lambda entry: ", ".join(cut(each, 60) for each in entry.texts("added")[:5]),
            "reason": words_of("reason", 200),
        }
        blocks.append(table("What was asked", tried, columns, folded_above=20))
    return Section(name="releases", title="Releases", blocks=blocks) if blocks else None


def precision(report: Branch) -> Section | None:
    """Which layers must stay in high precision."""
    part = report.part("precision")
    if part is None:
        return None
    low, high, form = (part.text(key) for key in ("low", "high", "form"))
    total, chosen, minimal = part.whole("layers"), part.parts("high_layers"), part.flag("one_minimal")
    told = {
        "precisions": f"{low or '?'} below {high or '?'}{f', {form}' if form else ''}" if low or high else None,
        "layers that must stay high": None if total is None else f"{len(chosen)} of {total}",
        "smallest set": None
        if minimal is None
        else "lowering any one of them fails"
        if minimal
        else "not shown to be one",
    }
    blocks: list[Block] = [facts(told)] if any(told.values()) else []
    if chosen:
        columns: dict[str, Column] = {key: code_of(key) for key in ("name", "op", "output")}
        columns["made at"] = lambda entry: code(source_text(entry))
        blocks.append(table("Layers in high precision", chosen, columns))
    if weights := part.parts("damaged_weights"):
        keys = ["name", "count", "saturated", "vanished"]
        blocks.append(plain_table("Weights that low precision damages", keys, weights))
    return Section(name="precision", title="Precision", blocks=blocks) if blocks else None


def variation(report: Branch) -> Section | None:
    """What may be anything while it still fails, and what must be as it is."""
    part = report.part("variation")
    if part is None:
        return None
    sentence = part.text("sentence")
    blocks: list[Block] = [Passage(text=_as_sentence(cut(sentence, 1000)), tone="strong")] if sentence else []
    lists: list[Block] = []
    for key, caption, sign in (("free", "What may be anything", "○"), ("fixed", "What it needs", "●")):
        items: list[Cell | str] = []
        for each in part.parts(key)[:MOST_ROWS]:
            name = middle_cut(each.text("name") or "", 80)
            text = f"{each.text('what') or ''} {name}: {cut(each.text('text') or '', 300)}"
            items.append(Cell(text=text.strip(), sign=sign))
        if items:
            lists.append(Bullets(caption=caption, items=items))
    if lists:
        blocks.append(Columns(blocks=lists))
    if part.flag("complete") is False:
        blocks.append(Passage(text="The search for what may vary was not finished."))
    return Section(name="variation", title="What may vary", blocks=blocks) if blocks else None


def known(report: Branch) -> Section | None:
    """Which known bugs the piece looks like."""
    part = report.part("known")
    if part is None:
        return None
    sentence, digest = part.text("sentence"), part.text("fingerprint")
    matches = part.parts("matches")[:_MOST_KNOWN]
    blocks: list[Block] = []
    if sentence and sentence not in [match.text("sentence") for match in matches]:
        blocks.append(Passage(text=_as_sentence(cut(f"it is {sentence}", 600)), tone="strong"))
    for match in matches:
        rows: list[tuple[str, Cell | str]] = [
            (cut(each.text("about") or "", 40), cut(each.text("text") or "", 600))
            for each in match.parts("evidence")[:MOST_ROWS]
        ]
        text = _as_sentence(cut(f"it {match.text('sentence') or '?'}", 600))
        blocks += [Passage(text=text, tone="strong" if match.flag("looks_like_it") else "plain"), Facts(rows=rows)]
    lines = (part.text("graph") or "").splitlines()
    if lines:
        caption = f"The pattern of the piece, {cut(digest or '?', 60)}"
        blocks.append(Listing(caption=caption, lines=[cut(line, 300) for line in lines[:40]]))
    return Section(name="known", title="Known failures", blocks=blocks) if blocks else None


def _as_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def others(report: Branch) -> Section | None:
    """Other failures met on the way."""
    failures = report.parts("other_failures")
    columns: dict[str, Column] = {
        "reason": words_of("reason", 300),
        "times": lambda entry: entry.text("times") or "",
        "model": lambda entry: code(entry.text("model") or "not kept"),
    }
    blocks = [table("They are failures too", failures, columns)]
    return Section(name="others", title="Other failures met", blocks=blocks) if failures else None


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
    part = report.part("workaround")
    if part is None:
        return None
    best, tried = part.parts("best"), part.parts("tried")
    reference, other = cut(part.text("reference") or "?", 80), part.text("confirmed_by")
    agrees = f", as {cut(other, 80)} does" if other else "; no engine of another package confirms that"
    samples, fresh = part.whole("samples") or 0, part.whole("fresh_samples") or 0
    right = f"Right is what {reference} gives{agrees}: on {samples} of the check's inputs and {fresh} fresh ones."
    blocks: list[Block] = [Passage(text=right)]
    if best:
        columns: dict[str, Column] = {
            "kind": words_of("kind", 40, "?"),
            "change": lambda entry: Cell(text=cut(entry.loose("text") or "", 300), tone="good", sign="✓"),
            "engine": lambda entry: code(cut(entry.text("engine") or "", 200)),
            "latency": _latency,
        }
        blocks.append(table("The best, the cheapest first", best, columns))
    else:
        blocks.append(Passage(text="Nothing that was tried makes the model right."))
    for one in best[:MOST_ROWS]:
        title = cut(one.loose("text") or "", 100)
        for key, what in (
            ("difference", "In the model"),
            ("holds", "The same function only for"),
            ("python", "In Python"),
        ):
            if lines := one.texts(key)[:_MOST_LINES]:
                blocks.append(Listing(caption=f"{what}: {title}", lines=lines))
    if tried:
        right_cell, wrong_cell = Cell(text="right", tone="good", sign="✓"), Cell(text="not right", tone="bad", sign="✕")
        columns = {
            "kind": words_of("kind", 40, "?"),
            "change": loose_words_of("text", 300),
            "outcome": lambda entry: right_cell if entry.flag("right") else wrong_cell,
            "reason": words_of("reason", 200),
        }
        blocks.append(table("What was tried", tried, columns, folded_above=12))
    return Section(name="workaround", title="What makes the model right", blocks=blocks)


def _latency(entry: Branch) -> str:
    latency = entry.part("latency")
    if latency is None:
        return ""
    ratio, low, high, after = (latency.number(key) for key in ("ratio", "low", "high", "after"))
    if ratio is not None and low is not None and high is not None:
        return f"{ratio:.2f} times as long ({low:.2f} to {high:.2f})"
    return "" if after is None else f"{after:.3g} ms"
