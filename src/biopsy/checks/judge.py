"""From the evidence of one run of a check to its outcome, always with the reason."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.checks.signature import Match, Signature, same_failure, signature_of, status_text

CANNOT_SAY = 125
"""The exit status with which a check says that it cannot tell, as for ``git bisect run``."""

NOT_RUN = frozenset({126, 127})
"""The statuses with which shells say that a program could not be run or was not found."""


settings_heard: dict[str, None] = {}
"""What settings files gave to commands inside of the checks that were judged here: what their answers rest on too."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a person said of when a check counts as failed; where they say something, they decide alone.

    ``fail_codes``: only these statuses fail. ``ignored_codes``: these do not. ``fail_regexes``: and only if one of
    them is found in the output, whatever the status if no codes are given.
    """

    fail_codes: frozenset[int] = frozenset()
    ignored_codes: frozenset[int] = frozenset()
    fail_regexes: tuple[re.Pattern[str], ...] = ()
    match: Match = "auto"

    @property
    def decide_alone(self) -> bool:
        """Whether codes or regular expressions are given."""
        return bool(self.fail_codes or self.ignored_codes or self.fail_regexes)


def judge(evidence: Evidence, rules: Rules, reference: Signature | None) -> Judged:
    """The outcome of a check. ``reference`` is the signature of the original's failure; None while it is not known,
    when any failure is taken for the failure.
    """
    outcome, reason = _judge(evidence, rules, reference)
    settings = evidence.verdict.settings
    settings_heard.update(dict.fromkeys(settings))
    if settings and outcome is Outcome.PASSES:
        reason = f"{reason}, with {', '.join(settings)}"
    return Judged(outcome, reason, evidence)


def judge_any_failure(evidence: Evidence, rules: Rules) -> Judged:
    """The outcome where any failure counts, since there is no first one to be like. No answer in time is none."""
    judged = judge(evidence, rules, None)
    if evidence.timed_out and judged.outcome is Outcome.REPRODUCES:
        return replace(judged, outcome=Outcome.TIMED_OUT, reason=f"no answer after {evidence.seconds:.3g} s")
    return judged


def _judge(evidence: Evidence, rules: Rules, reference: Signature | None) -> tuple[Outcome, str]:
    said = evidence.verdict
    if said.outcome == "infrastructure":
        return Outcome.INFRASTRUCTURE, said.message or "the check says that it could not be run"
    if evidence.status in NOT_RUN and evidence.status not in rules.fail_codes:
        return Outcome.INFRASTRUCTURE, f"exit status {evidence.status}: a program could not be run"
    if said.outcome == "invalid" or (evidence.status == CANNOT_SAY and CANNOT_SAY not in rules.fail_codes):
        return Outcome.INVALID, said.message or f"exit status {CANNOT_SAY}"
    if evidence.timed_out:
        if reference is None or reference.timed_out:
            return Outcome.REPRODUCES, "no answer in time"
        return Outcome.TIMED_OUT, f"no answer after {evidence.seconds:.0f} s"
    if evidence.out_of_memory:
        outcome = Outcome.REPRODUCES if reference is None or reference.out_of_memory else Outcome.OTHER_FAILURE
        return outcome, "more memory than --check-memory allows"
    if rules.decide_alone:
        return _by_rules(evidence, rules)
    return _by_signature(evidence, rules, reference)


def _by_rules(evidence: Evidence, rules: Rules) -> tuple[Outcome, str]:
    status = evidence.status
    counted = _status_counts(status, rules)
    if counted and rules.fail_regexes:
        text = evidence.output.decode("utf-8", "replace")
        found = next((regex.pattern for regex in rules.fail_regexes if regex.search(text)), None)
        if found is not None:
            return Outcome.REPRODUCES, f"the output matches '{found}'"
        reason = f"{status_text(status)}, and the output matches no --fail-regex"
    elif counted:
        return Outcome.REPRODUCES, status_text(status)
    else:
        reason = f"{status_text(status)}, which is not counted as the failure"
    return (Outcome.OTHER_FAILURE if status < 0 else Outcome.PASSES), reason


def _status_counts(status: int, rules: Rules) -> bool:
    if rules.fail_codes:
        return status in rules.fail_codes
    if rules.ignored_codes:
        return status not in rules.ignored_codes and (status != 0 or bool(rules.fail_regexes))
    return True


def _by_signature(evidence: Evidence, rules: Rules, reference: Signature | None) -> tuple[Outcome, str]:
    if evidence.status == 0 and evidence.verdict.outcome != "fails":
        return Outcome.PASSES, "exit status 0"
    if evidence.verdict.outcome == "passes":
        return Outcome.PASSES, "the check says that it passes"
    found = signature_of(evidence)
    if reference is None or same_failure(found, reference, rules.match):
        return Outcome.REPRODUCES, str(found)
    return Outcome.OTHER_FAILURE, _in_words(found, reference, rules.match)


def _in_words(found: Signature, reference: Signature, match: Match) -> str:
    """Another failure in words, with what it says at its end where only that makes it another one."""
    if match in {"message", "exact"} and same_failure(found, reference, "auto") and str(found.words):
        return f"{found}: {found.words}"
    return str(found)
