"""The earliest outputs that fail, then the latest inputs that still do: one contiguous piece, in O(log N) checks."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from biopsy.reduction.candidate import Candidate, Proposal, Round, Search
from biopsy.reduction.problem import Problem


def bisect(problem: Problem, target: Candidate) -> Search:
    """Halve the model from its end, then what is left from its beginning.

    Binary search needs no monotony to be right, only to be best: whatever it ends at has been seen to fail.
    """
    if problem.may_cut_outputs:
        target = yield from _shortest(problem, target, from_end=True)
    if problem.may_cut_inputs:
        yield from _shortest(problem, target, from_end=False)


def _shortest(problem: Problem, target: Candidate, *, from_end: bool) -> Generator[Round, Candidate | None, Candidate]:
    order = problem.order(target)
    count = len(order)
    low, high = 0, count  # 'high' nodes are known to fail; 'low' are known, or taken, to pass
    while high - low > 1:
        middle = (low + high) // 2
        kept = order[:middle] if from_end else order[count - middle :]
        description = f"the first {middle} of {count} nodes" if from_end else f"the last {middle} of {count} nodes"
        answer = yield [Proposal(_candidate(kept), description)]
        if answer is None:
            low = middle
        else:
            high, target = middle, answer
    return target


def _candidate(nodes: Sequence[int]) -> Candidate:
    return Candidate(tuple(sorted(nodes)))
