"""What counts as the failure of the original: the rules, its signature, and how large its error is."""

from __future__ import annotations

from dataclasses import replace

from biopsy import events
from biopsy.checks.judge import Rules, judge
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.checks.signature import Signature
from biopsy.comparison.mismatch import Mismatch, why_not


class FailureJudge:
    """Judges evidence by the user's rules.

    ``reference`` is the signature of the original's failure; None while it is not known, when any failure counts.
    ``original``: how the original's outputs differ, where a candidate's must be comparable.
    """

    def __init__(self, rules: Rules, listener: events.Listener) -> None:
        self.rules = rules
        self.reference: Signature | None = None
        self.original: tuple[Mismatch, ...] = ()
        self._listener = listener
        self._told_unjudged = False

    def judge(self, evidence: Evidence) -> Judged:
        """The outcome. The same failure in kind is another one if it is much smaller and only rounding."""
        judged, verdict = judge(evidence, self.rules, self.reference), evidence.verdict
        unjudged = verdict.rounding is not None and verdict.rounding.verdict == "unknown"
        if unjudged and self.original and judged.outcome is Outcome.REPRODUCES and not self._told_unjudged:
            self._told_unjudged = True
            assert verdict.rounding is not None
            self._listener(
                events.Remark(f"rounding   float64 could not judge; error sizes decide: {verdict.rounding.reason}")
            )
        return self.guess(evidence)

    def guess(self, evidence: Evidence) -> Judged:
        """The same, and nobody is told of it."""
        judged = judge(evidence, self.rules, self.reference)
        if judged.outcome is not Outcome.REPRODUCES or not self.original:
            return judged
        reason = why_not(evidence.verdict.mismatches, self.original, evidence.verdict.rounding)
        if reason is None:
            return judged
        return replace(judged, outcome=Outcome.OTHER_FAILURE, reason=f"{judged.reason}, {reason}")
