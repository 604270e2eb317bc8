"""From the evidence of one run of a check to its outcome and reason; the signature, which makes two failures the same;
and checks that are run repeatedly: rates, their intervals, and how many runs are enough.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

from biopsy import errors
from biopsy.checks.message import Death, Message, Raised, death_in, message_of, share_any
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.processes import own_process
from biopsy.processes.watch import signal_name
from biopsy.text import first_line

CANNOT_SAY = 125
"""The exit status with which a check says that it cannot tell, as in ``git bisect run``."""

NOT_RUN = frozenset({126, 127})
"""The exit statuses with which shells say that a program could not be run or was not found."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The user's rules for when a check has failed; if any are given, they alone decide.

    ``fail_codes``: only these statuses fail. ``ignored_codes``: these do not fail. ``fail_regexes``: in addition one of
    them must match the output; without codes, the status does not matter then.
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
    """The outcome of a check. ``reference`` is the signature of the original's failure; None while it is unknown, when
    any failure counts.
    """
    decide = _by_rules if rules.decide_alone else _by_signature
    outcome, reason = _unfinished(evidence, rules, reference) or decide(evidence, rules, reference)
    settings = evidence.verdict.settings
    own_process.settings_of_checks.update(dict.fromkeys(settings))
    if settings and outcome is Outcome.PASSES:
        reason = f"{reason}, with {', '.join(settings)}"
    return Judged(outcome, reason, evidence)


def _unfinished(evidence: Evidence, rules: Rules, reference: Signature | None) -> tuple[Outcome, str] | None:
    """The outcome of a check that gave no answer of its own; None if it did."""
    verdict = evidence.verdict
    if verdict.outcome == "infrastructure":
        return Outcome.INFRASTRUCTURE, verdict.message or "the check says that it could not be run"
    if evidence.status in NOT_RUN and evidence.status not in rules.fail_codes:
        return Outcome.INFRASTRUCTURE, f"exit status {evidence.status}: a program could not be run"
    if verdict.outcome == "invalid" or (evidence.status == CANNOT_SAY and CANNOT_SAY not in rules.fail_codes):
        return Outcome.INVALID, verdict.message or f"exit status {CANNOT_SAY}"
    if not (evidence.timed_out or evidence.out_of_memory):
        return None
    signature, any_stage = signature_of(evidence), rules.decide_alone or rules.match == "any"
    if reference is not None and evidence.timed_out and not reference.timed_out:
        return Outcome.TIMED_OUT, f"no answer after {evidence.seconds:.0f} s{signature.during}"
    alike = reference is None or (
        reference.out_of_memory == evidence.out_of_memory
        and (any_stage or (reference.engine, reference.stage) == (signature.engine, signature.stage))
    )
    return (Outcome.REPRODUCES if alike else Outcome.OTHER_FAILURE), str(signature)


def _by_rules(evidence: Evidence, rules: Rules, _: Signature | None) -> tuple[Outcome, str]:
    status, raised = evidence.status, evidence.verdict.kind if evidence.returned else ""
    ending = raised or status_text(status, returned=evidence.returned)
    if rules.fail_codes:
        counts = status in rules.fail_codes
    elif rules.ignored_codes:
        counts = status not in rules.ignored_codes and (status != 0 or bool(rules.fail_regexes))
    else:
        counts = True
    if not counts:
        reason = f"{ending}, which is not counted as the failure"
    elif not rules.fail_regexes:
        return Outcome.REPRODUCES, ending
    else:
        text = evidence.output.decode("utf-8", "replace")
        pattern = next((regex.pattern for regex in rules.fail_regexes if regex.search(text)), None)
        if pattern is not None:
            return Outcome.REPRODUCES, f"the output matches '{pattern}'"
        reason = f"{ending}, and the output matches no --fail-regex"
    return (Outcome.OTHER_FAILURE if status < 0 else Outcome.PASSES), reason


def _by_signature(evidence: Evidence, rules: Rules, reference: Signature | None) -> tuple[Outcome, str]:
    """The outcome by signature. If only the words make it another failure, the reason includes them."""
    if evidence.status == 0 and evidence.verdict.outcome != "fails":
        return Outcome.PASSES, status_text(0, returned=evidence.returned)
    if evidence.verdict.outcome == "passes":
        return Outcome.PASSES, "the check says that it passes"
    signature = signature_of(evidence)
    if reference is None or same_failure(signature, reference, rules.match):
        return Outcome.REPRODUCES, str(signature)
    differs_in_words = rules.match in {"message", "exact"} and same_failure(signature, reference, "auto")
    has_words = differs_in_words and str(signature.words)
    return Outcome.OTHER_FAILURE, f"{signature}: {signature.words}" if has_words else str(signature)


# A candidate that fails in another way than the original is how a reducer most often goes astray ("slippage"), so the
# kind of failure is part of what has to be reproduced.

Match = Literal["any", "status", "auto", "message", "exact"]
"""How much of two signatures must agree. Each level adds to those before it: nothing (any failure counts); the status
or signal and what the check reported; if it reported nothing, the Python exception it died of; the meaning of the last
line; the exact words and the names of the outputs.
"""

_PLACE = re.compile(r"Exception from \S+:\d+:\s*")
"""Lines in messages of OpenVINO that name a place in its source."""

_NOTHING = Message()
_LOOKED_AT = 1 << 16
"""Bytes at the end of an output that are looked at."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The identity of a failure, as far as the check tells.

    ``message`` is what the check reported. ``raised`` are the exceptions that a Python script died of, each the cause
    of the next, and ``parts`` those of an exception group; both are empty if the check reported anything or died
    otherwise. ``words`` are the message of the last exception, or the last line of the output. ``returned``: by a
    Python function.
    """

    status: int
    timed_out: bool = False
    out_of_memory: bool = False
    engine: str = ""
    stage: str = ""
    kind: str = ""
    message: Message = _NOTHING
    raised: tuple[Raised, ...] = ()
    parts: tuple[Raised, ...] = ()
    words: Message = _NOTHING
    outputs: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    returned: bool = False

    def __str__(self) -> str:
        """Words for a person: ``compare · mismatch · onnxrt``, ``crashes when it builds · SIGSEGV · onnxrt``, ``exit
        status 1``, ``signal SIGSEGV``.
        """
        if self.timed_out:
            return f"no answer in time{self.during}"
        if self.out_of_memory:
            return f"more memory than --check-memory allows{self.during}"
        is_crash = errors.is_crash(self.stage, self.kind)
        stage = f"crashes when it {errors.STAGE_VERBS[self.stage]}" if is_crash else self.stage
        labels = [part for part in (stage, self.kind, self.engine) if part]
        ending = status_text(self.status, returned=self.returned)
        if labels and (self.status > 0 or (self.kind and ending.endswith(self.kind))):
            return " · ".join((*labels, *filter(None, [str(self.message)])))
        return " · ".join((ending, *labels, *map(str, self.raised[-1:])))

    def with_names(self, reason: str) -> str:
        """A reason with the names of the inputs and outputs that it is about, which are left out of a signature."""
        meaning = str(self.message)
        is_about_names = self.stage == "interface" and meaning
        return reason.replace(meaning, first_line(self.message.exact)) if is_about_names else reason

    @property
    def during(self) -> str:
        """What an engine was doing, to be appended to the words for a limit; "" if that is not known."""
        doing = f" when it {errors.STAGE_VERBS[self.stage]}" if self.stage in errors.STAGE_VERBS else ""
        return f"{doing} · {self.engine}" if self.engine else doing

    @property
    def reported(self) -> bool:
        """Whether the check itself reported what failed."""
        return bool(self.engine or self.stage or self.kind or self.message.exact)


def signature_of(evidence: Evidence) -> Signature:
    """The signature of a failure."""
    verdict = evidence.verdict
    reported = bool(verdict.engine or verdict.stage or verdict.kind or verdict.message)
    text = evidence.output[-_LOOKED_AT:].decode("utf-8", "replace")
    death = None if reported or evidence.status < 0 else death_in(text, evidence.status, evidence.scripts)
    return Signature(
        status=evidence.status,
        timed_out=evidence.timed_out,
        out_of_memory=evidence.out_of_memory,
        engine=verdict.engine,
        stage=verdict.stage,
        kind=verdict.kind,
        message=message_of(verdict.message, evidence.candidate),
        raised=death.chain if death else (),
        parts=death.parts if death else (),
        words=message_of(_last_words(text, death), evidence.candidate),
        outputs=tuple(sorted(verdict.outputs)),
        kinds=verdict.kinds,
        returned=evidence.returned,
    )


def _last_words(text: str, death: Death | None) -> str:
    """The first lines and the list of an exception's message; without an exception, the last line of the output.

    Only two lines, since numpy and torch add values below, which differ for each shape.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if death is None:
        return lines[-1] if lines else ""
    message = [line for line in death.message.splitlines() if line.strip() and not _PLACE.fullmatch(line)]
    listed = [line for line in message[2:] if line.lstrip().startswith("-- ")]
    last = [] if death.certain or len(message) < 3 or listed else message[-1:]
    return "\n".join([f"{death.chain[-1].kind}: {' '.join(message[:2])}", *listed, *last])


def same_failure(one: Signature, other: Signature, match: Match) -> bool:
    """Whether two failures count as the same under ``match``; ``one`` may have further kinds.

    Exception groups need only one exception in common.
    """
    agreements = (
        all(getattr(one, name) == getattr(other, name) for name in _OF_STATUS)
        and one.message.means(other.message)
        and other.kind in {one.kind, *one.kinds},
        one.raised == other.raised and share_any(one.parts, other.parts),
        one.words.means(other.words),
        (one.message.exact, one.words.exact, one.outputs) == (other.message.exact, other.words.exact, other.outputs),
    )
    return all(agreements[: get_args(Match).index(match)])


_OF_STATUS = ("status", "timed_out", "out_of_memory", "engine", "stage")


def status_text(status: int, *, returned: bool = False) -> str:
    """``exit status 1`` or ``signal SIGSEGV``; ``the function returned True`` if it is not a process's."""
    if returned:
        return f"the function returned {status != 0}"
    return f"exit status {status}" if status >= 0 else f"signal {signal_name(-status).removeprefix('signal ')}"


_Z_OF_95_PERCENT, _Z_OF_93_PERCENT = 1.96, 1.5
_RUNS_AT_FIRST, _RUNS_TO_MEASURE = 3, 20

CONFIDENCE = 0.99
"""How sure a pass is believed to be no luck, unless the user says otherwise."""

_ROUNDING = 1e-12  # relative; far below one run, far above the rounding error of the quotient


def interval(hits: int, runs: int, z: float = _Z_OF_95_PERCENT) -> tuple[float, float]:
    """The Wilson score interval of a rate seen ``hits`` times in ``runs`` runs, as two rates between 0 and 1.

    Unlike the textbook's ``p +- z * sqrt(p * (1 - p) / n)``, it is sensible for few runs, and for none or all hits: a
    failure not seen in 10 runs may still have a rate of 28 %. ``z`` is the quantile of the normal distribution, 1.96
    for 95 %. Without runs it is 0 to 1. Raises ValueError if ``hits`` is not between 0 and ``runs``.

    E. B. Wilson, Probable inference, the law of succession, and statistical inference. JASA 22 (1927), 209-212.
    """
    if not 0 <= hits <= runs:
        raise ValueError(f"{hits} of {runs} runs is not a count")
    if runs == 0:
        return 0.0, 1.0
    rate, square = hits / runs, z * z
    middle = rate + square / (2 * runs)
    reach = z * math.sqrt(rate * (1 - rate) / runs + square / (4 * runs * runs))
    scale = 1 + square / runs
    lower = 0.0 if hits == 0 else max(0.0, (middle - reach) / scale)
    upper = 1.0 if hits == runs else min(1.0, (middle + reach) / scale)
    return lower, upper


def runs_needed(rate: float, confidence: float) -> int:
    """How many independent runs show a failure of this rate at least once with this confidence.

    The least n with ``(1 - rate)**n <= 1 - confidence``. For a measured rate, pass the lower bound of ``interval`` to
    be safe. Raises ValueError unless 0 < rate <= 1 and 0 < confidence < 1: no number of runs gives certainty.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"a rate is above 0 and at most 1, not {rate}")
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence is between 0 and 1, not {confidence}")
    if rate == 1:
        return 1
    exact = math.log1p(-confidence) / math.log1p(-rate)
    return max(1, math.ceil(exact * (1 - _ROUNDING)))  # 0.99 of 0.9 is 2 runs, though the quotient is above 2


def passes_needed(failed: int, runs: int, confidence: float = CONFIDENCE) -> int:
    """How many passing runs prove that a failure is gone, after it showed in ``failed`` of ``runs`` runs.

    This is the one rule for every statement that something passes where something else fails. If only some runs
    failed, the lower end of the rate's 93 % one-sided interval decides: too many runs cost less than a lucky pass. If
    all did, the failure may be flaky all the same: the number is the least ``n`` for which no rate ``p`` makes
    ``failed`` failures and then ``n`` passes likelier than ``1 - confidence``. That likelihood, ``p**failed *
    (1 - p)**n``, is greatest at ``p = failed / (failed + n)``. Without a failure there is nothing to be gone: 1.
    """
    if failed == 0:
        return 1
    if failed < runs:
        return runs_needed(interval(failed, runs, _Z_OF_93_PERCENT)[0], confidence)
    for needed in itertools.count(1):
        rate = failed / (failed + needed)
        if rate**failed * (1 - rate) ** needed <= 1 - confidence:
            break
    return needed


RUNS_TO_TELL_APART = next(runs for runs in itertools.count(1) if passes_needed(runs, runs) <= runs)
"""How often one thing must fail and another pass, run in turn, before it is said that they differ."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRate:
    """How often a failure showed: in ``failed`` of ``runs`` runs."""

    failed: int = 0
    runs: int = 0

    @property
    def is_flaky(self) -> bool:
        """Whether it showed in some runs only."""
        return 0 < self.failed < self.runs

    @property
    def needed(self) -> int:
        """How many runs must pass for a search to go on as if the failure were gone: one if it seems steady."""
        return self.proof if self.is_flaky else 1

    @property
    def proof(self) -> int:
        """How many runs must pass before it is said that the failure is gone (``passes_needed``)."""
        return passes_needed(self.failed, self.runs)

    def with_runs(self, failed: int, runs: int) -> Self:
        """The rate with further runs counted."""
        return replace(self, failed=self.failed + failed, runs=self.runs + runs)


UNKNOWN_RATE = MeasuredRate()
"""That of a failure of which no run is known."""


def measured_rate(
    first: Judged, again: Callable[[str], Judged], expect: Callable[[int], None], *, is_doubtful: bool = False
) -> MeasuredRate:
    """Measure how often a failure shows: in three runs, or in twenty if these disagree, or if it ``is_doubtful``.

    ``first`` is the run already made; ``again`` makes another one, and gets the purpose in words. ``expect`` is called
    beforehand with the number of runs to come.
    """
    answers = [first]
    expect(_RUNS_AT_FIRST - 1)
    while len(answers) < _RUNS_AT_FIRST:
        answers.append(again("whether it fails every time"))
    if is_doubtful or any(judged.outcome is not Outcome.REPRODUCES for judged in answers):
        expect(_RUNS_TO_MEASURE - _RUNS_AT_FIRST)
        while len(answers) < _RUNS_TO_MEASURE:
            answers.append(again("how often it fails"))
    failed = sum(judged.outcome is Outcome.REPRODUCES for judged in answers)
    return MeasuredRate(failed=failed, runs=len(answers))


def rate_text(hits: int, runs: int) -> str:
    """A count as a rate for people, with its interval: ``7 of 20, 35 % (95 % sure: 18 to 57 %)``."""
    if runs == 0:
        return "0 of 0"
    lower, upper = interval(hits, runs)
    return f"{hits} of {runs}, {_percent(hits / runs)} % (95 % sure: {_percent(lower)} to {_percent(upper)} %)"


def _percent(rate: float) -> str:
    """A rate in percent, with enough decimals not to look like 0 or 100 unless it is."""
    percent = 100 * rate
    distance = min(percent, 100 - percent)
    if distance >= 10 or distance <= 0:
        return f"{percent:.0f}"
    decimals = min(6, 1 - math.floor(math.log10(distance)))
    return f"{percent:.{decimals}f}".rstrip("0").removesuffix(".")


@dataclass(frozen=True)
class RepeatedRun:
    """One run of the command: its number, from 0 in the order of starting, and its outcome."""

    number: int
    judged: Judged


@dataclass(frozen=True)
class Kind:
    """A kind of failure: the reason and number of its first run, and how often it was met."""

    reason: str
    signature: Signature
    first: int
    times: int = 1


class RunTally:
    """Counts the outcomes of many runs, without their output. ``match`` says which failures are of one kind."""

    def __init__(self, match: Match) -> None:
        self._match = match
        self.outcomes: Counter[Outcome] = Counter()
        self.kinds: list[Kind] = []

    def add(self, run: RepeatedRun) -> bool:
        """Count one run; returns whether it is the first failure of its kind."""
        judged = run.judged
        self.outcomes[judged.outcome] += 1
        if judged.outcome not in {Outcome.REPRODUCES, Outcome.OTHER_FAILURE}:
            return False
        new = Kind(judged.reason, signature_of(judged.evidence), run.number)
        for place, known in enumerate(self.kinds):
            # The reason tells more than the signature if regular expressions or codes decide.
            is_alike = self._match == "any" or known.reason == new.reason
            if is_alike and same_failure(known.signature, new.signature, self._match):
                self.kinds[place] = replace(known, times=known.times + 1)
                return False
        self.kinds.append(new)
        return True

    @property
    def runs(self) -> int:
        """How many runs were counted."""
        return self.outcomes.total()

    @property
    def passed(self) -> int:
        """How many passed."""
        return self.outcomes[Outcome.PASSES]

    @property
    def failed(self) -> int:
        """How many failed."""
        return self.outcomes[Outcome.REPRODUCES]

    @property
    def decided(self) -> int:
        """How many passed or failed, the total for rates; other outcomes say nothing about either."""
        return self.passed + self.failed

    @property
    def undecided(self) -> dict[Outcome, int]:
        """How many runs ended with each outcome that is neither a pass nor a failure."""
        decided = {Outcome.PASSES, Outcome.REPRODUCES}
        return {outcome: times for outcome, times in self.outcomes.items() if outcome not in decided}
