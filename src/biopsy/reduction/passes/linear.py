"""One node at a time, from the end of the model to its beginning: O(N) checks."""

from __future__ import annotations

from dataclasses import replace

from biopsy.reduction.candidate import Candidate, Proposal, Search
from biopsy.reduction.problem import Problem


def linear(problem: Problem, target: Candidate) -> Search:
    """Try to do without each node once, wherever it stands.

    One that comes back, since nobody can tell the type of what would stand at the border, goes with the next ones.
    """
    waiting: list[int] = []
    for node in reversed(problem.order(target)):
        if node in target.nodes:
            waiting.append(node)
            kept = replace(target, nodes=tuple(other for other in target.nodes if other not in waiting))
            answer = yield [Proposal(kept, f"without {problem.index.nodes[node].label}")]
            if answer != target:
                target, waiting = answer or target, []
