"""What long work shows while it goes on: a listener that shows each event by its type and logs them all, what a
check printed, where nodes come from in their author's code, and how repeated checks end.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, TypeVar

from biopsy import errors, events
from biopsy.checks.judge import rate_text
from biopsy.checks.outcome import Outcome
from biopsy.cli.arguments.checks import ShownChecks
from biopsy.cli.console import COLUMN, Console, LiveLine, LogFile
from biopsy.findings.search_history import SearchHistory
from biopsy.model.sources import NodeSource, group_name, places_of
from biopsy.processes.writing import cannot_write
from biopsy.text import count, series, size_text

Self = TypeVar("Self", bound="Progress")
Shower = TypeVar("Shower", bound="Progress")
Kind = TypeVar("Kind", bound=events.Event)

_CHANGE = 28
"""Width of what a pass has changed."""


def shows(kind: type[Kind]) -> Callable[[Callable[[Shower, Kind], None]], Callable[[Shower, Kind], None]]:
    """Mark the method of a ``Progress`` that shows events of one type, and of its subclasses without a method."""

    def mark(method: Callable[[Shower, Kind], None]) -> Callable[[Shower, Kind], None]:
        vars(method)[_SHOWS] = kind
        return method

    return mark


_SHOWS = "shows"
"""The attribute of a marked method: the type of event that it shows."""


class Progress:
    """Listens to long work: logs each event, and shows those of the types that a method is marked for by ``shows``.

    ``log`` is the file of ``--events``; None for none. ``history`` is what a report tells of the events. A subclass's
    method for a type replaces that of its base.
    """

    def __init__(self, console: Console, log: Path | None) -> None:
        listener = type(self)
        marked = [method for base in reversed(listener.__mro__) for method in vars(base).values()]
        self._methods = {
            method.__dict__[_SHOWS]: method for method in marked if _SHOWS in getattr(method, "__dict__", ())
        }
        self._console = console
        self._live = LiveLine(console)
        self._started = started = time.monotonic()
        self._log = EventLog(log, started)
        self.history = SearchHistory(started)
        self._end = events.CommandEnded(status=0)

    def __enter__(self: Self) -> Self:
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
        """Say with which exit status the command ends, and the nodes of its result; returns the status."""
        self._end = events.CommandEnded(status=status, nodes=tuple(nodes))
        return status

    def __call__(self, event: events.Event) -> None:
        """Take one event: log it, remember it for a report, show it."""
        self.keep(event)
        method = next((self._methods[kind] for kind in type(event).__mro__ if kind in self._methods), None)
        if method is not None:
            method(self, event)

    def keep(self, event: events.Event) -> None:
        """Log an event, and remember it for a report, without showing it."""
        self._log.write(event)
        self.history(event)

    def line(self, head: str, text: str) -> None:
        """Show a line for something that was learnt."""
        self._live.stop()
        self._console.note(f"{head:<{COLUMN}} {text}")

    def show_output(self, shown: ShownChecks, output: bytes, *, is_first: bool) -> None:
        """Show what a check printed, if that is asked for; ``is_first``: it is the first failure, or the first such."""
        if shown.show_output or (is_first and not shown.hide_fail_output):
            self._live.stop()
            say_output(self._console, output, whole=shown.show_output)

    def pass_line(self, done: events.PassDone, change: str) -> None:
        """Show a line for a pass: what it cost stands in one column, however long the name of the pass is."""
        self._live.stop()
        named = f"{done.stage:<{COLUMN}} {change}"
        self._console.note(f"{named:<{COLUMN + 1 + _CHANGE}} {count(done.checks, 'check')} · {done.seconds:.1f} s")

    @shows(events.Abandoned)
    def show_abandoned(self, event: events.Abandoned) -> None:
        """Show, with -v, that a check that was announced has no answer."""
        self._console.detail(f"  check {event.number}  not waited for: another answer made it unnecessary")

    @shows(events.ChecksInFlight)
    def show_in_flight(self, event: events.ChecksInFlight) -> None:
        """Show how many checks go on at once, where there is a line that changes."""
        self._live.beside(in_flight_text(event))

    @shows(events.InstallationStarted)
    def show_installing(self, event: events.InstallationStarted) -> None:
        """Show that packages are being installed, as long as that takes."""
        self._live.update("install", f"{_asked_for(event)} by {event.installer}")

    @shows(events.InstallationDone)
    def show_installed(self, event: events.InstallationDone) -> None:
        """Show what was installed; with -v, that it was there already."""
        added = f" with {series(event.added)}, which it needs" if event.added else ""
        if event.cached:
            self._console.detail(f"  install  {_asked_for(event)}{added}: from the cache")
            return
        self.line("install", f"{_asked_for(event)}{added} · {size_text(event.bytes)} · {event.seconds:.1f} s")

    @shows(events.Remark)
    def show_remark(self, event: events.Remark) -> None:
        """Show a remark, or a warning."""
        self._live.stop()
        (self._console.warn if event.warning else self._console.remark)(event.text, *event.lines)


def _asked_for(event: events.InstallationStarted | events.InstallationDone) -> str:
    return f"{series(event.requirements)} for Python {event.python}"


def in_flight_text(event: events.ChecksInFlight) -> str:
    """``14 running on 3 machines, 2 waiting, 5 cancelled``: nothing of what is none, unless all is."""
    more = [
        f"{number} {what}" for number, what in ((event.waiting, "waiting"), (event.cancelled, "cancelled")) if number
    ]
    running = [running_text(event.running, event.machines)] if event.running or not more else []
    return ", ".join([*running, *more])


def running_text(running: int, machines: int | None) -> str:
    """``14 running on 3 machines``; where there are none yet, without them."""
    where = f" on {count(machines, 'machine')}" if machines else ""
    return f"{running} running{where}"


def time_left(seconds: float) -> str:
    """``about 2 s left``, ``about 3 min left``."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes < 90 else f"about {minutes / 60:.1f} h left"


# The file of ``--events``: what long work tells about itself, as JSON lines.

_MOST_BYTES_LOGGED = 1 << 16
"""Of one output: there are as many as checks, and some checks print gigabytes."""


class EventLog:
    """The file of ``--events``: one JSON object a line; nothing if ``path`` is None.

    Each says when it was written: seconds since ``started`` (by ``time.monotonic``), or since now.
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
        """Write one event, at once, so that who follows the file sees it. An output loses its middle if it is long."""
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
    """Shows checks as they run, and their output as ``--show-output`` and ``--hide-fail-output`` ask.

    ``head`` stands before the check that is running. ``needs`` says what counts only after several runs if the failure
    is flaky, such as "a release passes".
    """

    def __init__(self, console: Console, shown: ShownChecks, *, head: str, needs: str) -> None:
        super().__init__(console, shown.events)
        self._shown = shown
        self._head = head
        self._needs = needs
        self._description = ""
        self._checks = 0
        self._shown_failure = False

    @shows(events.Checking)
    def _show_checking(self, event: events.Checking) -> None:
        self._description = event.description
        self._checks += 1
        self._live.update(self._head, f"{count(self._checks, 'check')} · {event.description[:70]}")

    @shows(events.OriginalFails)
    def _show_failure(self, event: events.OriginalFails) -> None:
        self.line("fails", f"{event.reason} · {event.seconds:.2f} s")

    @shows(events.FlakyFailure)
    def _show_flakiness(self, event: events.FlakyFailure) -> None:
        rate = f"it fails in {event.failed} of {event.runs} runs"
        self.line("flaky", f"{rate}: {self._needs} if {event.needed} runs with it pass")

    @shows(events.Checked)
    def _show_checked(self, event: events.Checked) -> None:
        self._console.detail(f"  check {event.number}  {self._description[:100]}: {event.outcome}: {event.reason}")
        is_first = event.outcome == "reproduced" and not self._shown_failure
        self._shown_failure = self._shown_failure or is_first
        self.show_output(self._shown, event.output, is_first=is_first)


class ModelProgress(Progress):
    """Shows the model that is asked about, and what was recorded of it."""

    @shows(events.ModelRead)
    def _show_model(self, event: events.ModelRead) -> None:
        inputs, outputs = count(event.inputs, "input"), count(event.outputs, "output")
        what = f"{count(event.nodes, 'node')} · opset {event.opset} · {inputs}, {outputs}"
        self.line("model", f"{event.name} · {what} · {size_text(event.weight_bytes)} of weights")

    @shows(events.Recorded)
    def _show_recorded(self, event: events.Recorded) -> None:
        what = f"{count(event.tensors, 'tensor')} of {count(event.samples, 'sample')}"
        if event.of is not None:
            samples = f" of {count(event.samples, 'sample')}" if event.samples > 1 else ""
            what = f"golden values of {event.tensors} of {count(event.of, 'tensor')}{samples}"
        self.line("recorded", f"{event.engine} · {what}, {size_text(event.bytes)} · {event.seconds:.2f} s")


class SearchProgress(ModelProgress, ABC):
    """Shows a search with a check: its candidates on the live line, and what a person must know of its answers.

    ``shown`` says whose output is shown, in words of the subclass, of which "all" are those of every check.
    ``passes_by``, ``beyond`` and ``span`` complete the sentences on flaky failures, on a search that a limit has ended,
    and on the time that is left.
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
        """What is left of the search in words, and how much there was."""

    @shows(events.StageStarted)
    def _show_stage_started(self, event: events.StageStarted) -> None:
        self._stage, self._done_before_stage = event, self._done

    @shows(events.CheckingCandidate)
    def _show_checking(self, event: events.CheckingCandidate) -> None:
        self._console.detail(f"  check {event.number}  {event.description}: {event.line}")
        seconds = (time.monotonic() - self._started) / max(1, self._done)
        usual = self._stage.usual - (self._done - self._done_before_stage)
        left, whole = self.left_text(event.left)
        parts = [
            left,
            f"{count(self._done, 'check')}{f', {1 / max(seconds, 1e-3):.1f}/s' if self._done else ''}",
            *([f"{time_left(usual * seconds)}{self.span}"] if usual > 0 and self._done > 2 else []),
            f"trying {event.description}",
        ]
        self._live.update(event.stage, " · ".join(parts), 1 - event.left / max(1, whole))

    @shows(events.CheckedCandidate)
    def _show_checked(self, event: events.CheckedCandidate) -> None:
        self._done += 1
        self._console.detail(f"  check {event.number}  {event.outcome}: {event.reason} · {event.seconds:.2f} s")
        if self._shown == "all" or self.is_wanted(event) or self._console.verbosity > 0:
            self._live.stop()
            say_output(self._console, event.output, whole=self._shown == "all")
            self._shown = "all" if self._shown == "all" else "none"

    @abstractmethod
    def is_wanted(self, event: events.CheckedCandidate) -> bool:
        """Whether this is the one check whose output is shown, where not that of every check is."""

    @shows(events.Resumed)
    def _show_resumed(self, event: events.Resumed) -> None:
        self.line("resumed", f"{count(event.runs, 'check')} remembered in {event.journal}")

    @shows(events.FlakyFailure)
    def _show_flakiness(self, event: events.FlakyFailure) -> None:
        self.line("flaky", f"the same model fails in {rate_text(event.failed, event.runs)}")
        needed = f"a candidate passes only after {count(event.needed, 'run')} that {self.passes_by}"
        self.line("", f"{needed}: luck in less than {1 - event.confidence:.2g} of all cases")

    @shows(events.Stopped)
    def _show_stopped(self, event: events.Stopped) -> None:
        self.line("stopped", f"by {event.reason}, before the end: {self.beyond}")


# What a check printed, as a person sees it.

_MOST_LINES_SHOWN = 20
_MOST_BYTES_SHOWN = 1 << 14


def say_output(console: Console, output: bytes, *, whole: bool) -> None:
    """What a check printed, indented; only its last lines unless ``whole``."""
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


# Where nodes come from in the code of their author: a line for each place, not for each node.

_MOST_PLACES = 6
_MOST_NODES = 8


def say_places(
    console: Console, sources: Sequence[NodeSource | None], *, head: str = "from  ", called: str = "node"
) -> None:
    """Say the places of some nodes that were listed before, and which of them come from each, counted from 1.

    Of several nodes it is said first what they are together. Nothing is said of nodes without a source. ``called`` is
    what they were listed as.
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


# How a command ends that runs a check again and again: its last line, and its status where the check said nothing.


def finished_line(passed: int, runs: int) -> str:
    """``Finished 5 iteration(s) | Passed: 5/5 | Pass Rate: 100.0%``; a run that did not pass counts as failed."""
    return f"Finished {runs} iteration(s) | Passed: {passed}/{runs} | Pass Rate: {100.0 * passed / runs}%"


def inconclusive(outcomes: Mapping[Outcome, int], runs: str) -> errors.CheckError | None:
    """The error to end with where no run has passed or failed, of which nothing can be concluded; else None.

    ``runs`` is what they are called, in the plural.
    """
    if not outcomes or outcomes.get(Outcome.PASSES, 0) + outcomes.get(Outcome.REPRODUCES, 0):
        return None
    told = ", ".join(f"{times} {outcome.value}" for outcome, times in outcomes.items() if times)
    return errors.CheckError(
        f"nothing was concluded: none of the {runs} passed or failed ({told})",
        next_steps=["run the line above by hand: the check must end with 0 where it passes, 1 where it fails"],
    )
