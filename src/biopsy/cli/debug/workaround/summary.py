"""What ``biopsy debug workaround`` shows: a line for each thing learnt, the best three, what to type."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import events
from biopsy.cli.advice import Advice, say_advice
from biopsy.cli.check_output import say_output
from biopsy.cli.live_line import COLUMN
from biopsy.cli.progress import Progress, shows
from biopsy.quantities import count
from biopsy.shell_words import is_refused
from biopsy.text import first_of, series

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.model.index import ModelIndex
    from biopsy.workarounds.result import VerifiedChange, Workarounds

_MOST_NODES = 6
_MOST_NAMED = 4
_MOST_LINES = 12
"""Lines of a difference that are shown without -v."""

_WIDTH = 44


class WorkaroundProgress(Progress):
    """A line for what was learnt on the way, and the output of the first failure."""

    def __init__(self, console: Console, args: argparse.Namespace) -> None:
        super().__init__(console, args.events)
        self._args = args
        self._checks = 0
        self._shown_failure = False
        self._stage = ""

    @shows(events.Checking)
    def _show_checking(self, event: events.Checking) -> None:
        self._checks += 1
        self._live.update(self._stage or "check", f"{count(self._checks, 'check')} · {event.description[:70]}")

    @shows(events.OriginalFails)
    def _show_failure(self, event: events.OriginalFails) -> None:
        if not self._stage:
            self.line("fails", f"{event.reason} · {event.seconds:.2f} s")

    @shows(events.FlakyFailure)
    def _show_flakiness(self, event: events.FlakyFailure) -> None:
        rate = f"it fails in {event.failed} of {event.runs} runs"
        self.line("flaky", f"{rate}: a change is a workaround if {event.needed} runs with it pass")

    @shows(events.Trusted)
    def _show_trusted(self, event: events.Trusted) -> None:
        agrees = f", as {event.confirmed_by} does" if event.confirmed_by else ""
        samples = f"{count(event.samples, 'sample')} of the check, {count(event.fresh, 'fresh one')}"
        self.line("right", f"what {event.engine} gives{agrees} · {samples} · {event.seconds:.1f} s")

    @shows(events.StageStarted)
    def _show_stage(self, event: events.StageStarted) -> None:
        self._stage = event.stage

    @shows(events.PlacesFound)
    def _show_places(self, event: events.PlacesFound) -> None:
        more = f" and {len(event.nodes) - _MOST_NODES} more" if len(event.nodes) > _MOST_NODES else ""
        if event.nodes:
            self.line("piece", f"{', '.join(event.nodes[:_MOST_NODES])}{more}")

    @shows(events.ChangeTried)
    def _show_tried(self, event: events.ChangeTried) -> None:
        slower = "" if event.latency is None else f" · {event.latency:.2f} times as long"
        told = f"right{slower}" if event.right else f"no: {' '.join(event.reason.split())}"[:100]
        if event.right or self._console.verbosity > 0:
            self.line(event.change, f"{event.text:<{_WIDTH}} {told}")

    @shows(events.Checked)
    def _show_checked(self, event: events.Checked) -> None:
        self._console.detail(f"  check {event.number}  {event.outcome}: {event.reason}")
        failed = event.outcome == "reproduced"
        if self._args.show_output or (failed and not self._shown_failure and not self._args.hide_fail_output):
            self._shown_failure = True
            self._live.stop()
            say_output(self._console, event.output, whole=self._args.show_output)


def say_result(console: Console, found: Workarounds, index: ModelIndex, lines: Mapping[int, str]) -> None:
    """The best workarounds in the order of what they cost; ``lines`` are the checks that show them, by their place."""
    console.note("")
    _say_tried(console, found)
    if not found.found:
        tried = len({(one.kind, one.text) for one in found.tried})
        told = "Nothing that was tried makes the model right" if tried else "No change could be tried"
        early = f"; stopped by {found.stopped}" if found.stopped else ""
        console.say(f"{told}: {count(tried, 'change')}, {count(found.checks, 'check')}{early}.")
        return
    samples = f"{count(found.trust.samples, 'sample')} and {count(found.trust.fresh, 'fresh input')}"
    console.say(f"{count(len(found.best), 'workaround')}, right on {samples}, the cheapest first:")
    for number, one in enumerate(found.best, 1):
        _say_one(console, number, one, index)
    _say_others(console, found)
    if found.stopped:
        console.note(f"The search was stopped by {found.stopped}: others may exist.")
    patched = found.patched
    if patched is not None and found.output is not None:
        _say_difference(console, patched, found.output)
    say_advice(console, advice_of(lines))


def advice_of(lines: Mapping[int, str]) -> list[Advice]:
    """The lines to type."""
    return [
        Advice(line, f"workaround {number}: the check passes") for number, line in lines.items() if not is_refused(line)
    ]


def _say_tried(console: Console, found: Workarounds) -> None:
    """What does not help: settings and releases by name, of changes of the model how many (-v tells each of them)."""
    refused = [one for one in found.tried if not one.right]
    for kind in dict.fromkeys(one.kind for one in refused):
        texts = [one.text for one in refused if one.kind == kind]
        told = first_of(texts, _MOST_NAMED) if kind in ("setting", "release") else f"{len(texts)} tried"
        console.note(f"{'no help':<{COLUMN}} {kind}: {told}")


def _say_others(console: Console, found: Workarounds) -> None:
    others = [one.kind for one in found.found if not any(one is best for best in found.best)]
    if others:
        kinds = series([f"{others.count(kind)} {kind}" for kind in dict.fromkeys(others)])
        console.note(f"{'also':<{COLUMN}} {kinds}, as above")


def _say_one(console: Console, number: int, one: VerifiedChange, index: ModelIndex) -> None:
    from biopsy.engines.registry import parse_spec
    from biopsy.report.engine_calls import calls_of

    console.say(f"  {number}  {one.kind:<{COLUMN}} {one.text}")
    details = [one.latency.text] if one.latency is not None else []
    if one.changes_model:
        details.append(f"changes {series(list(one.nodes))}")
    else:
        details += [f"--engine {one.engine}", *(f"{name}={value}" for name, value in one.environment.items())]
    console.say(f"     {'':<{COLUMN}} {' · '.join(details)}")
    for limit in one.holds:
        console.say(f"     {'':<{COLUMN}} the same function for {limit}")
    for line in () if one.changes_model else calls_of(parse_spec(one.engine), index):
        console.note(f"     {'':<{COLUMN}} {line}")


def _say_difference(console: Console, patched: VerifiedChange, output: Path) -> None:
    console.note("")
    console.say(f"{output!s:<{COLUMN}} {patched.text}")
    most = len(patched.difference) if console.verbosity > 0 else _MOST_LINES
    for line in patched.difference[:most]:
        console.say(f"  {line}")
    if len(patched.difference) > most:
        console.note(f"  and {count(len(patched.difference) - most, 'more line')} (-v shows them)")


def sections(
    found: Workarounds, index: ModelIndex, progress: WorkaroundProgress, lines: Mapping[int, str]
) -> Mapping[str, Any]:
    """What a report tells."""
    from biopsy.report.model_summary import model_tree_of
    from biopsy.report.versions import versions_tree
    from biopsy.report.workarounds import workarounds_tree, workarounds_verdict

    engines = [found.trust.reference, *filter(None, [found.trust.confirmed_by]), found.engine]
    return {
        "verdict": workarounds_verdict(found, lines),
        "model": model_tree_of(Path(found.model)),
        "versions": versions_tree(engines),
        "search": progress.history.tree(),
        "next": [vars(one) for one in advice_of(lines)],
        "workaround": workarounds_tree(found, index),
    }
