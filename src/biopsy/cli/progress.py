"""What long work shows while it goes on: one live line on a terminal, outputs of checks, events as JSON lines."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import singledispatchmethod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from biopsy import events
from biopsy.filesystem.write import cannot_write, open_anew
from biopsy.text import printable, shortened

if TYPE_CHECKING:
    from biopsy.cli.console import Console

Some = TypeVar("Some", bound="Report")

COLUMN = 10
"""Width of the first word of a line."""

_LONGEST_SHOWN = 300
"""Characters of the line that changes: it must stay one, or few, to be taken away again."""
_MOST_LINES_SHOWN = 20
_MOST_BYTES_SHOWN = 1 << 14
_MOST_BYTES_LOGGED = 1 << 16
"""Of one output in a file of events: there are as many as checks, and some checks print gigabytes."""


class LiveLine:
    """One line at the end of a terminal that changes; nothing where stderr is no terminal, with -v or with -q.

    Nor where questions are asked: it would be painted over them, again and again.
    """

    def __init__(self, console: Console) -> None:
        self._wanted = sys.stderr.isatty() and console.verbosity == 0 and not console.asks
        self._shown: Any = None

    def update(self, head: str, text: str, done: float = 0.0) -> None:
        """Show a line; ``done`` is the part of the work that is behind, from 0 to 1."""
        if not self._wanted:
            return
        if self._shown is None:
            from rich.console import Console as Terminal
            from rich.progress import BarColumn, Progress, TextColumn

            self._shown = Progress(
                TextColumn("{task.fields[head]}", markup=False),
                BarColumn(bar_width=12),
                TextColumn("{task.description}", markup=False),
                console=Terminal(stderr=True),
                transient=True,
            )
            self._shown.add_task("", total=1.0, head="")
            self._shown.start()
        task = self._shown.task_ids[0]
        told = shortened(printable(text), _LONGEST_SHOWN)
        self._shown.update(task, description=told, completed=done, head=f"{printable(head):<{COLUMN}}")

    def stop(self) -> None:
        """Take the line away."""
        if self._shown is not None:
            self._shown.stop()
            self._shown = None


class EventLog:
    """The file of ``--events``: one JSON object a line; nothing if ``path`` is None."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stream: TextIO | None = None

    def __enter__(self) -> EventLog:
        """Raises UsageError if the file cannot be written."""
        if self._path is not None:
            self._stream = io.TextIOWrapper(open_anew(self._path), encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):  # what could not be written was told of then
                self._stream.close()

    def write(self, event: events.Event) -> None:
        """Write one event, at once, so that who follows the file sees it."""
        if self._stream is None or self._path is None:
            return
        plain = {
            key: _cut(value).decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
            for key, value in asdict(event).items()
        }
        try:
            self._stream.write(json.dumps({"event": event.kind, **plain}) + "\n")
            self._stream.flush()
        except OSError as error:
            raise cannot_write(self._path, error) from error


def _cut(output: bytes) -> bytes:
    """An output without its middle if it is long."""
    if len(output) <= _MOST_BYTES_LOGGED:
        return output
    half = _MOST_BYTES_LOGGED // 2
    return output[:half] + b"\n[... cut by biopsy ...]\n" + output[-half:]


class Report:
    """What listens to long work: logs each event, and shows those that are worth it.

    ``log`` is the file of ``--events``; None for none. A report of one kind of work has a ``show`` of its own, which
    dispatches by the type of the event and hands on what it has no method for.
    """

    def __init__(self, console: Console, log: Path | None) -> None:
        self._console = console
        self._log = EventLog(log)
        self._live = LiveLine(console)
        self._started = time.monotonic()

    def __enter__(self: Some) -> Some:
        """Raises UsageError if the log cannot be written."""
        self._log.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        self._log.__exit__(kind, value, trace)

    def __call__(self, event: events.Event) -> None:
        """Take one event: log it, show it."""
        self._log.write(event)
        self.show(event)

    @singledispatchmethod
    def show(self, event: events.Event) -> None:
        """Show an event; one of a type that is not registered shows nothing."""

    def line(self, head: str, text: str) -> None:
        """Show a line for something that was learnt."""
        self._live.stop()
        self._console.note(f"{head:<{COLUMN}} {text}")

    @show.register
    def _remark(self, event: events.Remark) -> None:
        self._live.stop()
        (self._console.warn if event.warning else self._console.note)(event.text, *event.lines)


def say_output(console: Console, output: bytes, *, whole: bool) -> None:
    """What a check printed, indented; only its last lines unless ``whole``."""
    output = output.rstrip()
    lines = _lines(output)
    if not whole and output:
        last = list(_lines(output[-_MOST_BYTES_SHOWN:]))[-_MOST_LINES_SHOWN:]
        left_out = output.count(b"\n") + 1 - len(last)
        if left_out > 0:
            console.note(f"  | ... {left_out} lines before, shown by --show-output")
        lines = iter(last)
    for line in lines:
        console.quote(line)


def _lines(output: bytes) -> Iterator[str]:
    """The lines of an output one by one: millions of them at once would need many times its memory."""
    for line in io.BytesIO(output):
        yield line.decode("utf-8", "backslashreplace").rstrip("\r\n")


def time_left(seconds: float) -> str:
    """``about 2 s left``, ``about 3 min left``."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes < 90 else f"about {minutes / 60:.1f} h left"
