"""What counts as the failure, and runs of a check outside of a search over models: one after the other, each counted,
told and judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from biopsy import errors, events
from biopsy.checks.judge import Rules, Signature, judge, signature_of
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.checks.repetition import MeasuredRate, measured_rate
from biopsy.comparison.mismatch import Mismatch, why_not


class FailureJudge:
    """Judges evidence by the user's rules.

    ``reference`` is the signature of the original's failure; None while it is not known, when any failure counts.
    ``original``: how the original's outputs differ, where a candidate's must be comparable.
    """

    def __init__(self, rules: Rules, listener: events.Listener = events.ignore) -> None:
        self.rules = rules
        self.reference: Signature | None = None
        self.original: tuple[Mismatch, ...] = ()
        self._listener = listener
        self._told_unjudged = False

    def judge(self, evidence: Evidence) -> Judged:
        """The outcome, and a remark where sizes of errors had to decide because float64 could not."""
        return self._judged(evidence, self._listener)

    def guess(self, evidence: Evidence) -> Judged:
        """The same, and nobody is told of it."""
        return self._judged(evidence, None)

    def _judged(self, evidence: Evidence, listener: events.Listener | None) -> Judged:
        """The outcome. The same failure in kind is another one if it is much smaller and only rounding."""
        judged = judge(evidence, self.rules, self.reference)
        if judged.outcome is not Outcome.REPRODUCES or not self.original:
            return judged
        rounding = evidence.verdict.rounding
        if listener is not None and rounding is not None and rounding.verdict == "unknown" and not self._told_unjudged:
            self._told_unjudged = True
            listener(events.Remark(f"rounding   float64 could not judge; error sizes decide: {rounding.reason}"))
        reason = why_not(evidence.verdict.mismatches, self.original, rounding)
        if reason is None:
            return judged
        return replace(judged, outcome=Outcome.OTHER_FAILURE, reason=f"{judged.reason}, {reason}")


def judge_any_failure(evidence: Evidence, rules: Rules) -> Judged:
    """The outcome where any failure counts, since there is no first one to be like. No answer in time is none."""
    judged = judge(evidence, rules, None)
    if evidence.timed_out and judged.outcome is Outcome.REPRODUCES:
        return replace(judged, outcome=Outcome.TIMED_OUT, reason=f"no answer after {evidence.seconds:.3g} s")
    return judged


def cannot_run(judged: Judged, line: str, kept: str | None = None) -> errors.CheckError:
    """The error for a check that could not be run, with its ``line``."""
    return errors.CheckError(
        f"the check could not be run: {judged.reason}", kept=kept, next_steps=[f"run it by hand: {line}"]
    )


class CheckRuns:
    """Runs of a check that a question asks for, one after the other: each is counted, told and judged.

    ``stage`` names the question in events, in which runs are numbered from ``first``. ``failure`` judges: any failure
    counts until ``take_failure`` was told of the first one. ``rate`` is how often it shows, as far as that is known: a
    pass is believed after ``rate.needed`` runs. ``checks`` counts the runs.
    """

    def __init__(
        self, stage: str, rules: Rules | None = None, listener: events.Listener = events.ignore, *, first: int = 0
    ) -> None:
        self.failure = FailureJudge(Rules() if rules is None else rules, listener)
        self.rate = MeasuredRate(failed=0, runs=0)
        self.checks = 0
        self._stage = stage
        self._first = first
        self._listener = listener

    def on_another_model(self, listener: events.Listener | None = None) -> CheckRuns:
        """Runs on another model, counted apart, which are compared with the same failure."""
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
        """One run. ``line`` is what a person types for it; ``judged_by`` judges, if not ``failure``.

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
        """Make this the failure that all later ones are compared with. Returns its signature."""
        self.failure.reference = signature = signature_of(judged.evidence)
        self._listener(events.OriginalFails(str(signature), judged.reason, judged.evidence.seconds))
        return signature

    def measure(self, first: Judged, again: Callable[[str], Judged], expect: Callable[[int], None]) -> MeasuredRate:
        """How often the failure shows; the arguments are those of ``measured_rate``."""
        rate = measured_rate(first, again, expect=expect)
        self.believe(rate)
        return rate

    def believe(self, rate: MeasuredRate) -> None:
        """Take this as how often the failure shows, and report it if that is not every time."""
        self.rate = rate
        if rate.needed > 1:
            self._listener(events.FlakyFailure(rate.failed, rate.runs, rate.needed, 0.99))


def until_no_pass(
    once: Callable[[], Judged], times: int, expect: Callable[[int], None] = lambda times: None
) -> tuple[Judged, int]:
    """The first of up to ``times`` runs that does not pass, else the last one; and how many runs that took.

    ``expect`` is told, after a first pass, how many more runs there may be.
    """
    judged, runs = once(), 1
    if judged.outcome is Outcome.PASSES:
        expect(times - 1)
    while judged.outcome is Outcome.PASSES and runs < times:
        judged, runs = once(), runs + 1
    return judged, runs
