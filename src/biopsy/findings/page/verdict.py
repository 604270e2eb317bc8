"""The top of the page: what was found, in words, how sure that is, what to do now, and where in a PyTorch module it
goes wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from biopsy.findings.page.blocks import Block, Cell, Listing, Passage, Pasteable, Section, facts
from biopsy.findings.page.reading import Branch
from biopsy.findings.page.wording import cut, duration, middle_cut, times
from biopsy.text import count

_LONGEST_LINE = 20_000
"""A longer command line is not shown: half of one means something else to a shell."""

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


@dataclass(frozen=True, kw_only=True)
class Top:
    """What a person reads first."""

    headline: Cell
    text: str
    certainty: str | None
    settings: str | None
    """Of files, on which it rests."""
    figures: Sequence[tuple[str, str]]
    """A number, and what it counts."""
    workarounds: Sequence[Pasteable]
    not_tried: Sequence[str]
    repeat: Pasteable | None
    onward: Sequence[Pasteable]
    command: str
    model: str


def top(report: Branch) -> Top:
    """The top of the page of a report."""
    verdict = report.part("verdict") or Branch({})
    kind = verdict.text("kind") or ("unknown" if "verdict" in report else "")
    tone, sign, label = _KINDS.get(kind, ("unsure", "•", cut(kind.replace("-", " ").capitalize(), 60) or "Report"))
    model = report.part("model")
    return Top(
        headline=Cell(text=label, tone=tone, sign=sign),
        text=cut((verdict.text("text") or "").replace(" -> ", " → "), 2000),
        certainty=verdict.loose("certainty"),
        settings=verdict.loose("settings"),
        figures=_figures(report),
        workarounds=[pasteable(each.text("line"), each.text("text")) for each in verdict.parts("workarounds")[:20]],
        not_tried=[cut(text, 500) for text in verdict.texts("not_tried")[:50]],
        repeat=pasteable(report.text("line"), None) if "line" in report else None,
        onward=[pasteable(each.text("line"), each.text("why")) for each in report.parts("next")[:20]],
        command=cut(report.text("command") or "", 100),
        model=cut((model.text("path") if model is not None else None) or "", 300),
    )


def pasteable(line: str | None, why: str | None) -> Pasteable:
    """A line to paste, unless it is so long that nobody could look at what it does."""
    why = None if why is None else cut(why, 500)
    if line is not None and len(line) > _LONGEST_LINE:
        return Pasteable(
            line=None, why=f"{why or 'a command line'} (too long to be shown: it is in the file of the report)"
        )
    return Pasteable(line=line, why=why)


def _figures(report: Branch) -> list[tuple[str, str]]:
    """At most five numbers that say most."""
    figures: list[tuple[str, str]] = []
    model, piece, search = report.part("model"), report.part("piece"), report.part("search")
    nodes = None if model is None else model.whole("nodes")
    size = None if search is None else search.whole("left")
    if piece is not None and piece.parts("nodes"):
        size = len(piece.parts("nodes")) + (piece.whole("more_nodes") or 0)
    if size is not None:
        figures.append((str(size), f"of {count(nodes, 'node')}" if nodes is not None else "nodes"))
    elif nodes is not None:
        figures.append((str(nodes), "nodes"))
    worst = _worst_ratio(report)
    if worst is not None:
        figures.append((times(worst), "the tolerance, at worst"))
    checks = _checks_made(report)
    if checks is not None:
        figures.append((str(checks), "checks"))
    flaky = None if search is None else search.part("flaky")
    if flaky is not None:
        figures.append((f"{flaky.whole('failed')} of {flaky.whole('runs')}", "runs fail"))
    seconds = report.number("seconds")
    if seconds is not None:
        figures.append((duration(seconds), "in all"))
    return figures[:5]


def _checks_made(report: Branch) -> int | None:
    """Those of all questions of a diagnosis, else those of the one search; None where there was neither."""
    steps, search = report.parts("steps"), report.part("search")
    if steps:
        return sum(step.whole("checks") or 0 for step in steps) or None
    if search is None:
        return None
    outcomes = [int(number) for number in search.numbers_by_name("outcomes").values() if abs(number) < 1e12]
    return sum(outcomes) or len(search.parts("checks"))


def _worst_ratio(report: Branch) -> float | None:
    """How many times the tolerance the worst output that fails is off."""
    failure, run = report.part("failure"), report.part("run")
    ratios = [] if failure is None else [each.number("times_tolerance") for each in failure.parts("mismatches")]
    for comparison in [] if run is None else run.parts("comparisons"):
        for output in (output for each in comparison.parts("iterations") for output in each.parts("outputs")):
            measured = output.part("measured")
            offending = None if measured is None or output.flag("passed") else measured.part("offending")
            ratios.append(None if offending is None else offending.number("error"))
    return max((ratio for ratio in ratios if ratio is not None), default=None)


# Where in a PyTorch module it goes wrong: the lines of its author, how far it is off, and what was kept.

_MOST_PLACES = 20
_MOST_NODES = 12
_MOST_REMARKS = 20


def section(report: Branch) -> Section | None:
    """The lines to look at, with their code; None where the report is not about a PyTorch module."""
    part = report.part("torch")
    if part is None:
        return None
    places = part.parts("places")
    blocks: list[Block] = []
    for place in places[:_MOST_PLACES]:
        file, module, code_line = place.text("file"), place.text("module"), place.text("code")
        said = [
            f"{middle_cut(file, 200)}:{place.whole('line')}" if file else "",
            f"module {cut(module, 120)}" if module else "",
            " → ".join(cut(operator, 80) for operator in place.texts("operators")[:_MOST_NODES]),
        ]
        caption = " · ".join(filter(None, said)) or "somewhere"
        listing = Listing(caption=caption, lines=[cut(code_line, 300)]) if code_line else Passage(text=caption)
        blocks.append(listing)
    if len(places) > _MOST_PLACES:
        blocks.append(Passage(text=f"{count(len(places) - _MOST_PLACES, 'more line')}: in the file of the report."))
    told = _facts(part)
    if any(told.values()):
        blocks.append(facts(told, 2000, ["its model", "to send", "everything"]))
    blocks += [Passage(text=cut(each, 500), tone="unsure") for each in part.texts("remarks")[:_MOST_REMARKS]]
    title = "Lines of the module" if places else "The module"
    return Section(name="torch", title=title, blocks=blocks) if blocks else None


def _facts(part: Branch) -> dict[str, str | None]:
    """How far it is off, and what was kept."""
    keys = {"error": "error", "not certain": "reason", "engine asked": "suspect"}
    told: dict[str, str | None] = {term: cut(part.text(key) or "", 600) for term, key in keys.items()}
    values, piece = part.part("values"), part.part("piece") or Branch({})
    if values is not None:
        told["known from PyTorch"] = f"the values of {values.whole('matched')} of {values.whole('of')} tensors"
    if "piece" in part:
        nodes = piece.texts("nodes")
        named = ", ".join(middle_cut(node, 80) for node in nodes[:_MOST_NODES])
        more = f" and {len(nodes) - _MOST_NODES} more" if len(nodes) > _MOST_NODES else ""
        told["smallest part"] = f"{len(nodes)} of {piece.whole('of')} nodes: {named}{more}"
    paths = {"its model": piece.text("path"), "to send": piece.text("bundle"), "everything": part.text("folder")}
    return told | {term: middle_cut(path, 200) for term, path in paths.items() if path}
