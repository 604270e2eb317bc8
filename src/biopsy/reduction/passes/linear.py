"""One node at a time, from the end of the model to its beginning: O(N) checks."""

from __future__ import annotations

from biopsy.reduction.candidate import Candidate, Proposal, Search
from biopsy.reduction.problem import Problem


def linear(problem: Problem, target: Candidate) -> Search:
    """Try to do without each node once, wherever it stands.

    One that comes back, since nobody can tell the type of what would stand at the border, goes with the next ones.
    """
    waiting: set[int] = set()
    left = set(target.nodes)
    for node in reversed(problem.order(target)):
        if node in left:
            waiting.add(node)
            answer = yield [Proposal(target.without(waiting), f"without {problem.index.nodes[node].label}")]
            if answer != target:
                target, waiting = answer or target, set()
                left = set(target.nodes)
