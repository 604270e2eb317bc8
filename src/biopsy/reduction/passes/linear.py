"""One node at a time, from the end of the model to its beginning: O(N) checks."""

from __future__ import annotations

from dataclasses import replace

from biopsy.reduction.candidate import Candidate, Proposal, Search
from biopsy.reduction.problem import Problem


def linear(problem: Problem, target: Candidate) -> Search:
    """Try to do without each node once, wherever it stands."""
    for node in reversed(problem.order(target)):
        if node in target.nodes:
            kept = replace(target, nodes=tuple(other for other in target.nodes if other != node))
            answer = yield [Proposal(kept, f"without {problem.index.nodes[node].label}")]
            target = answer or target
