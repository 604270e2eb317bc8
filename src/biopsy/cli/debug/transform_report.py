"""What ``debug transform`` shows: a line for each thing learnt, then both models of the piece beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from biopsy import events
from biopsy.cli.advice import Advice, say_advice
from biopsy.cli.console import Console
from biopsy.cli.debug.reduction_report import ReductionReport
from biopsy.cli.debug.transform import TransformOptions
from biopsy.cli.progress import say_places, shows
from biopsy.findings.answers import AGREE, transformation_verdict
from biopsy.findings.model import model_tree
from biopsy.findings.report import versions_tree
from biopsy.findings.search_history import SearchHistory
from biopsy.model.index import ModelIndex
from biopsy.questions.transformations.check import STAGE
from biopsy.questions.transformations.find import CONTROL, side_by_side
from biopsy.questions.transformations.findings import TransformationFindings
from biopsy.questions.transformations.question import SameEngine, TransformationQuestion
from biopsy.text import count, is_refused, line_of, printable, series, some_of

_MOST_LINES = 60


class TransformProgress(ReductionReport):
    """Listens to the search, and to the reduction in it."""

    def __init__(self, console: Console, log: Path | None) -> None:
        super().__init__(console, log, "none")
        self._description = ""
        self._has_failed = False
        self._asked = 0

    def show_plan(self, question: TransformationQuestion) -> None:
        """Say what is going to happen."""
        decides = question.decides
        where = f"in {decides.engine}" if isinstance(decides, SameEngine) else "by the check"
        self.line("transform", f"{question.index.path} by {printable(question.tool.text)}, before and after {where}")

    @shows(events.OriginalFails)
    def _show_the_failure(self, event: events.OriginalFails) -> None:
        if self._has_failed:
            return  # the reduction finds it once more
        self._has_failed = True
        self.line("fails", f"{event.reason} · {event.seconds:.2f} s")

    @shows(events.Checking)
    def _show_asking(self, event: events.Checking) -> None:
        self._description = event.description
        self._asked += 1
        self._live.update(event.stage, f"{count(self._asked, 'check')} · {event.description[:70]}")

    @shows(events.Checked)
    def _show_answer(self, event: events.Checked) -> None:
        self._console.detail(f"  check {event.number}  {self._description}: {event.outcome}: {event.reason}")
        if event.stage == STAGE and self._description == CONTROL:
            right = "right" if event.outcome == "passed" else "wrong"
            self.line("control", f"{CONTROL}, with no pass: {right} · {event.seconds:.2f} s")


def say_findings(console: Console, options: TransformOptions, found: TransformationFindings) -> None:
    """The end: the answer, the piece before and after, how the pass is left out, and what to do next."""
    console.note("")
    console.say(printable(found.sentence))
    if found.fault == "control":
        console.say("So the format, or the comparison, is what is wrong: no pass was looked at.")
    if found.where.second_opinion == "right":
        console.warn(AGREE)
    piece = found.piece
    console.say(f"{len(piece.nodes)} of {count(piece.nodes_before, 'node')}: {some_of(piece.nodes, 12)}")
    say_places(console, piece.sources)
    console.say("")
    title = printable(f"after {found.tool} {found.release}".strip())
    after = piece.after or ("it writes no model",)
    lines = side_by_side(piece.before, after, console.columns, ("before", title))
    console.say(*lines[:_MOST_LINES], *([f"... {len(lines) - _MOST_LINES} more lines"] * (len(lines) > _MOST_LINES)))
    console.say("")
    _say_passes(console, found)
    for what, path in (("piece", piece.path), ("after", piece.after_path), ("inputs", piece.inputs)):
        if path is not None:
            console.note(f"{what:<8} {path}")
    console.note(f"{count(found.checks, 'check')} · {found.seconds:.1f} s")
    say_advice(console, _advice(options, found))


def _say_passes(console: Console, found: TransformationFindings) -> None:
    passes = found.passes
    if found.fault == "control":
        return
    if not passes.all:
        console.say("The tool gives its passes no names.")
        return
    if not passes.alone:
        console.say(f"Its {count(len(passes.all), 'pass', 'passes')} by name do not show it: it cannot be said which.")
        return
    console.say(f"{series(passes.alone)} alone {'does' if len(passes.alone) == 1 else 'do'} it, of {len(passes.all)}.")
    if not passes.without:
        console.say("No set of passes was found without which it is right.")
        return
    for number, one in enumerate(passes.without):
        sure = "" if passes.verified or number else " (not confirmed by fresh processes)"
        console.say(f"It is {'also ' if number else ''}right without {some_of(one, 6)}{sure}.")
    if passes.whole_is_right is False:
        console.say(f"The whole model is wrong without it too: {passes.whole}.")
    elif passes.whole_is_right:
        console.say("So is the whole model.")
    for what, line in (("leave out", passes.omission.command), ("Python", passes.omission.python)):
        if line:
            console.say(f"{what:<10} {line}")


def _advice(options: TransformOptions, found: TransformationFindings) -> list[Advice]:
    """Lines that go on from here."""
    if found.piece.path is None:
        return []
    words = ["biopsy", "debug", "transform", str(found.piece.path), "--by", options.by, "--no-reduce"]
    words += ["--engine", found.where.engine] if found.where.engine and options.engines else []
    words += ["--load-inputs", str(found.piece.inputs)] if found.piece.inputs else []
    packages = [word for one in options.packages for word in ("--package", one)]
    lines = [(line_of([*words, *packages]), "the piece, once more")] if not options.check else []
    lines.append((line_of(["biopsy", "inspect", "model", str(found.piece.path), "--mode=full"]), "the piece in full"))
    return [Advice(line, why) for line, why in lines if not is_refused(line)]


def sections(
    options: TransformOptions, found: TransformationFindings, index: ModelIndex, history: SearchHistory
) -> Mapping[str, Any]:
    """What a report tells."""
    return {
        "verdict": transformation_verdict(found),
        "model": model_tree(index, options.model),
        "versions": versions_tree([found.where.engine] if found.where.engine else []),
        "search": history.tree(),
        "transformation": found.as_json(),
        "next": [vars(one) for one in _advice(options, found)],
    }
