"""A check that is run again and again: what can be said of its rate, how sure that is, and how many runs are enough."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from biopsy.checks.judge import Match, Signature, same_failure, signature_of
from biopsy.checks.outcome import Judged, Outcome

_Z_OF_95_PERCENT = 1.96
_RUNS_AT_FIRST, _RUNS_TO_MEASURE = 3, 20
_ROUNDING = 1e-12  # relative; far below one run, far above the error of two logarithms


def interval(hits: int, runs: int, z: float = _Z_OF_95_PERCENT) -> tuple[float, float]:
    """The Wilson score interval of a rate seen ``hits`` times in ``runs`` runs, as two rates between 0 and 1.

    Unlike the textbook's ``p +- z * sqrt(p * (1 - p) / n)`` it says something sensible of few runs, and of none or all
    of them: never seen in 10 runs is still up to 28 %. ``z`` is the quantile of the normal distribution, 1.96 for 95 %.
    Without any run it is everything: 0 to 1. Raises ValueError if ``hits`` is not between 0 and ``runs``.

    E. B. Wilson, Probable inference, the law of succession, and statistical inference. JASA 22 (1927), 209-212.
    """
    if not 0 <= hits <= runs:
        raise ValueError(f"{hits} of {runs} runs is no count")
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
    """How many runs show a failure of this rate at least once with this confidence; so many that all pass are no luck.

    The least n with ``(1 - rate)**n <= 1 - confidence``, for runs that do not depend on each other. Give the lower
    bound of ``interval`` as the rate to be safe where it was only measured. Raises ValueError if the rate is not above
    0 and at most 1, or the confidence not between 0 and 1, both excluded: no number of runs makes certain.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"a rate is above 0 and at most 1, not {rate}")
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence is between 0 and 1, not {confidence}")
    if rate == 1:
        return 1
    exact = math.log1p(-confidence) / math.log1p(-rate)
    return max(1, math.ceil(exact * (1 - _ROUNDING)))  # 0.99 of 0.9 is 2 runs, though its quotient is above 2


@dataclass(frozen=True, kw_only=True)
class MeasuredRate:
    """How often a failure showed: in ``failed`` of ``runs`` runs; ``needed`` runs that all pass are no luck."""

    failed: int
    runs: int
    needed: int = 1


def measured_rate(
    first: Judged,
    again: Callable[[str], Judged],
    confidence: float = 0.99,
    *,
    expect: Callable[[int], None] = lambda times: None,
) -> MeasuredRate:
    """How often a failure shows, if it showed at all: in three runs, and in twenty if these do not agree.

    ``first`` is the run that there was; ``again`` runs once more, and is told in words why. ``expect`` is told before
    how many times.
    """
    answers = [first]
    expect(_RUNS_AT_FIRST - 1)
    while len(answers) < _RUNS_AT_FIRST:
        answers.append(again("whether it fails every time"))
    if any(judged.outcome is not Outcome.REPRODUCES for judged in answers):
        expect(_RUNS_TO_MEASURE - _RUNS_AT_FIRST)
        while len(answers) < _RUNS_TO_MEASURE:
            answers.append(again("how often it fails"))
    return rate_of(sum(judged.outcome is Outcome.REPRODUCES for judged in answers), len(answers), confidence)


def rate_of(failed: int, runs: int, confidence: float = 0.99) -> MeasuredRate:
    """A rate that was measured; a failure that shows always or never needs one run."""
    steady = failed in (0, runs)
    needed = 1 if steady else runs_needed(interval(failed, runs, 1.0)[0], confidence)
    return MeasuredRate(failed=failed, runs=runs, needed=needed)


def rate_text(hits: int, runs: int) -> str:
    """A count as a rate for people, with what is known of it: ``7 of 20, 35 % (95 % sure: 18 to 57 %)``."""
    if runs == 0:
        return "0 of 0"
    lower, upper = interval(hits, runs)
    return f"{hits} of {runs}, {_percent(hits / runs)} % (95 % sure: {_percent(lower)} to {_percent(upper)} %)"


def _percent(rate: float) -> str:
    """Percents with as many decimals as it takes not to look like 0 or 100 where they are neither."""
    percent = 100 * rate
    distance = min(percent, 100 - percent)
    if distance >= 10 or distance <= 0:
        return f"{percent:.0f}"
    decimals = min(6, 1 - math.floor(math.log10(distance)))
    return f"{percent:.{decimals}f}".rstrip("0").removesuffix(".")


@dataclass(frozen=True)
class RepeatedRun:
    """One run of the command: its number, from 0 in the order in which they were begun, and what it said."""

    number: int
    judged: Judged


@dataclass(frozen=True)
class Kind:
    """A kind of failure: how its first run was judged, the number of that run, and how often it was met."""

    reason: str
    signature: Signature
    first: int
    times: int = 1


class RunTally:
    """What many runs add up to. What they printed is not kept. ``match`` says which failures are of one kind."""

    def __init__(self, match: Match) -> None:
        self._match = match
        self.outcomes: Counter[Outcome] = Counter()
        self.kinds: list[Kind] = []

    def add(self, run: RepeatedRun) -> bool:
        """Count one run; returns whether it fails in a way that was not met before."""
        judged = run.judged
        self.outcomes[judged.outcome] += 1
        if judged.outcome not in {Outcome.REPRODUCES, Outcome.OTHER_FAILURE}:
            return False
        found = Kind(judged.reason, signature_of(judged.evidence), run.number)
        for place, known in enumerate(self.kinds):
            if self._same(known, found):
                self.kinds[place] = replace(known, times=known.times + 1)
                return False
        self.kinds.append(found)
        return True

    def _same(self, one: Kind, other: Kind) -> bool:
        """The reason tells more than the signature where regular expressions or codes decide."""
        if self._match != "any" and one.reason != other.reason:
            return False
        return same_failure(one.signature, other.signature, self._match)

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
        """How many passed or failed: what rates are rates of. The others say nothing about either."""
        return self.passed + self.failed

    @property
    def undecided(self) -> dict[Outcome, int]:
        """How many ended in each other way."""
        decided = {Outcome.PASSES, Outcome.REPRODUCES}
        return {outcome: times for outcome, times in self.outcomes.items() if outcome not in decided}
