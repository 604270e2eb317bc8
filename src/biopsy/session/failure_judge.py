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
        judged = judge(evidence, self.rules, self.reference)
        rounding = evidence.verdict.rounding
        compares = judged.outcome is Outcome.REPRODUCES and self.original
        if compares and rounding is not None and rounding.verdict == "unknown" and not self._told_unjudged:
            self._told_unjudged = True
            self._listener(events.Remark(f"rounding   float64 could not judge; error sizes decide: {rounding.reason}"))
        return self._by_size(judged)

    def guess(self, evidence: Evidence) -> Judged:
        """The same, and nobody is told of it."""
        return self._by_size(judge(evidence, self.rules, self.reference))

    def _by_size(self, judged: Judged) -> Judged:
        evidence = judged.evidence
        if judged.outcome is not Outcome.REPRODUCES or not self.original:
            return judged
        reason = why_not(evidence.verdict.mismatches, self.original, evidence.verdict.rounding)
        if reason is None:
            return judged
        return replace(judged, outcome=Outcome.OTHER_FAILURE, reason=f"{judged.reason}, {reason}")
