"""Holding the single figures of two tensors against their limits."""

from __future__ import annotations

from dataclasses import dataclass

from biopsy import errors
from biopsy.comparison import metrics, similarity
from biopsy.comparison.metrics import Element
from biopsy.comparison.tolerance import AT_LEAST, STRICTEST, Limit
from biopsy.tensors.results import Array


@dataclass(frozen=True, kw_only=True)
class JudgedLimit:
    """One figure and its limit.

    ``value`` of "indices" is how many of ``ranks`` indices are out of place, of "ulp" the greatest distance; ``worst``
    is the element of that distance, or the first rank out of place with both indices. None where nothing differs.
    """

    limit: Limit
    value: float
    passed: bool
    worst: Element | None = None
    ranks: int = 0


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All figures of two numeric tensors of one shape (see similarity.py); ``ulp`` is the greatest distance."""

    l2: float
    cosine: float
    psnr: float
    snr: float
    ulp: float


def figures(actual: Array, expected: Array) -> Figures:
    """Every figure, for a report."""
    return Figures(
        l2=similarity.l2(actual, expected),
        cosine=similarity.cosine(actual, expected),
        psnr=similarity.psnr(actual, expected),
        snr=similarity.snr(actual, expected),
        ulp=float(similarity.ulps(actual, expected).max(initial=0)),
    )


def judge(name: str, actual: Array, expected: Array, limit: Limit) -> JudgedLimit:
    """Whether two numeric tensors of one shape keep a limit; the strictest one is kept only by equal tensors.

    Raises DoesNotFit if the top elements are asked for along an axis that the output ``name`` does not have.
    """
    if limit.metric == "indices":
        return _judge_ranks(name, actual, expected, limit)
    worst = None
    if limit.metric == "ulp":
        distances = similarity.ulps(actual, expected)
        value = float(distances.max(initial=0))
        worst = metrics.worst(actual, expected, distances)
    elif metrics.differing(actual, expected).any():
        value = float(getattr(similarity, limit.metric)(actual, expected))
    else:
        value = STRICTEST[limit.metric]
    kept = value >= limit.value if limit.metric in AT_LEAST else value <= limit.value
    if limit.metric == "cosine" and metrics.differing(actual, expected).any():  # 1 also for a multiple of the other
        kept = kept and limit.value < STRICTEST["cosine"]
    return JudgedLimit(limit=limit, value=value, passed=kept, worst=worst)


def _judge_ranks(name: str, actual: Array, expected: Array, limit: Limit) -> JudgedLimit:
    left, right = actual, expected
    if limit.top is not None:
        try:
            left, right = (similarity.top_k(side, limit.top) for side in (actual, expected))
        except ValueError as error:
            raise errors.DoesNotFit(
                f"output {name!r} of shape {list(actual.shape)} has no axis {limit.top.axis} to rank along"
            ) from error
    found = similarity.rank_mismatches(left, right, int(limit.value))
    worst = None
    if found.first is not None:
        ours, theirs = (metrics.element(side.reshape(found.shape), found.first) for side in (left, right))
        worst = Element(found.first, ours, theirs, 1.0)
    return JudgedLimit(limit=limit, value=found.count, passed=found.count == 0, worst=worst, ranks=found.ranks)
