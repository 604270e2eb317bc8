"""The memory that a model needs in one engine compared with another one: each measured in processes of its own.

The engine's package is loaded and has run a small model before; what counts is how far the resident memory of the
process in which it runs rises above that while the model is built and run once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from biopsy import errors
from biopsy.engines.latency import Side, requested
from biopsy.engines.runner import checked_feed
from biopsy.processes.engine_calls import EngineCall
from biopsy.processes.server import Note, Request, Server, ServerEndedError, Serving
from biopsy.processes.watch import engine_death
from biopsy.text import size_text

LEAST = 8 << 20
"""Bytes by which more memory must be needed to count: a smaller difference may be an allocator's reserve."""

_TIMES_AT_FIRST = 3
_MOST_TIMES = 9
_SECONDS_TO_DECIDE = 60.0
_PAGE = 4096


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """The bytes that a model needs in each measurement, ``before`` in one engine and ``after`` in another.

    ``ratio`` is that of the medians; ``low`` and ``high`` are the least and greatest ratio of two measurements.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """How many times as much the second engine needs."""
        return statistics.median(self.after) / statistics.median(self.before)

    @property
    def low(self) -> float:
        """The least ratio of two measurements."""
        return min(self.after) / max(self.before)

    @property
    def high(self) -> float:
        """The greatest ratio of two measurements."""
        return max(self.after) / min(self.before)

    def side_of(self, limit: float) -> Literal["larger", "not larger", "too little", "unknown"]:
        """Whether all ratios are at least ``limit``, or all below; unknown if they are on both sides.

        A difference that may be an allocator's reserve says nothing of the model.
        """
        if self.high < limit:
            return "not larger"
        if self.low < limit:
            return "unknown"
        return "larger" if min(self.after) - max(self.before) >= LEAST else "too little"

    def compared_with(self, other: str) -> str:
        """``needs 2.00 times as much memory as OTHER (1.98 to 2.02; 200 MB instead of 100 MB)``."""
        after, before = (size_text(round(statistics.median(side))) for side in (self.after, self.before))
        return (
            f"needs {self.ratio:.2f} times as much memory as {other} ({self.low:.2f} to {self.high:.2f}; {after} "
            f"instead of {before})"
        )


def decided(sides: Sequence[Side], limit: float) -> PeakMemory:
    """The memory of the second of two sides compared with the first, measured until ``limit`` is decided.

    Both are measured in turn, three times, then up to nine times for up to a minute. Raises what the engines raise, and
    CannotCompare if the system does not tell the memory of a process.
    """
    started = time.monotonic()
    sizes: tuple[list[int], list[int]] = ([], [])
    while True:
        for side, measured in zip(sides, sizes, strict=True):
            with closing(Server(__name__, environment=side.environment)) as server:
                try:
                    measured.append(max(_PAGE, server.ask(side.request)["bytes"]))
                except ServerEndedError as error:
                    raise engine_death(side.engine, cast("errors.Stage | None", error.note), error.ended) from error
        found = PeakMemory(before=tuple(sizes[0]), after=tuple(sizes[1]))
        times, seconds = len(sizes[0]), time.monotonic() - started
        is_over = times >= _MOST_TIMES or seconds * (times + 1) / times > _SECONDS_TO_DECIDE
        if times >= _TIMES_AT_FIRST and (found.side_of(limit) != "unknown" or is_over):
            return found


def main() -> int:
    """Answer requests about models, in the child process."""
    return Serving().serve(_answer)


def _answer(request: Request, note: Note) -> dict[str, Any]:
    engine, model, (feed,) = requested(request)
    engine.warm_up()
    process = Path("/proc") / str(engine.imports.module("os").getpid())  # which may be another interpreter
    try:
        (process / "clear_refs").write_text("5")  # man 5 proc: resets the peak
        before = _memory(process, "VmRSS")
        note("build")
        session = engine.build(model)
        note("run")
        with EngineCall(engine.label, "run", "it ran the model"):
            session.run(checked_feed(feed, session.inputs, 0))
        return {"bytes": _memory(process, "VmHWM") - before}
    except OSError as error:
        raise errors.CannotCompare(f"this system does not tell the memory of a process: {error}") from error


def _memory(process: Path, name: str) -> int:
    """Bytes in the status of a process. Raises OSError."""
    lines = (process / "status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))
