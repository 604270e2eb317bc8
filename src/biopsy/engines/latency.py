"""The latency of a model compared with another one, or of an engine with another one: in turn, with the same inputs.

The speed of a machine changes over time. So short rounds of both alternate, and the ratio is taken within each round.
A difference is claimed only if the interval of the ratio does not contain 1, or another limit.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import unwrap
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from biopsy import errors
from biopsy.engines.base import RELEASE_SETTINGS, Engine, LayerRecord, ModelInput, Session
from biopsy.engines.registry import EngineSpec, create, find_class, parse_spec
from biopsy.engines.runner import checked_feed
from biopsy.engines.worker import memory_for, whole_size
from biopsy.model.load import read_bytes
from biopsy.processes.engine_calls import EngineCall
from biopsy.processes.server import Note, Request, Server, ServerEndedError, Serving
from biopsy.processes.watch import Limits
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Feed

Timer: TypeAlias = "Callable[[int], float]"
"""The median seconds of a run, of the given number of runs."""

ROUNDS = 21
"""How often both are measured; which one comes first changes from round to round."""

_SECONDS_OF_A_ROUND = 0.05
_MOST_RUNS = 50
"""The greatest number of runs of a model in a round; fewer if they take longer than that."""

_OF_A_LOAD = 0.05
"""How much the times of one model may differ, as a ratio, from one load to the next: memory lies elsewhere."""

_RUNS_AT_FIRST = 3

_ROUNDS_OF_A_LOAD = 5
"""With two loads of both: the fewest rounds that agree by chance in less than 1 % of all cases, with some to spare."""

_SECONDS_TO_DECIDE = 15.0

_MOST_SLOW = 16

COST_OF_A_CALL = 0.02
"""Milliseconds by which a run must be longer to count as slower: releases differ by that in what a call costs."""


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

    def side_of(self, limit: float) -> Literal["slower", "not slower", "cost of a call", "unknown"]:
        """Whether ``ratio`` is known to be at least ``limit``, or below; unknown if the interval contains the limit.

        A difference that is no longer than what a call may cost says nothing of the model.
        """
        if self.before is None or self.low is None or self.high is None:
            return "unknown"
        if self.high < limit:
            return "not slower"
        if self.low < limit:
            return "unknown"
        return "slower" if self.after - self.before >= COST_OF_A_CALL else "cost of a call"

    def compared_with(self, other: str) -> str:
        """``takes 5.37 times as long as OTHER (5.2 to 5.6 by 99 %; 1.18 ms instead of 0.22 ms)``, if it is known."""
        return (
            f"takes {self.ratio:.2f} times as long as {other} ({self.low:.2f} to {self.high:.2f} by 99 %; "
            f"{self.after:.3g} ms instead of {self.before:.3g} ms)"
        )

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
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def request(self) -> Request:
        """What a child process is asked for, as ``requested`` reads it."""
        return {name: str(vars(self)[name]) for name in ("engine", "model", "folder", "feeds")}


def requested(request: Request) -> tuple[Engine, ModelInput, list[Feed]]:
    """The engine, the model and the first sample that a ``Side`` asks for, in the child process."""
    path = Path(request["model"])
    model = ModelInput(read_bytes(path), Path(request["folder"]), path)
    return create(request["engine"]), model, [*read_feeds(Path(request["feeds"]))[:1]]


class _Stopwatch:
    """Measures runs of models in a process. Use it in a ``with``; several stopwatches may use one ``server``."""

    def __init__(self, side: Side, server: Server, limits: Limits) -> None:
        self._server = server
        self._limits = limits
        self._request = side.request

    def load(self) -> float | None:
        """Load the model; returns the time of a run in seconds, None if the model does not run."""
        try:
            self._server.ask(self._request, self._limits)
            return self.seconds(_RUNS_AT_FIRST)
        except (errors.BiopsyError, ServerEndedError):
            return None

    def seconds(self, runs: int) -> float:
        """The median time of some runs. Raises what the engine raises, and ServerEndedError."""
        return float(self._server.ask({**self._request, "runs": runs}, self._limits)["seconds"])


def side_by_side(before: Side, after: Side, timeout: float | None = None) -> Latency | None:
    """The latency of ``after`` compared with ``before``; None if ``after`` cannot be measured.

    ``timeout`` is in seconds per round. Both are in one process, unless their environments differ or it crashes. Its
    memory is limited as that of a ``Worker``.
    """
    size = 0
    with contextlib.suppress(errors.ModelError, OSError):  # then it does not run
        size = sum(whole_size(ModelInput(b"", side.folder, side.model), side.feeds) for side in (before, after))
    limits = Limits(seconds=timeout, memory=memory_for([before.engine, after.engine], size))
    with contextlib.closing(Server(__name__, environment=after.environment)) as server:
        new = _Stopwatch(after, server, limits)
        usual = new.load()
        if usual is None:
            return None
        with contextlib.closing(Server(__name__, environment=before.environment)) as other:
            old = _Stopwatch(before, server if before.environment == after.environment else other, limits)
            was = old.load()
            try:
                if was is None:
                    new.load()  # the original may have ended the process
                    return Latency(after=1000 * new.seconds(_runs_of_a_round(usual)))
                rounds = _Rounds()
                rounds.measure(old.seconds, new.seconds, ROUNDS)
            except (errors.BiopsyError, ServerEndedError):
                return None
    return rounds.latency


def decided(load: Callable[[bool], tuple[Timer, Timer]], limit: float, seconds: float = _SECONDS_TO_DECIDE) -> Latency:
    """The latency of one timer compared with another, measured until it is on one side of ``limit``.

    ``load`` gives both (the slower is expected to be the second), each time newly loaded: where a session's memory lies
    makes it faster or slower. It is told which to load first. They are loaded twice and measured in some rounds each,
    then twice as often, and so on, until the next time would end after ``seconds``. Raises what ``load`` and the timers
    raise.
    """
    started = time.perf_counter()
    rounds, loads = _Rounds(), 0
    while True:
        for _ in range(max(2, loads)):
            rounds.measure(*load(loads % 2 == 1), _ROUNDS_OF_A_LOAD)
            loads += 1
        latency = rounds.latency
        if latency.side_of(limit) != "unknown" or 2 * (time.perf_counter() - started) > seconds:
            return latency


def measurable_alike(labels: Iterable[str], **settings_of_both: str) -> list[Engine]:
    """Engines by their labels, with settings with which their times and their memory can be compared.

    Each has one thread within an operator, unless it sets another number. If some run in an interpreter with another
    release, so do the others where possible: an interpreter of its own with the packages that are installed here.
    """
    specs = [parse_spec(label) for label in labels]
    alike, elsewhere = [], any(_is_elsewhere(spec) for spec in specs)
    for spec in specs:
        engine, settings = find_class(spec.name), {**spec.settings, **settings_of_both}
        if any(option.name == "threads" for option in engine.options_declared):
            settings.setdefault("threads", "1")
        if elsewhere and engine.distributions and not _is_elsewhere(spec):
            moved = create(EngineSpec(spec.name, {**settings, "python": sys.executable}))
            with contextlib.suppress(errors.EngineMissing):  # an isolated interpreter may lack what this one has
                moved.version()
                alike.append(moved)
                continue
        alike.append(create(EngineSpec(spec.name, settings)))
    return alike


def _is_elsewhere(spec: EngineSpec) -> bool:
    return any(key in spec.settings for key in RELEASE_SETTINGS)


def slow_nodes(before: Sequence[LayerRecord], after: Sequence[LayerRecord]) -> list[str]:
    """The nodes, by label, that take longer in the layers ``after`` than in those ``before``, the worst first.

    Nodes that either side computes in one layer are compared together. Those that need less than a tenth of the worst
    one's additional time are left out.
    """
    together: dict[str, frozenset[str]] = {}
    for layer in (*before, *after):
        joined = frozenset(layer.nodes).union(*(together.get(node, ()) for node in layer.nodes))
        together.update(dict.fromkeys(joined, joined))
    more = dict.fromkeys(together.values(), 0.0)
    for sign, layers in ((-1, before), (1, after)):
        for layer in layers:
            for node in layer.nodes[:1]:
                more[together[node]] += sign * (layer.time_us or 0)
    worst = sorted(more, key=more.__getitem__, reverse=True)[:_MOST_SLOW]
    slow = [nodes for nodes in worst if more[nodes] > 0 and more[nodes] >= more[worst[0]] / 10]
    return [node for nodes in slow for node in together if node in nodes]


def in_memory(feeds: Sequence[Feed]) -> list[Feed]:
    """Feeds in arrays that are read-only. Sessions that are compared need the same ones: their place matters."""
    copied: list[Feed] = [{name: np.array(value) for name, value in feed.items()} for feed in feeds]
    for feed in copied:
        for array in feed.values():
            array.flags.writeable = False
    return copied


def timer(engine: Engine, session: Session, feeds: Sequence[Feed]) -> Timer:
    """Measures runs of a built model with all ``feeds``, where the engine's package runs.

    Raises CannotCompare if a feed does not fit, and what the engine raises.
    """
    fed = [checked_feed(feed, session.inputs, number) for number, feed in enumerate(feeds)]
    for feed in fed:
        session.run(feed)
    # Without the wrapper that keeps the contract: what it checks takes longer for some engines than for others.
    run = unwrap(type(session).run)

    def seconds(runs: int) -> float:
        with EngineCall(engine.label, "run", "it ran the model"):
            return sum(engine.imports.timed(partial(run, session, feed), runs)[1] for feed in fed)

    return seconds


def _runs_of_a_round(seconds: float) -> int:
    """How many runs a round has if each takes so many seconds."""
    return max(1, min(_MOST_RUNS, int(_SECONDS_OF_A_ROUND / max(seconds, 1e-9))))


class _Rounds:
    """The times of two timers, in rounds."""

    def __init__(self) -> None:
        self._times: tuple[list[float], list[float]] = ([], [])

    def measure(self, before: Timer, after: Timer, rounds: int) -> None:
        """Measure further rounds, after a few runs of both. The first of a round is the second of the next."""
        runs = _runs_of_a_round(max(before(_RUNS_AT_FIRST), after(_RUNS_AT_FIRST)))
        for number in range(rounds):
            for side in (0, 1) if number % 2 else (1, 0):
                self._times[side].append(1000 * (before, after)[side](runs))

    @property
    def latency(self) -> Latency:
        """The median ratio of the rounds; its bootstrap interval of 99 % is widened by what two loads may differ.

        B. Efron, Bootstrap methods: another look at the jackknife. Annals of Statistics 7 (1979), 1-26.
        """
        before, after = map(np.array, self._times)
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
    loaded: dict[str, Timer] = {}

    def answer(request: Request, note: Note) -> dict[str, Any]:
        side = f"{request['engine']} {request['model']}"
        if "runs" in request:
            return {"seconds": loaded[side](request["runs"])}
        engine, model, feeds = requested(request)
        note("build")
        session = engine.build(model)
        note("run")
        loaded[side] = timer(engine, session, in_memory(feeds))
        return {}

    return Serving().serve(answer)
