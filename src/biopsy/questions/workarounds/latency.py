"""The latency of a model compared with another one: in one process, in turn, with the same inputs.

The speed of a machine changes over time. So short rounds of both alternate, and the ratio is taken within each round.
A difference is claimed only if the interval of the ratio does not contain 1.
"""

from __future__ import annotations

import contextlib
import statistics
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

ROUNDS = 21
"""How often both are measured; which one comes first changes from round to round."""

_SECONDS_OF_A_ROUND = 0.05
_MOST_RUNS = 50
"""The greatest number of runs of a model in a round; fewer if they take longer than that."""

_OF_A_LOAD = 0.05
"""How much the times of one model may differ, as a ratio, from one load to the next: memory lies elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Latency:
    """The median milliseconds of one run ``before`` and ``after`` a change, and the ``ratio`` of after to before.

    ``ratio`` is the median of the ratios of all rounds, between ``low`` and ``high`` by 99 % if a new load of the same
    model is also counted. All except ``after`` are None if the engine cannot run the original.
    """

    after: float
    before: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def differs(self) -> bool:
        """Whether the change is known to make a difference."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def text(self) -> str:
        """``1.22 times as long (1.10 to 1.35)``, ``no difference measured``, or the milliseconds without a ratio."""
        if self.ratio is None:
            return f"{self.after:.3g} ms"
        if not self.differs:
            return "no difference measured"
        return f"{self.ratio:.2f} times as long ({self.low:.2f} to {self.high:.2f})"

    @property
    def sentence(self) -> str:
        """The same as a sentence: ``it takes 1.22 times as long (1.10 to 1.35)``."""
        return f"it takes {self.text}" if self.ratio is None or self.differs else self.text


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
    """Measures runs of models in a process. Use it in a ``with``; several stopwatches may use one ``server``."""

    def __init__(self, side: Side, server: Server, timeout: float | None) -> None:
        self._server = server
        self._limits = Limits(seconds=timeout)
        self._engine = side.engine
        self._request = {"model": str(side.model), "folder": str(side.folder), "feeds": str(side.feeds)}

    def load(self) -> float | None:
        """Load the model; returns the time of a run in seconds, None if the model does not run."""
        try:
            self._server.ask({**self._request, "engine": self._engine}, self._limits)
            return self.seconds(3)
        except (errors.BiopsyError, ServerEndedError):
            return None

    def seconds(self, runs: int) -> float:
        """The median time of some runs. Raises what the engine raises, and ServerEndedError."""
        asked = {**self._request, "engine": self._engine, "runs": runs}
        times: list[float] = self._server.ask(asked, self._limits)["seconds"]
        return statistics.median(times)


def side_by_side(before: Side, after: Side, timeout: float | None = None) -> Latency | None:
    """The latency of ``after`` compared with ``before``; None if ``after`` cannot be measured.

    ``timeout`` is in seconds per round. Both are in one process, unless their environments differ or it crashes.
    """
    with contextlib.closing(Server(__name__, environment=after.environment)) as server:
        new = _Stopwatch(after, server, timeout)
        usual = new.load()
        if usual is None:
            return None
        with contextlib.closing(Server(__name__, environment=before.environment)) as other:
            old = _Stopwatch(before, server if before.environment == after.environment else other, timeout)
            was = old.load()
            runs = max(1, min(_MOST_RUNS, int(_SECONDS_OF_A_ROUND / max(usual, was or 0.0, 1e-9))))
            times: dict[_Stopwatch, list[float]] = {old: [], new: []}
            try:
                if was is None:
                    new.load()  # the original may have ended the process
                    return Latency(after=1000 * new.seconds(runs))
                for number in range(ROUNDS):
                    for watch in (old, new)[:: 1 if number % 2 else -1]:
                        times[watch].append(1000 * watch.seconds(runs))
            except (errors.BiopsyError, ServerEndedError):
                return None
    return _compared(np.array(times[old]), np.array(times[new]))


def _compared(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> Latency:
    """The median ratio of the rounds, with a bootstrap interval of 99 %, as wide as two loads of one model may differ.

    B. Efron, Bootstrap methods: another look at the jackknife. Annals of Statistics 7 (1979), 1-26.
    """
    ratios = after / np.maximum(before, 1e-9)
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.005, 0.995])
    return Latency(
        after=float(np.median(after)),
        before=float(np.median(before)),
        ratio=float(np.median(ratios)),
        low=float(low / (1 + _OF_A_LOAD)),
        high=float(high * (1 + _OF_A_LOAD)),
    )


def main() -> int:
    """Answer requests about models, in the child process."""
    loaded: dict[str, Callable[[], object]] = {}

    def answer(request: Request, note: Note) -> dict[str, Any]:
        side = f"{request['engine']} {request['model']}"
        if "runs" in request:
            return {"seconds": [_seconds(loaded[side]) for _ in range(request["runs"])]}
        loaded[side] = _prepared(request, note)
        return {}

    return Serving().serve(answer)


def _prepared(request: Request, note: Note) -> Callable[[], object]:
    """A function that runs the model once, with inputs in memory."""
    path = Path(request["model"])
    model = ModelInput(read_bytes(path), Path(request["folder"]), path)
    feeds = read_feeds(Path(request["feeds"]))
    note("build")
    session = create(request["engine"]).build(model)
    note("run")
    fed = {name: np.array(value) for name, value in checked_feed(feeds[0], session.inputs).items()}
    return lambda: session.run(fed)


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
