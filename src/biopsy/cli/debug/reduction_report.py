"""What a reduction shows: a line for each thing learnt, one live line on a terminal, and the end of it all."""

from __future__ import annotations

import json
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from biopsy import events
from biopsy.model.write import cannot_write

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.reduction.result import Reduction

_MOST_LINES_SHOWN = 20
_MOST_NODES_SHOWN = 24
_COLUMN = 10


class Report:
    """Listens to a reduction. ``shown`` says whose output is shown: "all" checks', the "original"'s, or "none"."""

    def __init__(self, console: Console, log: Path | None, shown: str) -> None:
        self._console = console
        self._shown = shown
        self._log_path = log
        self._log: TextIO | None = None
        self._live: Any = None
        self._task: Any = None
        self._started = time.monotonic()
        self._done = 0

    def __enter__(self) -> Report:
        if self._log_path is not None:
            try:
                self._log = self._log_path.open("w", encoding="utf-8")
            except OSError as error:
                raise cannot_write(self._log_path, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_live()
        if self._log is not None:
            self._log.close()

    def __call__(self, event: events.Event) -> None:
        """Take one event: log it, show it."""
        if self._log is not None:
            self._log.write(json.dumps({"event": type(event).__name__, **_plain(event)}) + "\n")
            self._log.flush()
        show = getattr(self, f"_on_{type(event).__name__}", None)
        if show is not None:
            show(event)

    def _line(self, head: str, text: str) -> None:
        self._console.note(f"{head:<{_COLUMN}} {text}")

    def _on_Remark(self, event: events.Remark) -> None:  # noqa: N802 -- named after the event
        (self._console.warn if event.grave else self._console.note)(event.text)

    def _on_ModelRead(self, event: events.ModelRead) -> None:  # noqa: N802
        parts = [
            event.name,
            count(event.nodes, "node"),
            f"opset {event.opset}",
            f"{count(event.inputs, 'input')}, {count(event.outputs, 'output')}",
            f"{size(event.weight_bytes)} of weights",
        ]
        self._line("model", " · ".join(parts))

    def _on_Recorded(self, event: events.Recorded) -> None:  # noqa: N802
        what = f"{count(event.tensors, 'tensor')} of {count(event.samples, 'sample')}, {size(event.bytes)}"
        self._line("recorded", f"{event.engine} · {what} · {event.seconds:.2f} s")

    def _on_OriginalFails(self, event: events.OriginalFails) -> None:  # noqa: N802
        self._line("fails", f"the original: {event.reason} · {event.seconds:.2f} s")
        if event.signature != event.reason:
            self._line("", f"counted as the same failure: {event.signature}")

    def _on_Checking(self, event: events.Checking) -> None:  # noqa: N802
        self._console.detail(f"  check {event.number}  {event.doing}: {event.line}")
        if sys.stderr.isatty() and self._console.verbosity == 0:
            self._update(event)

    def _on_Checked(self, event: events.Checked) -> None:  # noqa: N802
        self._done += 1
        self._console.detail(f"  check {event.number}  {event.outcome}: {event.reason} · {event.seconds:.2f} s")
        fails = event.stage == "original" and self._shown == "original"
        if self._shown == "all" or fails or self._console.verbosity > 0:
            self._say_output(event.output)

    def _on_StageDone(self, event: events.StageDone) -> None:  # noqa: N802
        self._stop_live()
        if event.checks == 0 and event.before == event.after:
            return
        change = f"{event.before} -> {count(event.after, 'node')}"
        self._line(event.stage, f"{change:<28} {count(event.checks, 'check')} · {event.seconds:.1f} s")

    def _on_Resumed(self, event: events.Resumed) -> None:  # noqa: N802
        self._line("resumed", f"{count(event.runs, 'check')} remembered in {event.journal}")

    def _on_Wavers(self, event: events.Wavers) -> None:  # noqa: N802
        from biopsy.checks.repetition import rate_text

        self._stop_live()
        self._line("flaky", f"the same model fails in {rate_text(event.failed, event.runs)}")
        needed = f"a candidate passes only after {count(event.needed, 'run')} that do not fail"
        self._line("", f"{needed}: luck in less than {1 - event.confidence:.2g} of all cases")

    def _on_Stopped(self, event: events.Stopped) -> None:  # noqa: N802
        self._stop_live()
        self._line("stopped", f"by {event.reason}, before the end: smaller results may exist")

    def _on_Verified(self, event: events.Verified) -> None:  # noqa: N802
        often = "" if event.runs == 1 else f" in {event.failed} of {event.runs} fresh processes"
        self._line("verified", f"{event.path} fails in the same way{often}")

    def _say_output(self, output: bytes) -> None:
        lines = output.decode("utf-8", "backslashreplace").rstrip().splitlines()
        if not lines:
            return
        left_out = len(lines) - _MOST_LINES_SHOWN
        if left_out > 0 and self._shown != "all":
            self._console.note(f"  | ... {left_out} lines before, shown by --show-output")
            lines = lines[-_MOST_LINES_SHOWN:]
        for line in lines:
            self._console.note(f"  | {line}")

    def _update(self, event: events.Checking) -> None:
        rate = self._done / max(time.monotonic() - self._started, 1e-3)
        text = f"{event.left} nodes left · {self._done} checks, {rate:.1f}/s · trying {event.doing}"
        if self._live is None:
            from rich.console import Console as Terminal
            from rich.progress import Progress, SpinnerColumn, TextColumn

            self._live = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                console=Terminal(stderr=True),
                transient=True,
            )
            self._task = self._live.add_task("", total=None)
            self._live.start()
        self._live.update(self._task, description=f"{event.stage:<{_COLUMN}} {text}")

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _plain(event: events.Event) -> dict[str, object]:
    return {
        key: value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
        for key, value in asdict(event).items()
    }


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
    console.say(f"{result.seconds:.1f} s   {result.output}, {size(result.output.stat().st_size)}")
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


def count(number: int, what: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def size(number: float) -> str:
    """Bytes for people: ``3 kB``, ``2.1 MB``."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if number >= 10 or unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"
