"""The top of a page, and its sections of words and tables: questions and answers, settings, releases, workarounds and
other findings, repeated runs and builds, and the model and versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from biopsy.findings.document import (
    AnsweredQuestion,
    Bullets,
    Cell,
    Columns,
    DocumentBlock,
    Facts,
    Grid,
    Listing,
    Passage,
)
from biopsy.findings.page.reading import Branch
from biopsy.findings.page.wording import (
    MOST_ROWS,
    Column,
    code,
    code_of,
    cut,
    duration,
    facts,
    link_of,
    listed,
    middle_cut,
    number_of,
    plain_table,
    source_cell,
    table,
    times,
    type_text,
)
from biopsy.findings.verdict import Note, Verdict, Workaround, notes_of
from biopsy.text import count, size_text

_LONGEST_LINE = 20_000
"""Characters of a command line that is shown: half a line would be another command."""

LABELS = ("workaround", "repeat", "next")
"""The labels of the notes at the top."""

_KINDS = {
    "passes": ("good", "✓", "Passes"),
    "fails": ("bad", "✕", "Fails"),
    "reduced": ("bad", "✕", "Fails, and is reduced"),
    "wrong-layers": ("bad", "✕", "Layers are computed wrongly"),
    "rounding": ("unsure", "≈", "Only rounding"),
    "flaky": ("unsure", "∿", "Fails now and then"),
    "input": ("unsure", "?", "It is the input"),
    "varies": ("bad", "✕", "The module varies"),
    "capture": ("bad", "✕", "The capture is to blame"),
    "exporter": ("bad", "✕", "The exporter is to blame"),
    "engine": ("bad", "✕", "The engine is to blame"),
    "tolerance": ("unsure", "≈", "Only rounding"),
    "unknown": ("unsure", "?", "Nothing was concluded"),
}

_OUTCOMES = {
    "done": ("plain", "✓"),
    **dict.fromkeys(("passed", "passes", "right", "ran", "rounding"), ("good", "✓")),
    **dict.fromkeys(("reproduced", "fails", "failed", "not right", "wrong", "bug"), ("bad", "✕")),
    "another failure": ("bad", "△"),
    "skipped": ("unsure", "-"),
    "stopped": ("unsure", "■"),
}
"""Tone and sign of the outcome of a question, a check or a change."""


def outcome_cell(outcome: str, text: str = "") -> Cell:
    """An outcome with its sign; ``text`` replaces the word."""
    tone, sign = _OUTCOMES.get(outcome, ("unsure", "?"))
    return Cell(text=text or cut(outcome or "?", 40), tone=tone, sign=sign)


def _outcome(entry: Branch) -> Cell:
    return outcome_cell(entry.text("outcome"))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


@dataclass(frozen=True, kw_only=True)
class Top:
    """The top of the page.

    ``text`` is the first sentence of the verdict, ``measure`` the others. ``figures`` are numbers, each with what it
    counts; ``settings`` are the options that settings files gave.
    """

    headline: Cell
    text: str
    measure: str
    settings: str
    figures: Sequence[tuple[str, str]]
    notes: Sequence[Note]
    command: str
    model: str


def verdict_in(report: Branch) -> Verdict:
    """The verdict of a report, without what is beyond any bounds."""
    finding = report.child("verdict")
    return Verdict(
        kind=finding.text("kind") or ("unknown" if "verdict" in report else ""),
        text=cut(finding.text("text"), 2000),
        reasons=finding.texts("reasons")[:50],
        certainty=finding.loose("certainty"),
        workarounds=[
            Workaround(text=each.text("text"), line=each.text("line"), code=each.texts("code")[:20])
            for each in finding.parts("workarounds")[:20]
        ],
        not_tried=finding.texts("not_tried")[:50],
    )


def top(report: Branch) -> Top:
    """The top of the page of a report."""
    verdict, model = verdict_in(report), report.child("model")
    unknown = ("unsure", "•", cut(verdict.kind.replace("-", " ").capitalize(), 60) or "Report")
    tone, sign, label = _KINDS.get(verdict.kind, unknown)
    notes = [*notes_of(verdict, [(each.text("line"), each.text("why")) for each in report.parts("next")[:20]])]
    notes += [Note(label="repeat", line=report.text("line"))] if "line" in report else []
    too_long = "(too long to be shown: it is in the file of the report)"
    notes = [
        replace(note, line=None, text=f"{note.text or 'a command line'} {too_long}")
        if len(note.line or "") > _LONGEST_LINE
        else note
        for note in notes
    ]
    said, stop, more = verdict.text.replace(" -> ", " → ").partition(". ")
    said += stop.strip()
    return Top(
        headline=Cell(text=label, tone=tone, sign=sign),
        text=said,
        measure=more,
        settings=report.child("verdict").loose("settings"),
        figures=_figures(report, model),
        notes=notes,
        command=cut(report.text("command"), 100),
        model=cut(model.text("path"), 300),
    )


def _figures(report: Branch, model: Branch) -> list[tuple[str, str]]:
    """At most five figures: size, error, checks (of a diagnosis those of all questions), failure rate, time."""
    figures: list[tuple[str, str]] = []
    piece, search, steps = report.part("piece"), report.child("search"), report.parts("steps")
    nodes, size = model.whole("nodes"), search.whole("left")
    if piece is not None and piece.parts("nodes"):
        size = len(piece.parts("nodes")) + (piece.whole("more_nodes") or 0)
    if size is not None:
        figures.append((str(size), f"of {count(nodes, 'node')}" if nodes is not None else "nodes"))
    elif nodes is not None:
        figures.append((str(nodes), "nodes"))
    worst = max((ratio for ratio in _ratios(report) if ratio is not None), default=None)
    figures += [] if worst is None else [(times(worst), "the tolerance, at worst")]
    outcomes = [int(number) for number in search.numbers_by_name("outcomes").values() if abs(number) < 1e12]
    checks = sum(step.whole("checks") or 0 for step in steps) if steps else sum(outcomes) or len(search.parts("checks"))
    figures += [(str(checks), "checks")] if checks or ("search" in report and not steps) else []
    flaky, asked = search.part("flaky"), [step.number("seconds") or 0 for step in steps]
    seconds = sum(asked) if asked else report.number("seconds")
    figures += [] if flaky is None else [(f"{flaky.whole('failed')} of {flaky.whole('runs')}", "runs fail")]
    return [*figures, *([] if seconds is None else [(duration(seconds), "in all")])][:5]


def _ratios(report: Branch) -> Iterator[float | None]:
    """The ratios of errors to the tolerance, of the outputs that fail."""
    failure, run = report.child("failure"), report.child("run")
    yield from (each.number("times_tolerance") for each in failure.parts("mismatches"))
    iterations = (each for comparison in run.parts("comparisons") for each in comparison.parts("iterations"))
    for output in (output for iteration in iterations for output in iteration.parts("outputs")):
        offending = output.child("measured").part("offending")
        yield None if offending is None or output.flag("passed") else offending.number("error")


def steps(report: Branch) -> Iterator[DocumentBlock]:
    """The questions that ``diagnose`` asked, and their answers."""
    for step in report.parts("steps")[:50]:
        checks, seconds = step.whole("checks"), step.number("seconds")
        answer = (step.text("answer") or step.text("outcome")).replace(" -> ", " → ")
        spent = [count(checks, "check")] if checks else []
        yield AnsweredQuestion(
            name=cut(step.text("name"), 60),
            question=cut(step.text("question"), 300),
            answer=outcome_cell(step.text("outcome"), cut(answer, 600)),
            figures=" · ".join(spent + ([duration(seconds)] if seconds else [])),
            evidence=step.text("evidence"),
        )


def evidence(report: Branch) -> Iterator[DocumentBlock]:
    """What the verdict rests on, and what was left open."""
    verdict = verdict_in(report)
    if verdict.reasons:
        yield Bullets(items=[text.replace(" -> ", " → ") for text in verdict.reasons])
    if verdict.certainty:
        yield Bullets(caption="How sure that is", items=re.split(r"(?<=\.) (?=[A-Z])", verdict.certainty))
    if verdict.not_tried:
        yield Bullets(caption="Not tried", items=verdict.not_tried)


def module(part: Branch) -> Iterator[DocumentBlock]:
    """The lines of a PyTorch module that go wrong, the error, and the files that were kept."""
    places = part.parts("places")
    for place in places[:20]:
        file, name, line = place.text("file"), place.text("module"), place.text("code")
        part_name = f"module {name}" if name else ""
        if not file and (kind := place.text("kind")):
            part_name = f"{part_name or 'the module itself'} ({kind})"
        where = [f"{middle_cut(file, 200)}:{place.whole('line')}" if file else "", part_name]
        unknown = f"its line is not known: {place.text('unknown')}" if place.text("unknown") else ""
        caption = listed([*where, listed(place.texts("operators"), " → ", 12), unknown], " · ") or "somewhere"
        yield Listing(caption=caption, lines=[cut(line, 300)]) if line else Passage(text=caption)
    if len(places) > 20:
        yield Passage(text=f"{count(len(places) - 20, 'more line')}: in the file of the report.")
    values, piece = part.part("values"), part.child("piece")
    known = {"error": part.text("error"), "not certain": part.text("reason"), "engine asked": part.text("suspect")}
    if values is not None:
        known["known from PyTorch"] = f"the values of {values.whole('matched')} of {values.whole('of')} tensors"
    if nodes := piece.texts("nodes"):
        more = f" and {len(nodes) - 12} more" if len(nodes) > 12 else ""
        known["smallest part"] = f"{len(nodes)} of {piece.whole('of')} nodes: {listed(nodes, most=12)}{more}"
    paths = {"its model": piece.text("path"), "to send": piece.text("bundle"), "everything": part.text("folder")}
    yield from facts({**known, **paths}, [*paths], [*paths])
    yield from (Passage(text=cut(each, 500), tone="unsure") for each in part.texts("remarks")[:20])


def settings(part: Branch) -> Iterator[DocumentBlock]:
    """Which settings and optimizers were tried, and which switch the failure off."""
    engine, tried, items = cut(part.text("engine"), 60), part.parts("tried"), list[Cell | str]()
    of_engine = f" of {engine}" if engine else ""
    for switch in part.parts("switches")[:50]:
        text = cut(switch.text("text"), 300)
        effect = listed([switch.text("change"), f"it passes {text}" if text else ""], ": ", each=300)
        unsure = " (not confirmed in fresh processes)" if switch.flag("verified") is False else ""
        items.append(Cell(text=effect + unsure, tone="good", sign="✓"))
    if items:
        yield Bullets(caption=f"The smallest changes{of_engine} with which it passes", items=items)
    elif tried:
        yield Passage(text=f"No setting{of_engine} that was tried makes it pass.")
    if part.flag("complete") is False:
        yield Passage(text="Not all settings were tried.")
    if optimizers := part.texts("optimizers_that_changed_the_model"):
        yield Passage(text=f"Optimizers that changed the model: {listed(optimizers, most=MOST_ROWS)}")
    if tried:
        columns: dict[str, Column] = {"change": code_of("change"), "outcome": _outcome, "reason": "reason"}
        yield table("What was tried", tried, columns, folded_above=12)


def transformation(part: Branch) -> Iterator[DocumentBlock]:
    """The piece before and after the tool, and the passes that break it."""
    piece, passes = part.part("piece"), part.child("passes")
    without = passes.text("command") or passes.text("python")
    yield from facts({"does it alone": listed(passes.texts("alone")), "left out by": without}, ["left out by"])
    if piece is not None:
        before, after = (piece.texts(key)[:200] for key in ("text_before", "text_after"))
        tool = listed([part.text("tool"), part.text("release")], " ")
        sides = (("before", before), (f"after {tool}", after or ["it writes no model"]))
        yield Columns(columns=[[Listing(caption=caption, lines=lines)] for caption, lines in sides])


def releases(part: Branch) -> Iterator[DocumentBlock]:
    """Which release of a package broke or mended the model, and the answers of all releases that were tried."""
    items: list[Cell | str] = []
    for border in part.parts("borders")[:50]:
        unsure = " (not confirmed when asked again)" if border.flag("verified") is False else ""
        notes = f" Notes: {cut(border.text('notes'), 200)}" if border.text("notes") else ""
        tone, sign = ("good", "✓") if border.text("change") == "mended" else ("bad", "✕")
        items.append(Cell(text=f"{cut(border.text('text') or '?', 300)}{unsure}.{notes}", tone=tone, sign=sign))
    if items:
        caption = f"Releases of {cut(part.text('package'), 60)} between which it changes"
        yield Bullets(caption=caption, items=items)
    elif text := part.text("text"):
        yield Passage(text=f"{cut(text, 300)}.")
    if yardstick := part.text("yardstick"):
        yield Passage(text=f"As installed in every check: {cut(yardstick, 200)}.")
    if doubt := part.text("doubt"):
        yield Passage(text=cut(doubt, 400))
    if tried := part.parts("tried"):
        columns: dict[str, Column] = {"release": code_of("version"), "date": "date", "outcome": _outcome}
        columns |= {"with": lambda entry: listed(entry.texts("added")), "reason": "reason"}
        yield table("What was asked", tried, columns, folded_above=20)


def precision(part: Branch) -> Iterator[DocumentBlock]:
    """The layers that must stay in high precision."""
    low, high, form, total = part.text("low"), part.text("high"), part.text("form"), part.whole("layers")
    chosen = part.parts("high_layers")
    minimal = {True: "lowering any one of them fails", False: "not shown to be one", None: ""}
    known = {
        "precisions": f"{low or '?'} below {high or '?'}{f', {form}' if form else ''}" if low or high else "",
        "layers that must stay high": "" if total is None else f"{len(chosen)} of {total}",
        "smallest set": minimal[part.flag("one_minimal")],
    }
    yield from facts(known)
    if chosen:
        columns: dict[str, Column] = {key: code_of(key) for key in ("name", "op", "output")}
        yield table("Layers in high precision", chosen, {**columns, "made at": source_cell})
    if weights := part.parts("damaged_weights"):
        keys = ["name", "count", "saturated", "vanished"]
        yield plain_table("Weights that low precision damages", keys, weights)


def variation(part: Branch) -> Iterator[DocumentBlock]:
    """What may change while the model still fails, and what must stay."""
    if sentence := part.text("sentence"):
        yield Passage(text=_sentence(cut(sentence, 1000)), tone="strong")
    lists = []
    for key, caption, sign in (("free", "What may be anything", "○"), ("fixed", "What it needs", "●")):
        items = [
            Cell(
                text=f"{listed([each.text('what'), each.text('name')], ' ')}: {cut(each.text('text'), 300)}", sign=sign
            )
            for each in part.parts(key)[:MOST_ROWS]
        ]
        lists += [[Bullets(caption=caption, items=items)]] if items else []
    if lists:
        yield Columns(columns=lists)
    if part.flag("complete") is False:
        yield Passage(text="The search for what may vary was not finished.")


def known(part: Branch) -> Iterator[DocumentBlock]:
    """The known bugs that the piece looks like."""
    sentence, matches = part.text("sentence"), part.parts("matches")[:5]
    if sentence and sentence not in [match.text("sentence") for match in matches]:
        yield Passage(text=_sentence(cut(f"it is {sentence}", 600)), tone="strong")
    for match in matches:
        text = _sentence(cut(f"it {match.text('sentence') or '?'}", 600))
        yield Passage(text=text, tone="strong" if match.flag("looks_like_it") else "plain")
        evidence = match.parts("evidence")[:MOST_ROWS]
        rows = [(each.text("about"), cut(each.text("text"), 600)) for each in evidence]
        yield Facts(rows=[(cut(about, 40), Cell(text=text, link=link_of(text))) for about, text in rows])
    if lines := part.text("graph").splitlines()[:40]:
        caption = f"The pattern of the piece, {cut(part.text('fingerprint') or '?', 60)}"
        yield Listing(caption=caption, lines=[cut(line, 300) for line in lines])


def workaround(part: Branch) -> Iterator[DocumentBlock]:
    """The best changes that make the model right, the cheapest first, and all that were tried."""
    best, tried, other = part.parts("best"), part.parts("tried"), part.text("confirmed_by")
    agrees = f", as {cut(other, 80)} does" if other else "; no engine of another package confirms that"
    samples, fresh = part.whole("samples") or 0, part.whole("fresh_samples") or 0
    reference = cut(part.text("reference") or "?", 80)
    yield Passage(
        text=f"Right is what {reference} gives{agrees}: on {samples} of the check's inputs and {fresh} fresh ones."
    )
    if best:
        columns: dict[str, Column] = {
            "kind": "kind",
            "change": lambda entry: Cell(text=cut(entry.loose("text"), 300), tone="good", sign="✓"),
            "engine": code_of("engine"),
            "latency": _latency,
        }
        yield table("The best, the cheapest first", best, columns)
    else:
        yield Passage(text="Nothing that was tried makes the model right.")
    titles = {"difference": "In the model", "holds": "The same function only for", "python": "In Python"}
    for change in best[:MOST_ROWS]:
        for key, title in titles.items():
            if lines := change.texts(key)[:200]:
                yield Listing(caption=f"{title}: {cut(change.loose('text'), 100)}", lines=lines)
    if tried:
        columns = {
            "kind": "kind",
            "change": "text",
            "outcome": lambda entry: outcome_cell("right" if entry.flag("right") else "not right"),
            "reason": "reason",
        }
        yield table("What was tried", tried, columns, folded_above=12)


def _latency(entry: Branch) -> str:
    latency = entry.child("latency")
    ratio, low, high, after = (latency.number(key) for key in ("ratio", "low", "high", "after"))
    if ratio is not None and low is not None and high is not None:
        return "no difference measured" if low <= 1 <= high else f"{ratio:.2f} times as long ({low:.2f} to {high:.2f})"
    return "" if after is None else f"{after:.3g} ms"


def others(report: Branch) -> Iterator[DocumentBlock]:
    """The other failures that the search met."""
    if failures := report.parts("other_failures"):
        model: Column = lambda entry: code(entry.text("model") or "not kept")  # noqa: E731
        yield table("They are failures too", failures, {"reason": "reason", "times": "times", "model": model})


def remarks(report: Branch) -> Iterator[DocumentBlock]:
    """The remarks and warnings of the command."""
    for each in report.parts("remarks")[:MOST_ROWS]:
        sign = "⚠ " if each.flag("warning") else ""
        yield Passage(text=f"{sign}{cut(each.text('text'), 1000)}", tone="unsure" if sign else "plain")
        if lines := each.texts("lines")[:40]:
            yield Listing(lines=[cut(line, 500) for line in lines])


def runs(part: Branch) -> Iterator[DocumentBlock]:
    """How often a command failed, and how."""
    known = {"command": " ".join(part.texts("command"))}
    known |= {name: part.text(name) for name in ("iterations", "passed", "failed")}
    interval, rate = part.numbers("pass_rate_interval"), part.number("pass_rate")
    if rate is not None and len(interval) == 2:
        low, high = (f"{100 * end:.0f} %" for end in interval)
        known["passes in"] = f"{100 * rate:.0f} % of runs; the true rate is between {low} and {high}"
    yield from facts({**known, **dict(list(part.texts_by_name("others").items())[:20])}, ["command"])
    if failures := part.parts("failures"):
        yield plain_table("How it failed", ["reason", "times", "first"], failures)


def builds(part: Branch) -> Iterator[DocumentBlock]:
    """How many builds are bad, and which choices of the engine they have in common."""
    difference, outcomes = part.child("difference"), part.texts_by_name("outcomes")
    known = {
        "engine": listed([part.text("engine"), part.text("version")], " "),
        "builds": part.text("runs"),
        "outcomes": listed(f"{number} {name}" for name, number in outcomes.items()),
        "time": number_of("seconds", duration)(part),
        "good and bad": listed([difference.text("good"), difference.text("bad")], " and "),
        "more builds needed": difference.text("more_builds"),
    }
    yield from facts(known)

    def choices(group: Branch) -> Cell:
        words = (listed(map(each.text, ("where", "kind", "value")), " ") for each in group.parts("choices")[:10])
        return code(listed(words, "; "))

    if groups := difference.parts("groups"):
        columns: dict[str, Column] = {
            "choices that go together": choices,
            "bad builds": "bad",
            "good builds": "good",
            "chance, for all tests": number_of("adjusted"),
        }
        yield table("What bad builds have in common", groups, columns)


def model_and_versions(report: Branch) -> Iterator[DocumentBlock]:
    """The facts of the model, and the versions of packages, engines and the machine."""
    model, versions = report.part("model"), report.part("versions")
    sides: list[list[Facts]] = []
    rows: list[list[Cell | str]] = []
    if model is not None:
        size, opsets = model.whole("weight_bytes"), list(model.texts_by_name("opsets").items())
        known = {
            "model": model.text("path"),
            "SHA-256": model.text("sha256"),
            "nodes": model.text("nodes"),
            "opsets": listed(f"{domain or 'ai.onnx'} {version}" for domain, version in opsets),
            "IR version": model.text("ir_version"),
            "weights": None if size is None else size_text(size),
            "producer": model.text("producer"),
        }
        sides.append(facts(known, ["model", "SHA-256"]))
        rows = [
            [key[:-1], code(middle_cut(value.text("name"))), code(type_text(value))]
            for key in ("inputs", "outputs")
            for value in model.parts(key)[:50]
        ]
    if versions is not None:
        engines = {
            each.text("label") or each.text("name") or "engine": each.text("version") or "?"
            for each in versions.parts("engines")[:20]
        }
        packages = dict(list(versions.texts_by_name("packages").items())[:40])
        known = {"biopsy": versions.text("biopsy"), **engines, "python": versions.text("python"), **packages}
        known |= {"system": versions.text("os"), "CPU": versions.text("cpu")}
        known |= {"CPU features": ", ".join(versions.texts("cpu_features")), "GPU": versions.text("gpu")}
        sides.append(facts({**known, "driver": versions.text("driver"), "made": report.text("created")}))
    if any(sides):
        yield Columns(columns=sides)
    if rows:
        yield Grid(caption="Inputs and outputs", head=["", "name", "type"], rows=rows, folded=len(rows) > 8)
