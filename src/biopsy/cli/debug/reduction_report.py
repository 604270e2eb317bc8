"""What a reduction shows: a line for each thing learnt, one live line on a terminal, and the end of it all."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import events
from biopsy.cli.progress import Report, say_output, time_left
from biopsy.model.weight_text import count, size_text

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.reduction.result import Reduction

_MOST_NODES_SHOWN = 24


class ReductionReport(Report):
    """Listens to a reduction. ``shown`` says whose output is shown: "all" checks', the "original"'s, or "none"."""

    def __init__(self, console: Console, log: Path | None, shown: str) -> None:
        super().__init__(console, log)
        self._shown = shown
        self._done = 0
        self._nodes = 0
        self._stage = events.StageStarted("", 0, 0)
        self._done_before_stage = 0

    def _on_ModelRead(self, event: events.ModelRead) -> None:  # noqa: N802
        self._nodes = event.nodes
        parts = [
            event.name,
            count(event.nodes, "node"),
            f"opset {event.opset}",
            f"{count(event.inputs, 'input')}, {count(event.outputs, 'output')}",
            f"{size_text(event.weight_bytes)} of weights",
        ]
        self.line("model", " · ".join(parts))

    def _on_Recorded(self, event: events.Recorded) -> None:  # noqa: N802
        what = f"{count(event.tensors, 'tensor')} of {count(event.samples, 'sample')}, {size_text(event.bytes)}"
        self.line("recorded", f"{event.engine} · {what} · {event.seconds:.2f} s")

    def _on_OriginalFails(self, event: events.OriginalFails) -> None:  # noqa: N802
        self.line("fails", f"the original: {event.reason} · {event.seconds:.2f} s")
        if event.signature != event.reason:
            self.line("", f"counted as the same failure: {event.signature}")

    def _on_Checking(self, event: events.Checking) -> None:  # noqa: N802
        self._console.detail(f"  check {event.number}  {event.doing}: {event.line}")
        self._update(event)

    def _on_StageStarted(self, event: events.StageStarted) -> None:  # noqa: N802
        self._stage, self._done_before_stage = event, self._done

    def _on_Checked(self, event: events.Checked) -> None:  # noqa: N802
        self._done += 1
        self._console.detail(f"  check {event.number}  {event.outcome}: {event.reason} · {event.seconds:.2f} s")
        first = event.stage == "original" and event.number == 0  # it is checked more than once
        if self._shown == "all" or (first and self._shown == "original") or self._console.verbosity > 0:
            self._live.stop()
            say_output(self._console, event.output, whole=self._shown == "all")

    def _on_StageDone(self, event: events.StageDone) -> None:  # noqa: N802
        self._live.stop()
        if event.before == event.after and (event.checks == 0 or event.stage == "suspects"):
            return  # a guess that was wrong proves nothing
        change = f"{event.before} -> {count(event.after, 'node')}"
        self.line(event.stage, f"{change:<28} {count(event.checks, 'check')} · {event.seconds:.1f} s")

    def _on_Resumed(self, event: events.Resumed) -> None:  # noqa: N802
        self.line("resumed", f"{count(event.runs, 'check')} remembered in {event.journal}")

    def _on_Wavers(self, event: events.Wavers) -> None:  # noqa: N802
        from biopsy.checks.repetition import rate_text

        self.line("flaky", f"the same model fails in {rate_text(event.failed, event.runs)}")
        needed = f"a candidate passes only after {count(event.needed, 'run')} that do not fail"
        self.line("", f"{needed}: luck in less than {1 - event.confidence:.2g} of all cases")

    def _on_Stopped(self, event: events.Stopped) -> None:  # noqa: N802
        self.line("stopped", f"by {event.reason}, before the end: smaller results may exist")

    def _on_Verified(self, event: events.Verified) -> None:  # noqa: N802
        often = "" if event.runs == 1 else f" in {event.failed} of {event.runs} fresh processes"
        self.line("verified", f"{event.path} fails in the same way{often}")

    def _update(self, event: events.Checking) -> None:
        seconds = (time.monotonic() - self._started) / max(1, self._done)
        usual = self._stage.usual - (self._done - self._done_before_stage)
        parts = [
            f"{event.left} of {count(self._nodes, 'node')} left",
            f"{count(self._done, 'check')}, {1 / max(seconds, 1e-3):.1f}/s",
            *([f"{time_left(usual * seconds)} in this pass"] if usual > 0 and self._done > 2 else []),
            f"trying {event.doing}",
        ]
        self._live.update(event.stage, " · ".join(parts), 1 - event.left / max(1, self._nodes))


def say_result(console: Console, result: Reduction, line: str) -> None:
    """The end of a reduction: what is left, what it cost, what else was met, what to do next.

    ``line`` goes on with it where a limit has ended it.
    """
    console.note("")
    labels = result.nodes
    shown = labels[:_MOST_NODES_SHOWN] if console.verbosity < 1 else labels
    more = f" and {len(labels) - len(shown)} more (-v shows all)" if len(shown) < len(labels) else ""
    console.say(f"{len(labels)} of {result.nodes_before} nodes   {' -> '.join(shown)}{more}")
    told = [f"{n} {what}" for what, n in result.outcomes.items()]
    told += [f"{result.remembered} remembered"] if result.remembered else []
    console.say(f"{count(result.checks, 'check')}   {' · '.join(told)}")
    console.say(f"{result.seconds:.1f} s   {result.output}, {size_text(result.output.stat().st_size)}")
    if result.inputs is not None:
        console.say(f"inputs   {result.inputs}, the recorded values that it is fed")
    if result.min_good is not None:
        console.say(f"passes   {result.min_good}, the passing model closest in size")
    for reason, times in result.other_failures.items():
        kept = result.other_models.get(reason)
        console.say(f"also met {times} x {reason}{f', as in {kept}' if kept else ''}")
    if result.stopped is not None:
        console.note(
            f"\nstopped by {result.stopped}: smaller results may exist\nresume   {line}    without that option"
        )
    console.note(f"\nNext     biopsy inspect model {shlex.quote(str(result.output))} --mode=full")
