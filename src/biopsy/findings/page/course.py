"""How it was found: the course of the search, what was repeated, and everything that the model was run with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from biopsy.findings.page.blocks import (
    Axis,
    Block,
    Cell,
    Column,
    Columns,
    Drawing,
    Facts,
    Grid,
    Mark,
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
    whole_of,
    words_of,
)
from biopsy.findings.page.reading import Branch
from biopsy.findings.page.wording import cut, duration
from biopsy.text import count, size_text

_MOST_CHECKS = 4000
_WORDS = 300_000
"""Characters of what all checks say together, so that the page stays small."""
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


def section(report: Branch) -> Section | None:
    """The section on the search; None without one."""
    search = report.part("search")
    if search is None:
        return None
    blocks: list[Block] = []
    checks = search.parts("checks")
    shown = _thinned([check for check in checks if check.whole("nodes") is not None])
    if shown:
        by_number = [float(check.whole("number") or place) for place, check in enumerate(shown, start=1)]
        plots = [_plot("checks", "Nodes left, check by check", "checks", shown, by_number)]
        ends = [check.number("at") for check in shown]
        by_time = [end for end in ends if end is not None]
        if len(by_time) == len(ends):
            plots.append(_plot("seconds", "Nodes left, second by second", "seconds", shown, by_time))
        blocks.append(Columns(blocks=plots))
    passes = search.parts("passes")
    if passes:
        columns: dict[str, Column] = {
            "pass": words_of("stage", 60),
            "nodes": _change,
            "checks": whole_of("checks"),
            "time": number_of("seconds", duration),
        }
        blocks.append(table("Pass by pass", passes, columns, most=200))
    blocks.append(_facts(search))
    if checks:
        columns = {
            "check": whole_of("number"),
            "pass": words_of("stage", 40),
            "what was tried": words_of("description", 100),
            "nodes": whole_of("nodes"),
            "left": whole_of("left"),
            "outcome": _outcome,
            "reason": words_of("reason", 160),
            "time": number_of("seconds", duration),
        }
        more = search.whole("more_checks") or 0
        blocks.append(table("Every check", checks, columns, most=_MOST_CHECKS_LISTED, folded_above=0, more=more))
    return Section(name="search", title="The course of the search", blocks=blocks)


def _change(entry: Branch) -> str:
    before, after = entry.whole("before"), entry.whole("after")
    return "" if before is None or after is None else f"{before} → {after}" if before != after else f"{after}"


def _outcome(entry: Branch) -> Cell:
    outcome = entry.text("outcome") or "?"
    return Cell(text=cut(outcome, 40), tone="bad" if outcome == "reproduced" else "plain")


def _facts(search: Branch) -> Facts:
    outcomes = search.texts_by_name("outcomes")
    told = {"mode": search.text("mode"), "outcomes": ", ".join(f"{n} {cut(name, 40)}" for name, n in outcomes.items())}
    nodes, left, remembered = search.whole("nodes"), search.whole("left"), search.whole("remembered")
    if nodes is not None and left is not None:
        told["nodes"] = f"{left} of {nodes} left"
    if remembered:
        told["from a journal"] = count(remembered, "run")
    cannot_say = search.texts_by_name("cannot_say")
    told["could not say, because"] = "; ".join(f"{cut(why, 100)}: {n}" for why, n in list(cannot_say.items())[:10])
    told["stopped"] = search.text("stopped")
    flaky, verified = search.part("flaky"), search.part("verified")
    if flaky is not None:
        needed = flaky.whole("needed")
        told["flaky"] = f"fails in {flaky.whole('failed')} of {flaky.whole('runs')} runs" + (
            f"; {count(needed, 'passing run')} in a row count as passing" if needed else ""
        )
    if verified is not None:
        on = f", on {verified.text('machine')}" if verified.text("machine") else ""
        runs = f"{verified.whole('failed')} of {verified.whole('runs')} runs"
        told["verified"] = f"the file as written failed in {runs}{on}"
    return Facts(rows=[(term, text) for term, text in told.items() if text])


def _thinned(checks: list[Branch]) -> list[Branch]:
    """At most so many checks, among them all at which the number of nodes left changes."""
    if len(checks) <= _MOST_CHECKS:
        return checks
    every = -(-len(checks) // (_MOST_CHECKS // 2))
    lefts = [check.whole("left") for check in checks]
    kept = [place for place in range(len(checks)) if place % every == 0 or (place and lefts[place] != lefts[place - 1])]
    return [checks[place] for place in kept[:_MOST_CHECKS]]


def _plot(name: str, title: str, unit: str, checks: Sequence[Branch], places: Sequence[float]) -> Drawing:
    nodes = [max(check.whole("nodes") or 0, 1) for check in checks]
    lefts = [check.whole("left") for check in checks]
    most = max([*nodes, *(left for left in lefts if left is not None)])
    across = Axis(low=min(*places, 0.0), high=max(*places, 1e-3), begin=_ACROSS[0], end=_ACROSS[1])
    up = Axis(low=1.0, high=max(most, 2) * 1.15, begin=_UP[0], end=_UP[1], logarithmic=True)
    traces, words = frame(across, up, (unit, "nodes"), (across.ticks(5), up.ticks(5)))
    bands, labels = _bands(checks, places, across, up)
    sizes = ((place, left) for place, left in zip(places, lefts, strict=True) if left is not None)
    corners = [(across.at(place), up.at(max(left, 1))) for place, left in sizes]
    smallest = "".join(f"H{x}V{y}" if at else f"M{x} {y}" for at, (x, y) in enumerate(corners)) or "M0 0"
    most_words = max(40, min(200, _WORDS // (2 * len(checks))))
    by_style: dict[str, list[str]] = {}
    legend: dict[str, Sign] = {}
    for check, place, size in zip(checks, places, nodes, strict=True):
        style, shape, meaning = _SHAPES.get(check.text("outcome") or "", _UNKNOWN)
        by_style.setdefault(style, []).append(shape.format(x=across.at(place), y=up.at(size)))
        legend.setdefault(style, Sign(d=shape.format(x=10, y=7), style=style, text=meaning))
    traces = [bands, *traces, Trace(d=smallest, style="smallest")]
    traces += [Trace(d="".join(parts), style=style, count=len(parts)) for style, parts in by_style.items()]
    return Drawing(
        name=name, title=title, note="", width=_WIDTH, height=_HEIGHT, traces=traces, words=[*words, *labels],
        marks=[Mark(x=across.at(place), y=up.at(size), lines=_lines(check, most_words))
               for check, place, size in zip(checks, places, nodes, strict=True)],
        pointing=Pointing(alike="" if name == "checks" else "checks"),
        legend=[*legend.values(), Sign(d="M1 4h9v6h9", style="smallest", text="smallest that still fails")],
    )  # fmt: skip


def _bands(checks: Sequence[Branch], places: Sequence[float], across: Axis, up: Axis) -> tuple[Trace, list[Words]]:
    """Every other stage has a shaded ground; those that are wide enough have their name above it."""
    parts, words = [], []
    begin = across.begin
    for turn, (stage, group) in enumerate(
        groupby(zip(checks, places, strict=True), key=lambda pair: pair[0].text("stage") or "")
    ):
        end = across.at(max(place for _, place in group))
        if turn % 2 == 0:
            parts.append(f"M{begin} {up.end}H{end}V{up.begin}H{begin}z")
        room = int((end - begin) / 7)
        if stage and room >= min(len(stage), 6):
            words.append(
                Words(
                    x=round((begin + end) / 2, 1), y=up.end - 8, text=cut(stage, room), style="stage", anchor="middle"
                )
            )
        begin = end
    return Trace(d="".join(parts) or "M0 0", style="band"), words


def _lines(check: Branch, most: int) -> list[str]:
    outcome = check.text("outcome") or "?"
    number, seconds, left = check.whole("number"), check.number("seconds"), check.whole("left")
    said = [f"check {number}" if number is not None else "check", cut(outcome, 40)]
    lines = [": ".join(said)]
    lines += [cut(text, most) for text in [check.text("description")] if text]
    lines += [cut(text, most) for text in [check.text("reason")] if text]
    sizes = [f"{check.whole('nodes')} nodes tried"] + ([f"{left} left"] if left is not None else [])
    lines.append(" · ".join(sizes))
    tail = [text for text in [check.text("stage")] if text] + ([duration(seconds)] if seconds is not None else [])
    return [*lines, cut(" · ".join(tail), 80)] if tail else lines


# What was repeated: runs of a command, and builds of a model.


def runs(report: Branch) -> Section | None:
    """How often a command failed, and how."""
    part = report.part("repeat")
    if part is None:
        return None
    told = {"command": " ".join(part.texts("command"))}
    told |= {name: part.text(name) or "" for name in ("iterations", "passed", "failed")}
    interval = part.numbers("pass_rate_interval")
    rate = part.number("pass_rate")
    if rate is not None and len(interval) == 2:
        low, high = (f"{100 * end:.0f} %" for end in interval)
        told["passes in"] = f"{100 * rate:.0f} % of runs; the true rate is between {low} and {high}"
    told |= {cut(name, 60): text for name, text in list(part.texts_by_name("others").items())[:20]}
    blocks: list[Block] = [facts(told, 500, ["command"])]
    failures = part.parts("failures")
    if failures:
        blocks.append(plain_table("How it failed", ["reason", "times", "first"], failures))
    return Section(name="repeat", title="Repeated runs", blocks=blocks)


def builds(report: Branch) -> Section | None:
    """How many builds are bad, and which choices of the engine go with them."""
    part = report.part("builds")
    if part is None:
        return None
    outcomes = part.texts_by_name("outcomes")
    told = {
        "engine": " ".join(text for text in (part.text("engine"), part.text("version")) if text),
        "builds": part.text("runs") or "",
        "outcomes": ", ".join(f"{times} {name}" for name, times in list(outcomes.items())[:20]),
    }
    seconds, difference = part.number("seconds"), part.part("difference")
    told["time"] = "" if seconds is None else duration(seconds)
    groups: Sequence[Branch] = []
    if difference is not None:
        groups = difference.parts("groups")
        told["good and bad"] = f"{difference.text('good') or '?'} and {difference.text('bad') or '?'}"
        told["more builds needed"] = difference.text("more_builds") or ""
    blocks: list[Block] = [facts(told, 500)]
    if groups:
        columns: dict[str, Column] = {
            "choices that go together": _choices,
            "bad builds": lambda entry: entry.text("bad") or "",
            "good builds": lambda entry: entry.text("good") or "",
            "chance, for all tests": number_of("adjusted"),
        }
        blocks.append(table("What bad builds have in common", groups, columns))
    return Section(name="builds", title="Repeated builds", blocks=blocks)


def _choices(group: Branch) -> Cell:
    choices = [
        " ".join(text for text in (each.text("where"), each.text("kind"), each.text("value")) if text)
        for each in group.parts("choices")[:10]
    ]
    return code(cut("; ".join(choices), 400))


# What it was found with: the model, and everything that ran it.


def surroundings_section(report: Branch) -> Section | None:
    """The section on model and versions; None if the report has neither."""
    blocks: list[Block] = []
    model, versions = report.part("model"), report.part("versions")
    sides = []
    if model is not None:
        size, opsets = model.whole("weight_bytes"), model.texts_by_name("opsets")
        told = {
            "model": model.text("path"),
            "SHA-256": model.text("sha256"),
            "nodes": model.text("nodes"),
            "opsets": ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in list(opsets.items())[:20]),
            "IR version": model.text("ir_version"),
            "weights": None if size is None else size_text(size),
            "producer": model.text("producer"),
        }
        sides.append(facts(told, 400, ["model", "SHA-256"]))
    if versions is not None:
        sides.append(_version_facts(report, versions))
    if sides:
        blocks.append(Columns(blocks=sides))
    if model is not None:
        rows: Rows = []
        for key in ("inputs", "outputs"):
            for value in model.parts(key)[:50]:
                kind = cut(f"{value.text('dtype') or '?'} {value.loose('shape') or '[…]'}", 200)
                rows.append([key[:-1], code_of("name", 100)(value), code(kind)])
        if rows:
            head = ["", "name", "type"]
            blocks.append(Grid(caption="Inputs and outputs", head=head, rows=rows, folded=len(rows) > 8))
    return Section(name="versions", title="Model and versions", blocks=blocks) if blocks else None


def _version_facts(report: Branch, versions: Branch) -> Facts:
    told = {"biopsy": versions.text("biopsy")}
    for engine in versions.parts("engines")[:20]:
        name = engine.text("label") or engine.text("name") or "engine"
        told[cut(name, 60)] = engine.text("version") or "?"
    told["python"] = versions.text("python")
    told |= {cut(name, 60): version for name, version in list(versions.texts_by_name("packages").items())[:40]}
    told["system"], told["CPU"] = versions.text("os"), versions.text("cpu")
    told["CPU features"] = ", ".join(versions.texts("cpu_features"))
    told["GPU"], told["driver"] = versions.text("gpu"), versions.text("driver")
    told["made"] = report.text("created")
    return facts(told)
