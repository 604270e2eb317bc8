"""Listeners that show long work on the terminal, and what several commands print: the output of a check, where nodes
come from in their author's code, and the last line of repeated checks.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from biopsy import errors, events
from biopsy.checks.judge import rate_text
from biopsy.checks.outcome import Outcome
from biopsy.cli.arguments.checks import ShownChecks
from biopsy.cli.console import COLUMN, Console, LiveLine, LogFile
from biopsy.findings.report import SearchHistory
from biopsy.model.sources import NodeSource, group_name, places_of
from biopsy.processes.writing import cannot_write
from biopsy.text import count, series, size_text

_CHANGE_WIDTH = 28
"""Width of the column with what a pass has changed."""


class Progress:
    """Listens to long work: logs each event and shows it. A subclass overrides ``show`` for events of its own.

    ``log`` is the file of ``--events``, if any. ``history`` collects what a report says about the events.
    """

    def __init__(self, console: Console, log: Path | None) -> None:
        self._console = console
        self._live = LiveLine(console)
        self._started = started = time.monotonic()
        self._log = EventLog(log, started)
        self.history = SearchHistory(started)
        self._end = events.CommandEnded(status=0)

    def __enter__(self) -> Self:
        """Raises UsageError if the log cannot be written."""
        self._log.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        try:
            if value is None:
                self._log.write(self._end)
            else:
                with contextlib.suppress(errors.UsageError):  # the other error is the one to end with
                    self._log.write(events.CommandEnded(status=errors.status_of(value)))
        finally:
            self._log.__exit__()

    def ended(self, status: int, nodes: Sequence[str] = ()) -> int:
        """Set the exit status and the resulting nodes for the last event; returns the status."""
        self._end = events.CommandEnded(status=status, nodes=tuple(nodes))
        return status

    def __call__(self, event: events.Event) -> None:
        """Log an event, remember it for a report, and show it."""
        self.keep(event)
        self.show(event)

    def keep(self, event: events.Event) -> None:
        """Log an event, and remember it for a report, without showing it."""
        self._log.write(event)
        self.history(event)

    def line(self, head: str, text: str) -> None:
        """Show a line that stays: a word in the first column, and a text."""
        self._live.stop()
        self._console.note(f"{head:<{COLUMN}} {text}")

    def show_output(self, shown: ShownChecks, output: bytes, *, is_first: bool) -> None:
        """Show what a check printed, if the user wants it; ``is_first``: it is the first failure, or the first such."""
        if shown.show_output or (is_first and not shown.hide_fail_output):
            self._live.stop()
            say_output(self._console, output, whole=shown.show_output)

    def pass_line(self, done: events.PassDone, change: str) -> None:
        """Show a line for a pass, with its cost in a column of its own."""
        self._live.stop()
        named = f"{done.stage:<{COLUMN}} {change}"
        self._console.note(
            f"{named:<{COLUMN + 1 + _CHANGE_WIDTH}} {count(done.checks, 'check')} · {done.seconds:.1f} s"
        )

    def show(self, event: events.Event) -> None:
        """Show an event: on the live line, as a line that stays, as a line only with -v, or not at all."""
        match event:
            case events.Abandoned():
                self._console.detail(f"  check {event.number}  not waited for: another answer made it unnecessary")
            case events.ChecksInFlight():
                self._live.beside(in_flight_text(event))
            case events.InstallationStarted():
                self._live.update("install", f"{_requirements_text(event)} by {event.installer}")
            case events.InstallationDone():
                added = f" with {series(event.added)}, which it needs" if event.added else ""
                what = f"{_requirements_text(event)}{added}"
                if event.cached:
                    self._console.detail(f"  install  {what}: from the cache")
                else:
                    self.line("install", f"{what} · {size_text(event.bytes)} · {event.seconds:.1f} s")
            case events.Remark():
                self._live.stop()
                (self._console.warn if event.warning else self._console.remark)(event.text, *event.lines)


def _requirements_text(event: events.InstallationStarted | events.InstallationDone) -> str:
    return f"{series(event.requirements)} for Python {event.python}"


def in_flight_text(event: events.ChecksInFlight) -> str:
    """``14 running on 3 machines, 2 waiting, 5 cancelled``, without counts of 0 unless all are."""
    others = ((event.waiting, "waiting"), (event.cancelled, "cancelled"))
    texts = [f"{number} {what}" for number, what in others if number]
    running = [running_text(event.running, event.machines)] if event.running or not texts else []
    return ", ".join([*running, *texts])


def running_text(running: int, machines: int | None) -> str:
    """``14 running on 3 machines``; ``14 running`` as long as there is no machine."""
    return f"{running} running on {count(machines, 'machine')}" if machines else f"{running} running"


def time_left(seconds: float) -> str:
    """``about 2 s left``, ``about 3 min left``."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes < 90 else f"about {minutes / 60:.1f} h left"


_MOST_BYTES_LOGGED = 1 << 16
"""The most bytes of one check's output in the file: some checks print gigabytes."""


class EventLog:
    """The file of ``--events``: one JSON object a line; no file if ``path`` is None.

    Each object has the seconds since ``started``, a time of ``time.monotonic`` (default: now).
    """

    def __init__(self, path: Path | None, started: float | None = None) -> None:
        self._path = path
        self._started = time.monotonic() if started is None else started
        self._file: LogFile | None = None

    def __enter__(self) -> EventLog:
        """Raises UsageError if the file cannot be written."""
        if self._path is not None:
            self._file = LogFile(self._path)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, event: events.Event) -> None:
        """Write one event at once, for readers that follow the file; a long output loses its middle."""
        if self._file is None or self._path is None:
            return
        plain = dict(vars(event))
        output = plain.get("output")
        if isinstance(output, bytes):
            half = _MOST_BYTES_LOGGED // 2
            if len(output) > _MOST_BYTES_LOGGED:
                output = output[:half] + b"\n[... cut by biopsy ...]\n" + output[-half:]
            plain["output"] = output.decode("utf-8", "backslashreplace")
        at = round(time.monotonic() - self._started, 4)
        try:
            self._file.write(json.dumps({"event": event.kind, "at": at, **plain}))
        except OSError as error:
            raise cannot_write(self._path, error) from error


class CheckProgress(Progress):
    """Shows checks as they run, and their output as ``--show-output`` and ``--hide-fail-output`` say.

    ``head`` stands before the check that is running. ``needs`` is what takes several runs if the failure is flaky, such
    as "a release passes".
    """

    def __init__(self, console: Console, shown: ShownChecks, *, head: str, needs: str) -> None:
        super().__init__(console, shown.events)
        self._shown = shown
        self._head = head
        self._needs = needs
        self._description = ""
        self._checks = 0
        self._shown_failure = False

    def show(self, event: events.Event) -> None:
        """Show the checks, and what is learnt of the failure."""
        match event:
            case events.Checking():
                self._description = event.description
                self._checks += 1
                self._live.update(self._head, f"{count(self._checks, 'check')} · {event.description[:70]}")
            case events.OriginalFails():
                self.line("fails", f"{event.reason} · {event.seconds:.2f} s")
            case events.FlakyFailure():
                rate = f"it fails in {event.failed} of {event.runs} runs{event.beside}"
                self.line("flaky", f"{rate}: {self._needs} if {event.needed} runs with it pass")
            case events.Checked():
                what = f"check {event.number}  {self._description[:100]}"
                self._console.detail(f"  {what}: {event.outcome}: {event.reason}")
                is_first = event.outcome == "reproduced" and not self._shown_failure
                self._shown_failure = self._shown_failure or is_first
                self.show_output(self._shown, event.output, is_first=is_first)
            case _:
                super().show(event)


class ModelProgress(Progress):
    """Shows the model, and which of its values were recorded."""

    def show(self, event: events.Event) -> None:
        """Show the model, and what was recorded."""
        match event:
            case events.ModelRead():
                inputs, outputs = count(event.inputs, "input"), count(event.outputs, "output")
                what = f"{count(event.nodes, 'node')} · opset {event.opset} · {inputs}, {outputs}"
                self.line("model", f"{event.name} · {what} · {size_text(event.weight_bytes)} of weights")
            case events.Recorded():
                what = f"{count(event.tensors, 'tensor')} of {count(event.samples, 'sample')}"
                if event.of is not None:
                    samples = f" of {count(event.samples, 'sample')}" if event.samples > 1 else ""
                    what = f"golden values of {event.tensors} of {count(event.of, 'tensor')}{samples}"
                self.line("recorded", f"{event.engine} · {what}, {size_text(event.bytes)} · {event.seconds:.2f} s")
            case _:
                super().show(event)


class SearchProgress(ModelProgress, ABC):
    """Shows a search with a check: its candidates on the live line, and what is learnt on the way.

    ``shown`` says whose output is shown: "all" for every check's, or a word of the subclass. ``passes_by``, ``beyond``
    and ``span`` complete the sentences on flaky failures, on a search that a limit has ended, and on the time left.
    """

    passes_by: ClassVar[str]
    beyond: ClassVar[str]
    span: ClassVar[str] = ""

    def __init__(self, console: Console, log: Path | None, shown: str) -> None:
        super().__init__(console, log)
        self._shown = shown
        self._done = self._done_before_stage = 0
        self._stage = events.StageStarted("", 0, 0)

    @abstractmethod
    def left_text(self, left: int) -> tuple[str, int]:
        """What is left of the search in words, and its size at the beginning."""

    @abstractmethod
    def is_wanted(self, event: events.CheckedCandidate) -> bool:
        """Whether the output of this check is shown; not called if that of every check is."""

    def show(self, event: events.Event) -> None:
        """Show the candidates, and what is learnt of the failure."""
        match event:
            case events.StageStarted():
                self._stage, self._done_before_stage = event, self._done
            case events.CheckingCandidate():
                self._announce(event)
            case events.CheckedCandidate():
                self._done += 1
                answer = f"{event.outcome}: {event.reason} · {event.seconds:.2f} s"
                self._console.detail(f"  check {event.number}  {answer}")
                if self._shown == "all" or self.is_wanted(event) or self._console.verbosity > 0:
                    self._live.stop()
                    say_output(self._console, event.output, whole=self._shown == "all")
                    self._shown = "all" if self._shown == "all" else "none"
            case events.Resumed():
                self.line("resumed", f"{count(event.runs, 'check')} remembered in {event.journal}")
            case events.FlakyFailure():
                self.line("flaky", f"the same model fails in {rate_text(event.failed, event.runs)}{event.beside}")
                needed = f"a candidate passes only after {count(event.needed, 'run')} that {self.passes_by}"
                self.line("", f"{needed}: luck in less than {1 - event.confidence:.2g} of all cases")
            case events.Stopped():
                self.line("stopped", f"by {event.reason}, before the end: {self.beyond}")
            case _:
                super().show(event)

    def _announce(self, event: events.CheckingCandidate) -> None:
        self._console.detail(f"  check {event.number}  {event.description}: {event.line}")
        seconds = (time.monotonic() - self._started) / max(1, self._done)
        usual = self._stage.usual - (self._done - self._done_before_stage)
        left, size = self.left_text(event.left)
        parts = [
            left,
            f"{count(self._done, 'check')}{f', {1 / max(seconds, 1e-3):.1f}/s' if self._done else ''}",
            *([f"{time_left(usual * seconds)}{self.span}"] if usual > 0 and self._done > 2 else []),
            f"trying {event.description}",
        ]
        self._live.update(event.stage, " · ".join(parts), 1 - event.left / max(1, size))


_MOST_LINES_SHOWN = 20
_MOST_BYTES_SHOWN = 1 << 14


def say_output(console: Console, output: bytes, *, whole: bool) -> None:
    """Show what a check printed, indented; only its last lines unless ``whole``."""
    output = output.rstrip()
    # One by one: millions of lines at once would need many times their memory.
    lines: Iterable[bytes] = io.BytesIO(output)
    if not whole and output:
        lines = output[-_MOST_BYTES_SHOWN:].split(b"\n")[-_MOST_LINES_SHOWN:]
        left_out = output.count(b"\n") + 1 - len(lines)
        if left_out > 0:
            console.note(f"  | ... {left_out} lines before, shown by --show-output")
    for line in lines:
        console.quote(line.decode("utf-8", "backslashreplace").rstrip("\r\n"))


_MOST_PLACES = 6
_MOST_NODES = 8


def say_places(
    console: Console, sources: Sequence[NodeSource | None], *, head: str = "from  ", called: str = "node"
) -> None:
    """Show a line for each place in their author's code that nodes come from, with the numbers of these nodes.

    Nodes were listed before, and are counted from 1. The first line is the name of their group, if they have one.
    ``called`` is what the list calls them.
    """
    places = places_of(sources)
    name = group_name(sources) if len(sources) > 1 else ""
    if name:
        console.say(f"{head} {name}")
    for place in places[:_MOST_PLACES]:
        numbers = ", ".join(str(node + 1) for node in place.nodes[:_MOST_NODES])
        more = ", ..." if len(place.nodes) > _MOST_NODES else ""
        of = f" ({called} {numbers}{more})" if len(sources) > 1 else ""
        console.say(f"{head} {place.text}{of}")
    if len(places) > _MOST_PLACES:
        console.say(f"{'':<{len(head)}} and {len(places) - _MOST_PLACES} more places")


def finished_line(passed: int, runs: int) -> str:
    """The last line as Polygraphy writes it: ``Finished 5 iteration(s) | Passed: 5/5 | Pass Rate: 100.0%``."""
    return f"Finished {runs} iteration(s) | Passed: {passed}/{runs} | Pass Rate: {100.0 * passed / runs}%"


def inconclusive(outcomes: Mapping[Outcome, int], runs: str) -> errors.CheckError | None:
    """The error to end with if there were runs and none passed or failed; else None. ``runs``: "builds" or the like."""
    if not outcomes or outcomes.get(Outcome.PASSES, 0) + outcomes.get(Outcome.REPRODUCES, 0):
        return None
    counts = ", ".join(f"{times} {outcome.value}" for outcome, times in outcomes.items() if times)
    return errors.CheckError(
        f"nothing was concluded: none of the {runs} passed or failed ({counts})",
        next_steps=["run the line above by hand: the check must end with 0 where it passes, 1 where it fails"],
    )
