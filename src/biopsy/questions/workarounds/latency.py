"""How long a model takes beside another one: two processes, in turn, with the same inputs.

A machine is now faster, now slower. So short rounds of both alternate, and the ratio is taken within each round.
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

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from biopsy.model.load import read_bytes
from biopsy.processes.server import Note, Request, Server, ServerEndedError, Serving
from biopsy.processes.watch import Limits

ROUNDS = 9
"""Times that both are measured, one after the other; who is first changes from round to round."""

_SECONDS_OF_A_ROUND = 0.1
_MOST_RUNS = 50
"""Runs of a model in a round: as many as take about that long."""


@dataclass(frozen=True, kw_only=True)
class Latency:
    """The median milliseconds of one run ``before`` and ``after`` a change, and the ``ratio`` of after to before.

    ``ratio`` is the median of the rounds' ratios, ``low`` and ``high`` their quartiles. ``before`` and what is derived
    from it are None where the engine does not run the original at all.
    """

    after: float
    before: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        """In words, such as ``1.02 times as long (1.00 to 1.05)``."""
        if self.ratio is None:
            return f"{self.after:.3g} ms"
        return f"{self.ratio:.2f} times as long ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, kw_only=True)
class Side:
    """What is measured: a model file with the folder of its weights, in an engine, with variables of the environment.

    ``feeds`` is a file of inputs, of which the first sample is run.
    """

    engine: str
    model: Path
    folder: Path
    feeds: Path
    environment: Mapping[str, str]


class _Stopwatch:
    """A process that holds a model and measures runs of it. Use it in a ``with``.

    ``usual`` is the seconds of a run, None if the model does not run.
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
        """The median of some runs. Raises what the engine raises, and ServerEndedError."""
        taken: list[float] = self._server.ask({"runs": runs}, self._limits)["seconds"]
        return statistics.median(taken)


def side_by_side(before: Side, after: Side, timeout: float | None = None) -> Latency | None:
    """The latency of ``after`` beside ``before``; None if ``after`` cannot be measured.

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
            taken: dict[_Stopwatch, list[float]] = {old: [], new: []}
            try:
                for number in range(ROUNDS):
                    for watch in (old, new)[:: 1 if number % 2 else -1]:
                        taken[watch].append(1000 * watch.seconds(runs))
            except (errors.BiopsyError, ServerEndedError):
                return None
            ratios = [after / max(before, 1e-9) for before, after in zip(taken[old], taken[new], strict=True)]
            low, ratio, high = statistics.quantiles(ratios, n=4)
            return Latency(
                after=statistics.median(taken[new]),
                before=statistics.median(taken[old]),
                ratio=ratio,
                low=low,
                high=high,
            )


# The child's side


def main() -> int:
    """Answer the requests for the engine that the first argument names."""
    serving = Serving()
    engine = sys.argv[1]
    run: list[Callable[[], object]] = []

    def answer(request: Request, note: Note) -> dict[str, Any]:
        if "runs" in request:
            return {"seconds": [_seconds(run[0]) for _ in range(request["runs"])]}
        run[:] = [_prepared(engine, request, note)]
        return {}

    return serving.serve(answer)


def _prepared(engine: str, request: Request, note: Note) -> Callable[[], object]:
    """What runs the model once, with inputs that are in memory and fit."""
    import numpy as np

    from biopsy.engines.runner import checked_feed
    from biopsy.tensors.files import read_feeds

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
