"""What can be said of a rate from a number of runs: how sure it is, and how many runs would be enough."""

from __future__ import annotations

import math

_Z_OF_95_PERCENT = 1.96
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
