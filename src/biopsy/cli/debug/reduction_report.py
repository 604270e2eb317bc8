"""What a reduction shows: a line for each thing learnt, one live line on a terminal, and the end of it all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import events
from biopsy.cli.advice import Advice, say_advice
from biopsy.cli.check_output import say_output
from biopsy.cli.code_places import say_places
from biopsy.cli.debug.variation_report import say_variation
from biopsy.cli.progress import Progress, shows, time_left
from biopsy.comparison.error_text import error_text
from biopsy.quantities import count, size_text
from biopsy.session.result_file import size_of
from biopsy.text import first_line

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.reduction.result import Reduction
    from biopsy.variation.result import Variation

_MOST_NODES_SHOWN = 24
_MOST_SOURCES_SHOWN = 8
_WIDEST_LABEL = 60


_MOST_REASONS = 3


class ReductionReport(Progress):
    """Listens to a reduction. ``shown`` says whose output is shown: "all" checks', the "original"'s, or "none"."""

    def __init__(self, console: Console, log: Path | None, shown: str) -> None:
        super().__init__(console, log)
        self._shown = shown
        self._done = 0
        self._nodes = 0
        self._stage = events.StageStarted("", 0, 0)
        self._done_before_stage = 0

    @shows(events.ModelRead)
    def _show_model(self, event: events.ModelRead) -> None:
        self._nodes = event.nodes
        parts = [
            event.name,
            count(event.nodes, "node"),
            f"opset {event.opset}",
            f"{count(event.inputs, 'input')}, {count(event.outputs, 'output')}",
            f"{size_text(event.weight_bytes)} of weights",
        ]
        self.line("model", " · ".join(parts))

    @shows(events.Recorded)
    def _show_recorded(self, event: events.Recorded) -> None:
        what = f"{count(event.tensors, 'tensor')} of {count(event.samples, 'sample')}, {size_text(event.bytes)}"
        self.line("recorded", f"{event.engine} · {what} · {event.seconds:.2f} s")

    @shows(events.OriginalFails)
    def _show_failure(self, event: events.OriginalFails) -> None:
        self.line("fails", f"the original: {event.reason} · {event.seconds:.2f} s")
        if event.signature != event.reason:
            self.line("", f"counted as the same failure: {event.signature}")

    @shows(events.CheckingCandidate)
    def _show_checking(self, event: events.CheckingCandidate) -> None:
        self._console.detail(f"  check {event.number}  {event.description}: {event.line}")
        self._update(event)

    @shows(events.StageStarted)
    def _show_stage_started(self, event: events.StageStarted) -> None:
        self._stage, self._done_before_stage = event, self._done

    @shows(events.CheckedCandidate)
    def _show_checked(self, event: events.CheckedCandidate) -> None:
        self._done += 1
        self._console.detail(f"  check {event.number}  {event.outcome}: {event.reason} · {event.seconds:.2f} s")
        first = event.stage == "original" and event.number == 0  # it is checked more than once
        if self._shown == "all" or (first and self._shown == "original") or self._console.verbosity > 0:
            self._live.stop()
            say_output(self._console, event.output, whole=self._shown == "all")

    @shows(events.PassDone)
    def _show_stage_done(self, event: events.PassDone) -> None:
        self._live.stop()
        if event.before == event.after and (event.checks == 0 or event.stage == "suspects"):
            return  # a guess that was wrong proves nothing
        change = f"{event.before} -> {count(event.after, 'node')}"
        self.pass_line(event, change)

    @shows(events.Resumed)
    def _show_resumed(self, event: events.Resumed) -> None:
        self.line("resumed", f"{count(event.runs, 'check')} remembered in {event.journal}")

    @shows(events.FlakyFailure)
    def _show_flakiness(self, event: events.FlakyFailure) -> None:
        from biopsy.checks.repetition import rate_text

        self.line("flaky", f"the same model fails in {rate_text(event.failed, event.runs)}")
        needed = f"a candidate passes only after {count(event.needed, 'run')} that do not fail"
        self.line("", f"{needed}: luck in less than {1 - event.confidence:.2g} of all cases")

    @shows(events.Stopped)
    def _show_stopped(self, event: events.Stopped) -> None:
        self.line("stopped", f"by {event.reason}, before the end: smaller results may exist")

    @shows(events.Verified)
    def _show_verified(self, event: events.Verified) -> None:
        often = "" if event.runs == 1 else f" in {event.failed} of {event.runs} fresh processes"
        on = f" on {event.machine}" if event.machine else ""
        self.line("verified", f"{event.path} fails in the same way{often}{on}")

    def _update(self, event: events.CheckingCandidate) -> None:
        seconds = (time.monotonic() - self._started) / max(1, self._done)
        usual = self._stage.usual - (self._done - self._done_before_stage)
        parts = [
            f"{event.left} of {count(self._nodes, 'node')} left",
            f"{count(self._done, 'check')}{f', {1 / max(seconds, 1e-3):.1f}/s' if self._done else ''}",
            *([f"{time_left(usual * seconds)} in this pass"] if usual > 0 and self._done > 2 else []),
            f"trying {event.description}",
        ]
        self._live.update(event.stage, " · ".join(parts), 1 - event.left / max(1, self._nodes))


def say_result(
    console: Console, result: Reduction, line: str, advice: Sequence[Advice], variation: Variation | None = None
) -> None:
    """The end of a reduction: what is left, what it cost, what else was met, what may vary, what to do next.

    ``line`` goes on with it where a limit has ended it.
    """
    console.note("")
    most = _MOST_NODES_SHOWN if console.verbosity < 1 else len(result.nodes)
    head = f"{len(result.nodes)} of {result.nodes_before} nodes"
    console.say(*_graph(head, result.nodes, result.reads, most))
    say_places(console, result.sources)
    told = [f"{n} {what}" for what, n in result.outcomes.items()]
    told += [f"{result.remembered} remembered"] if result.remembered else []
    console.say(f"{count(result.checks, 'check')}   {' · '.join(told)}")
    console.say(f"{result.seconds:.1f} s   {result.output}, {size_text(size_of(result.output))}")
    for title, size in (("original", result.error_before), ("result", result.error_after)):
        if size is not None:
            console.say(f"error   {title:<8}   {error_text(size)}")
    if result.inputs is not None:
        console.say(f"inputs   {result.inputs}, the recorded values that it is fed")
    if result.min_good is not None:
        console.say(f"passes   {result.min_good}, the passing model closest in size")
    for reason, times in result.other_failures.items():
        kept = result.other_models.get(reason)
        console.say(f"also met {times} x {reason}{f', as in {kept}' if kept else ''}")
    if result.cannot_say and len(result.nodes) > 1:
        for reason, times in sorted(result.cannot_say.items(), key=lambda entry: -entry[1])[:_MOST_REASONS]:
            console.say(f"could not say {times} x {first_line(reason)}")
        console.say("          such candidates count for nothing: with values for them the result may get smaller")
    say_variation(console, variation)
    if result.stopped is not None:
        console.note("", f"stopped by {result.stopped}: smaller results may exist", f"resume   {line}")
    say_advice(console, advice)


def _graph(head: str, labels: Sequence[str], reads: Sequence[Sequence[int]], most: int) -> Iterator[str]:
    """The lines of a small graph after ``head``: one with arrows for a chain, else one for each node with its sources.

    At most so many nodes are shown.
    """
    more = f"and {len(labels) - most} more (-v shows all)" if len(labels) > most else ""
    if all(tuple(sources) == ((place - 1,) if place else ()) for place, sources in enumerate(reads)):
        yield f"{head}   {' -> '.join(labels[:most])}{f' {more}' if more else ''}"
        return
    yield head
    width = min(_WIDEST_LABEL, max(map(len, labels[:most])))
    for place, (label, sources) in enumerate(zip(labels[:most], reads, strict=False), 1):
        told = ", ".join(str(source + 1) for source in sources[:_MOST_SOURCES_SHOWN])
        rest = ", ..." if len(sources) > _MOST_SOURCES_SHOWN else ""
        yield f"{place:>4}  {label:<{width}}  reads {told}{rest}" if told else f"{place:>4}  {label}"
    if more:
        yield f"      {more}"
