"""The latency of a model compared with another one: two processes, in turn, with the same inputs.

The speed of a machine changes over time. So short rounds of both alternate, and the ratio is taken within each round.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from biopsy.engines.runner import checked_feed
from biopsy.model.load import read_bytes
from biopsy.processes.server import Note, Request, Server, ServerEndedError, Serving
from biopsy.processes.watch import Limits
from biopsy.tensors.files import read_feeds

ROUNDS = 9
"""How often both are measured; which one comes first changes from round to round."""

_SECONDS_OF_A_ROUND = 0.1
_MOST_RUNS = 50
"""The greatest number of runs of a model in a round; fewer if they take longer than that."""


@dataclass(frozen=True, kw_only=True)
class Latency:
    """The median milliseconds of one run ``before`` and ``after`` a change, and the ``ratio`` of after to before.

    ``ratio`` is the median of the ratios of all rounds, ``low`` and ``high`` their quartiles. All except ``after`` are
    None if the engine cannot run the original.
    """

    after: float
    before: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        """``1.02 times as long (1.00 to 1.05)``, or the milliseconds if there is no ratio."""
        if self.ratio is None:
            return f"{self.after:.3g} ms"
        return f"{self.ratio:.2f} times as long ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, kw_only=True)
class Side:
    """What is measured: a model file with the folder of its weights, in an engine with environment variables.

    ``feeds`` is a file of inputs, of which the first sample is used.
    """

    engine: str
    model: Path
    folder: Path
    feeds: Path
    environment: Mapping[str, str]


class _Stopwatch:
    """A process that loads a model and measures runs of it. Use it in a ``with``.

    ``usual`` is the time of a run in seconds, None if the model does not run.
    """

    def __init__(self, side: Side, timeout: float | None) -> None:
        self.usual: float | None = None
        self._server = Server(__name__, side.engine, environment=side.environment)
        self._limits = Limits(seconds=timeout)
        self._request = {"model": str(side.model), "folder": str(side.folder), "feeds": str(side.feeds)}

    def __enter__(self) -> _Stopwatch:
        with contextlib.suppress(errors.BiopsyError, ServerEndedError):
            self._server.ask(self._request, self._limits)
            self.usual = self.seconds(3)
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.close()

    def seconds(self, runs: int) -> float:
        """The median time of some runs. Raises what the engine raises, and ServerEndedError."""
        times: list[float] = self._server.ask({"runs": runs}, self._limits)["seconds"]
        return statistics.median(times)


def side_by_side(before: Side, after: Side, timeout: float | None = None) -> Latency | None:
    """The latency of ``after`` compared with ``before``; None if ``after`` cannot be measured.

    ``timeout`` is in seconds per round.
    """
    with _Stopwatch(after, timeout) as new:
        if new.usual is None:
            return None
        with _Stopwatch(before, timeout) as old:
            slower = max(new.usual, old.usual or 0.0, 1e-9)
            runs = max(1, min(_MOST_RUNS, int(_SECONDS_OF_A_ROUND / slower)))
            if old.usual is None:
                return Latency(after=1000 * new.seconds(runs))
            times: dict[_Stopwatch, list[float]] = {old: [], new: []}
            try:
                for number in range(ROUNDS):
                    for watch in (old, new)[:: 1 if number % 2 else -1]:
                        times[watch].append(1000 * watch.seconds(runs))
            except (errors.BiopsyError, ServerEndedError):
                return None
            ratios = [after / max(before, 1e-9) for before, after in zip(times[old], times[new], strict=True)]
            low, ratio, high = statistics.quantiles(ratios, n=4)
            return Latency(
                after=statistics.median(times[new]),
                before=statistics.median(times[old]),
                ratio=ratio,
                low=low,
                high=high,
            )


def main() -> int:
    """Answer requests for the engine that the first argument names, in the child process."""
    run: list[Callable[[], object]] = []

    def answer(request: Request, note: Note) -> dict[str, Any]:
        if "runs" in request:
            return {"seconds": [_seconds(run[0]) for _ in range(request["runs"])]}
        run[:] = [_prepared(sys.argv[1], request, note)]
        return {}

    return Serving().serve(answer)


def _prepared(engine: str, request: Request, note: Note) -> Callable[[], object]:
    """A function that runs the model once, with inputs in memory."""
    path = Path(request["model"])
    model = ModelInput(read_bytes(path), Path(request["folder"]), path)
    feeds = read_feeds(Path(request["feeds"]))
    note("build")
    session = create(engine).build(model)
    note("run")
    fed = {name: np.array(value) for name, value in checked_feed(feeds[0], session.inputs).items()}
    return lambda: session.run(fed)


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
