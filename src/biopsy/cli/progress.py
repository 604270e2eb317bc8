"""What long work shows while it goes on: a listener that shows each event by its type, and logs them all."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from biopsy import errors, events
from biopsy.cli.event_log import EventLog
from biopsy.cli.live_line import COLUMN, LiveLine
from biopsy.quantities import count, size_text
from biopsy.report.search_history import SearchHistory
from biopsy.text import series

if TYPE_CHECKING:
    from biopsy.cli.console import Console

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
        self._methods = _methods_by_kind(type(self))
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
            self._log.__exit__(kind, value, trace)

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


def _methods_by_kind(listener: type[Progress]) -> dict[type[events.Event], Callable[[Any, Any], None]]:
    """The methods that ``shows`` has marked, by the type of event that they show."""
    marked = [method for base in reversed(listener.__mro__) for method in vars(base).values()]
    return {method.__dict__[_SHOWS]: method for method in marked if _SHOWS in getattr(method, "__dict__", ())}


def time_left(seconds: float) -> str:
    """``about 2 s left``, ``about 3 min left``."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes < 90 else f"about {minutes / 60:.1f} h left"
