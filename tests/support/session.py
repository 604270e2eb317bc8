"""A session with real parts around a check that does as the test says."""

from __future__ import annotations

import select
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from biopsy import events
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Check, Evidence, Outcome
from biopsy.processes.watch import Stop
from biopsy.session.files import IterationFiles, Iterations
from biopsy.session.oracle import Oracle
from biopsy.session.pool import Parallelism, Pool, Workers
from biopsy.session.trial import Budget, BudgetMeter, FailureJudge, KeepOther, SearchTally, Stage, Trial

LIMIT = 60.0
"""Seconds until an event that must come has not come."""

PASS = Stage("bisect")


def trial(name: str, stage: Stage = PASS, **more: object) -> Trial:
    """A model of which the check sees the name."""
    return Trial(parts=[name.encode()], size=len(name), stage=stage, description=name, **more)  # type: ignore[arg-type]


@dataclass
class Answers(Check):
    """A check that answers each model, by its name, with the next of its statuses; with the last one ever after.

    A model in ``held`` is not answered until it is let go, or its run is stopped.
    """

    statuses: dict[str, list[int]] = field(default_factory=dict)
    is_stoppable: bool = False
    is_person: bool = False
    asked: list[str] = field(default_factory=list)
    places: list[Path] = field(default_factory=list)
    held: dict[str, threading.Event] = field(default_factory=dict)
    begun: dict[str, threading.Event] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    foreseen: int = 0
    closed: int = 0
    can_stop: list[bool] = field(default_factory=list)

    @property
    def automatic(self) -> bool:
        return not self.is_person

    @property
    def stoppable(self) -> bool:
        return self.is_stoppable

    def hold(self, name: str) -> threading.Event:
        """Let nobody have an answer about a model until the event is set; ``begun`` tells that it was asked."""
        self.begun[name] = threading.Event()
        return self.held.setdefault(name, threading.Event())

    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        name = candidate.read_bytes().decode()
        self.asked.append(name)
        self.places.append(candidate)
        self.can_stop.append(stop is not None)
        if name in self.held:
            self.begun[name].set()
            self._wait(name, stop)
        statuses = self.statuses.get(name, [0])
        return Evidence(status=statuses.pop(0) if len(statuses) > 1 else statuses[0], output=b"output")

    def _wait(self, name: str, stop: Stop | None) -> None:
        while not self.held[name].wait(0.01):
            if stop is not None and select.select([stop.fileno()], [], [], 0)[0]:
                self.stopped.append(name)
                return

    def line(self, candidate: Path) -> str:
        return f"look at {candidate.name}"

    def foresee_cold(self) -> None:
        self.foreseen += 1

    def close(self) -> None:
        self.closed += 1


@dataclass
class Session:
    """Makes oracles in a folder; ``told`` are the events of all of them."""

    folder: Path
    told: list[events.Event] = field(default_factory=list)
    made: list[Oracle] = field(default_factory=list)

    def oracle(
        self,
        check: Check,
        jobs: int = 1,
        *,
        executor: Workers | None = None,
        budget: Budget | None = None,
        files: IterationFiles | None = None,
        keep_other: KeepOther | None = None,
        advances: Outcome | None = Outcome.REPRODUCES,
    ) -> Oracle:
        listener, files = self.told.append, files or IterationFiles()
        candidate = self.folder / "candidate.onnx"
        pool = Pool(
            check,
            candidate,
            Parallelism(jobs=jobs, executor=executor),
            listener,
            keep_last=files.keep_last,
            read=files.read,
        )
        oracle = Oracle(
            pool,
            FailureJudge(Rules(), listener),
            Iterations(files, listener),
            listener,
            tally=SearchTally(keep_other=keep_other),
            budget=BudgetMeter(budget or Budget()),
            advances=advances,
        )
        self.made.append(oracle)
        return oracle

    def of(self, kind: type[events.Event]) -> Sequence[events.Event]:
        """The events of one type."""
        return [event for event in self.told if isinstance(event, kind)]
