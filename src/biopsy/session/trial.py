"""A model to be checked, the stages of a search, its budget and tally, and the judge of what counts as the failure."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.judge import (
    CONFIDENCE,
    UNKNOWN_RATE,
    MeasuredRate,
    Rules,
    Signature,
    judge,
    measured_rate,
    signature_of,
)
from biopsy.checks.outcome import Check, Evidence, Judged, Outcome
from biopsy.comparison.mismatch import Mismatch, why_not


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A model to be checked: its bytes, its size in nodes (or in layers of high precision), and the purpose of the run.

    ``description`` is shown in the progress line. ``place`` is the path of the model if it exists; None to write it
    where candidates are written. ``check`` replaces the check of the search for this trial. ``is_kept``: it is asked
    beside the search, which neither uses nor abandons its run. ``inputs`` identifies its inputs, if its check feeds
    others than the check of the search does.
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
        """A digest of the model and its inputs."""
        digest = hashlib.blake2b(digest_size=16)
        for part in self.parts:
            digest.update(part)
        digest.update(self.inputs.encode())
        return digest.digest()

    def asks_the_same(self, other: Trial) -> bool:
        """Whether a run of this trial answers the other one."""
        return self.digest == other.digest and self.check is other.check


@dataclass(frozen=True)
class Stage:
    """The purpose of a run of a check. The ``name`` is used in events, in journals and in the names of artifacts.

    ``is_remembered``: the outcome goes into the journal; otherwise every process runs it again. ``is_iteration``: the
    model is the original or a candidate, so it is counted and its artifacts are sorted; any other model is a probe.

    Each pass of a search is a stage with its own name, remembered and an iteration.
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
"""The best model so far, again."""

MARKED = Stage("marked", is_iteration=False)
"""The original with every tensor an output: is a wrong value masked later?"""

VALUES = Stage("values", is_iteration=False)
"""Changed outputs: does the check compare them with recorded values?"""

IDENTITY = Stage("identity", is_remembered=False, is_iteration=False)
"""A model of one Identity node, which any meaningful check passes."""

LOOK = Stage("look", is_remembered=False, is_iteration=False)
"""The original with every tensor an output, or profiled: which ones does the check call wrong, or slow?"""

ROUNDING = Stage("rounding", is_remembered=False, is_iteration=False)
"""The original, judged against float64."""

FINAL = Stage("final", is_remembered=False, is_iteration=False)
"""The result as it was written, in a process of its own."""

PROBES = (CONFIRM, MARKED, VALUES, IDENTITY, LOOK, ROUNDING, FINAL)
"""Every stage that is not an iteration."""

PROBE_NAMES = frozenset(stage.name for stage in PROBES)
"""The names of the probes, as journals hold them."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limits of a search: runs of the check that it waits for, and seconds of wall time; None for no limit.

    ``time_name`` is what to call the limit of time, if it is not one that a user gave.
    """

    checks: int | None = None
    seconds: float | None = None
    time_name: str = ""


class BudgetSpentError(Exception):
    """The search must end with the best result so far; the text is the limit that was reached."""


class BudgetMeter:
    """Counts runs and seconds, and enforces a budget while a search goes on.

    Runs before and after the search, such as the first check of the original and the last of the result, are counted
    but never refused: the limits apply only inside ``enforced``.
    """

    def __init__(self, budget: Budget = Budget()) -> None:
        self._budget = budget
        self._started = time.monotonic()
        self._asked = 0
        self._is_enforced = False

    @contextlib.contextmanager
    def enforced(self) -> Iterator[None]:
        """Enforce the limits inside; can be nested."""
        before, self._is_enforced = self._is_enforced, True
        try:
            yield
        finally:
            self._is_enforced = before

    def spend(self) -> None:
        """Count one run of the check. Raises BudgetSpentError if it exceeds a limit."""
        self._asked += 1
        if not self._is_enforced:
            return
        if self._budget.checks is not None and self._asked > self._budget.checks:
            raise BudgetSpentError(f"--max-checks {self._budget.checks}")
        if self.seconds_left == 0:
            raise self.time_is_up()

    @property
    def seconds_spent(self) -> float:
        """Seconds since this object was made."""
        return time.monotonic() - self._started

    @property
    def seconds_left(self) -> float | None:
        """Seconds left to wait for a run; None for no limit."""
        if not self._is_enforced or self._budget.seconds is None:
            return None
        return max(0.0, self._budget.seconds - self.seconds_spent)

    def allows(self, pending: int) -> bool:
        """Whether one more run may begin ahead of its question while this many are pending."""
        return not self._is_enforced or self._budget.checks is None or self._asked + pending <= self._budget.checks

    def time_is_up(self) -> BudgetSpentError:
        """The error for a search that reached its time limit."""
        return BudgetSpentError(self._budget.time_name or f"--max-time {self._budget.seconds:g}")


KeepOther = Callable[[Trial, int], Path | None]
"""Keeps a model for the n-th other failure; returns its path, or None if it is not kept."""


@dataclass
class OtherFailure:
    """A failure other than the original's: how often it was met, and the path of one kept model."""

    times: int = 0
    model: Path | None = None


@dataclass(kw_only=True)
class SearchTally:
    """Counts what a search has cost and met.

    ``outcomes`` counts runs of checks that were waited for. ``cannot_say`` counts models for which the check had no
    answer, by reason; ``other_failures`` has the failures that are not the original's, by reason. ``remembered`` counts
    runs from the journal, ``beside`` those of ``checks`` that the search did not ask for.
    """

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    other_failures: dict[str, OtherFailure] = field(default_factory=dict)
    cannot_say: Counter[str] = field(default_factory=Counter)
    remembered: int = 0
    beside: int = 0
    keep_other: KeepOther | None = None
    _met: set[bytes] = field(default_factory=set)

    @property
    def checks(self) -> int:
        """Runs of checks that were waited for."""
        return self.outcomes.total()

    @property
    def asked(self) -> int:
        """Runs of checks that the search asked and waited for."""
        return self.checks - self.beside

    def undo(self, outcome: Outcome) -> bool:
        """Uncount one run with this outcome; False if none was counted, as for one from the journal."""
        if not self.outcomes[outcome]:
            return False
        self.outcomes[outcome] -= 1
        return True

    def meet(self, trial: Trial, judged: Judged) -> None:
        """Count a model, once, if its outcome is another failure or that the check cannot say."""
        if judged.outcome not in {Outcome.OTHER_FAILURE, Outcome.INVALID} or trial.digest in self._met:
            return
        self._met.add(trial.digest)
        if judged.outcome is Outcome.INVALID:
            self.cannot_say[judged.reason] += 1
            return
        failure = self.other_failures.setdefault(judged.reason, OtherFailure())
        failure.times += 1
        if failure.times == 1 and self.keep_other is not None:
            failure.model = self.keep_other(trial, len(self.other_failures))


class FailureJudge:
    """Judges evidence by the user's rules.

    ``reference`` is the signature of the original's failure; None while it is unknown, when any failure counts.
    ``original`` is how the original's outputs differ, if a candidate's must be comparable.
    """

    def __init__(self, rules: Rules, listener: events.Listener = events.ignore) -> None:
        self.rules = rules
        self.reference: Signature | None = None
        self.original: tuple[Mismatch, ...] = ()
        self._listener = listener
        self._has_remarked = False

    def judge(self, evidence: Evidence, *, tells: bool = True) -> Judged:
        """The outcome. A failure of the same kind is another one if it is much smaller and only rounding.

        If error sizes decide because float64 could not, a remark says so once, if ``tells``.
        """
        judged = judge(evidence, self.rules, self.reference)
        if judged.outcome is not Outcome.REPRODUCES or not self.original:
            return judged
        rounding = evidence.verdict.rounding
        if tells and rounding is not None and rounding.verdict == "unknown" and not self._has_remarked:
            self._has_remarked = True
            self._listener(events.Remark(f"rounding   float64 could not judge; error sizes decide: {rounding.reason}"))
        reason = why_not(evidence.verdict.mismatches, self.original, rounding)
        if reason is None:
            return judged
        return replace(judged, outcome=Outcome.OTHER_FAILURE, reason=f"{judged.reason}, {reason}")


def judge_any_failure(evidence: Evidence, rules: Rules) -> Judged:
    """The outcome if any failure counts because there is no first one to compare with; a timeout does not count."""
    judged = judge(evidence, rules, None)
    if evidence.timed_out and judged.outcome is Outcome.REPRODUCES:
        reason = f"no answer after {evidence.seconds:.3g} s{signature_of(evidence).during}"
        return replace(judged, outcome=Outcome.TIMED_OUT, reason=reason)
    return judged


def cannot_run(judged: Judged, line: str, kept: str | None = None) -> errors.CheckError:
    """The error for a check that could not be run, with the next steps that it named; ``line`` repeats it."""
    steps = [*judged.evidence.verdict.next_steps, f"run it by hand: {line}"]
    return errors.CheckError(f"the check could not be run: {judged.reason}", kept=kept, next_steps=steps)


def steps_after_pass(judged: Judged, line: str) -> list[str]:
    """What to do about a model that passes its check: what the check itself says of that; else ``line``, to look."""
    return [judged.evidence.verdict.hint or f"run it by hand: {line}"]


class CheckRuns:
    """The runs of a check for one question, one after the other: each is counted, reported and judged.

    ``stage`` names the question in events, which number runs from ``first``. ``failure`` judges them: any failure
    counts until ``take_failure``. ``rate`` is how often it shows, at first what is ``known``: a search goes on after
    ``rate.needed`` passing runs, and a pass is stated after ``rate.proof``. ``checks`` counts the runs.
    """

    def __init__(
        self,
        stage: str,
        rules: Rules | None = None,
        listener: events.Listener = events.ignore,
        *,
        first: int = 0,
        known: MeasuredRate = UNKNOWN_RATE,
    ) -> None:
        self.failure = FailureJudge(Rules() if rules is None else rules, listener)
        self.rate = known
        self.checks = 0
        self._stage = stage
        self._first = first
        self._listener = listener

    def on_another_model(self, listener: events.Listener | None = None) -> CheckRuns:
        """Runs on another model, counted separately and compared with the same failure."""
        other = CheckRuns(self._stage, self.failure.rules, listener or self._listener, first=self._first)
        other.failure.reference, other.rate = self.failure.reference, self.rate
        return other

    def once(
        self,
        run: Callable[[], Evidence],
        *,
        line: str,
        description: str,
        number: int | None = None,
        judged_by: Callable[[Evidence], Judged] | None = None,
    ) -> Judged:
        """Make one run. ``line`` is what a person types for it; ``judged_by`` judges instead of ``failure``.

        Raises what ``run`` raises.
        """
        if number is None:
            number = self.checks + self._first
        self.checks += 1
        self._listener(events.Checking(number=number, stage=self._stage, description=description, line=line))
        evidence = run()
        judged = (judged_by or self.failure.judge)(evidence)
        self._listener(replace(judged.event(number, self._stage), output=evidence.output))
        return judged

    def take_failure(self, judged: Judged) -> Signature:
        """Compare all later failures with this one. Returns its signature."""
        self.failure.reference = signature = signature_of(judged.evidence)
        reason, seconds = signature.with_names(judged.reason), judged.evidence.seconds
        self._listener(events.OriginalFails(str(signature), reason, seconds))
        return signature

    def measure(
        self, first: Judged, again: Callable[[str], Judged], expect: Callable[[int], None], *, is_doubtful: bool = False
    ) -> MeasuredRate:
        """Measure how often the failure shows, beside what is known; the arguments are those of ``measured_rate``."""
        measured = measured_rate(first, again, expect=expect, is_doubtful=is_doubtful)
        self.believe(self.rate.with_runs(measured.failed, measured.runs))
        return measured

    def believe(self, rate: MeasuredRate) -> None:
        """Set how often the failure shows, and report it if that is not every time."""
        self.rate = rate
        if rate.is_flaky:
            self._listener(events.FlakyFailure(rate.failed, rate.runs, rate.needed, CONFIDENCE))


def until_no_pass(
    once: Callable[[], Judged], times: int, expect: Callable[[int], None] = lambda times: None
) -> tuple[Judged, int]:
    """The first of up to ``times`` runs that does not pass, else the last one; and the number of runs.

    ``expect`` is called after a first pass with the number of further runs there may be.
    """
    judged, runs = once(), 1
    if judged.outcome is Outcome.PASSES:
        expect(times - 1)
    while judged.outcome is Outcome.PASSES and runs < times:
        judged, runs = once(), runs + 1
    return judged, runs
