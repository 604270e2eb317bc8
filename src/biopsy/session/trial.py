"""A model to be checked, what a run of the check is for, what the search may cost, and what it has cost so far."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from biopsy.checks.outcome import Check, Judged, Outcome


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A model to be checked: its bytes, how many nodes it has (or layers that are high), and what the run is for.

    ``description`` is shown in the progress line. ``place`` is where the model stands already; None if it is to be
    written where candidates stand. ``check`` replaces, for this trial alone, the check that all others get.
    ``is_kept``: it is asked beside the search, which neither answers nor abandons its run. ``inputs`` tells one set of
    inputs from another, where its check feeds it others than the check of the search does.
    """

    parts: Sequence[bytes]
    size: int
    stage: Stage
    description: str
    place: Path | None = None
    check: Check | None = None
    is_kept: bool = False
    inputs: str = ""

    @cached_property
    def digest(self) -> bytes:
        """What tells one model from another."""
        digest = hashlib.blake2b(digest_size=16)
        for part in self.parts:
            digest.update(part)
        digest.update(self.inputs.encode())
        return digest.digest()

    def asks_the_same(self, other: Trial) -> bool:
        """Whether a run of this trial answers the other one."""
        return self.digest == other.digest and self.check is other.check


# What a run of a check is for: whether its outcome is remembered, and whether it is an iteration of the search.


@dataclass(frozen=True)
class Stage:
    """What a run of a check is for. The ``name`` stands in events, in journals and in the names of artifacts.

    ``is_remembered``: the outcome goes into the journal; otherwise every process asks again. ``is_iteration``: the
    model is the original or a candidate, so it is counted and its artifacts are sorted; any other model is a probe.

    A pass of a search is a stage under its own name, remembered and an iteration.
    """

    name: str
    is_remembered: bool = True
    is_iteration: bool = True


ORIGINAL = Stage("original")
"""The model as the user gave it."""

HIGH = Stage("high")
"""The model with every layer in high precision."""

LOW = Stage("low")
"""The model with every layer in low precision."""

CONFIRM = Stage("confirm", is_iteration=False)
"""The best model so far, once more."""

MARKED = Stage("marked", is_iteration=False)
"""The original with every tensor an output: is a wrong value masked later?"""

VALUES = Stage("values", is_iteration=False)
"""Changed outputs: does the check compare them with recorded values?"""

IDENTITY = Stage("identity", is_remembered=False, is_iteration=False)
"""A model of one Identity node, on which a check that means anything passes."""

LOOK = Stage("look", is_remembered=False, is_iteration=False)
"""The original with every tensor an output: which of them does the check call wrong?"""

ROUNDING = Stage("rounding", is_remembered=False, is_iteration=False)
"""The original, judged against float64."""

FINAL = Stage("final", is_remembered=False, is_iteration=False)
"""The result as it was written, in a process of its own."""

PROBES = (CONFIRM, MARKED, VALUES, IDENTITY, LOOK, ROUNDING, FINAL)
"""Every stage that is no iteration."""

PROBE_NAMES = frozenset(stage.name for stage in PROBES)
"""The names of the probes, as journals hold them."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limits of a search: runs of the check that it waits for, and seconds of wall time; None for no limit."""

    checks: int | None = None
    seconds: float | None = None


class BudgetSpentError(Exception):
    """The search must end with the best result so far; the text names the limit that was reached."""


class BudgetMeter:
    """Counts runs of the check and seconds from its creation, and enforces a budget while a search goes on.

    Runs before and after the search, such as the first check of the original and the last of the result, are counted,
    but never refused: the limits hold only inside ``enforced``.
    """

    def __init__(self, budget: Budget = Budget()) -> None:
        self._budget = budget
        self._started = time.monotonic()
        self._asked = 0
        self._is_enforced = False

    @contextlib.contextmanager
    def enforced(self) -> Iterator[None]:
        """Enforce the limits inside; may be nested."""
        before, self._is_enforced = self._is_enforced, True
        try:
            yield
        finally:
            self._is_enforced = before

    def spend(self) -> None:
        """Count one run of the check. Raises BudgetSpentError if it may not be made."""
        self._asked += 1
        if not self._is_enforced:
            return
        if self._budget.checks is not None and self._asked > self._budget.checks:
            raise BudgetSpentError(f"--max-checks {self._budget.checks}")
        if self.seconds_left == 0:
            raise self.time_is_up()

    @property
    def seconds_spent(self) -> float:
        """How long the search has gone on."""
        return time.monotonic() - self._started

    @property
    def seconds_left(self) -> float | None:
        """How long a run may be waited for, in seconds; None for no limit."""
        if not self._is_enforced or self._budget.seconds is None:
            return None
        return max(0.0, self._budget.seconds - self.seconds_spent)

    def allows(self, pending: int) -> bool:
        """Whether another run may begin ahead of its question while so many are pending."""
        return not self._is_enforced or self._budget.checks is None or self._asked + pending <= self._budget.checks

    def time_is_up(self) -> BudgetSpentError:
        """The error for a search that has reached its time limit."""
        return BudgetSpentError(f"--max-time {self._budget.seconds:g}")


# What a search has cost and met.

KeepOther = Callable[[Trial, int], Path | None]
"""Keeps a model that shows the so manieth other failure; where, or None if it is not kept."""


def keep_nothing(trial: Trial, number: int) -> Path | None:
    """Keep no model of another failure."""
    return None


@dataclass
class OtherFailure:
    """A failure that is not the original's: how often it was met, and where one model that shows it was kept."""

    times: int = 0
    model: Path | None = None


@dataclass(kw_only=True)
class SearchTally:
    """Counts what a search has cost and met.

    ``outcomes`` counts runs of checks that were waited for. ``cannot_say`` counts models of which a check could not
    say anything, by the reason; ``other_failures`` has the failures that are not the original's, by how they look.
    ``remembered`` counts runs that the journal gave, ``beside`` those of ``checks`` that the search did not ask for.
    """

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    other_failures: dict[str, OtherFailure] = field(default_factory=dict)
    cannot_say: Counter[str] = field(default_factory=Counter)
    remembered: int = 0
    beside: int = 0
    keep_other: KeepOther = keep_nothing
    _met: set[bytes] = field(default_factory=set)

    @property
    def checks(self) -> int:
        """Runs of checks that were waited for."""
        return self.outcomes.total()

    @property
    def asked(self) -> int:
        """Runs of checks that the search asked for and waited for."""
        return self.checks - self.beside

    def undo(self, outcome: Outcome) -> bool:
        """Count one run with this outcome no more; False if none was counted, as for one that the journal gave."""
        if not self.outcomes[outcome]:
            return False
        self.outcomes[outcome] -= 1
        return True

    def meet(self, trial: Trial, judged: Judged) -> None:
        """Count a model, once, whose answer is another failure or that the check cannot say."""
        if judged.outcome not in {Outcome.OTHER_FAILURE, Outcome.INVALID} or trial.digest in self._met:
            return
        self._met.add(trial.digest)
        if judged.outcome is Outcome.INVALID:
            self.cannot_say[judged.reason] += 1
            return
        failure = self.other_failures.setdefault(judged.reason, OtherFailure())
        failure.times += 1
        if failure.times == 1:
            failure.model = self.keep_other(trial, len(self.other_failures))
