"""One node at a time, from the end of the model to its beginning: O(N) checks."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.reduction.candidate import Candidate, NodeSearch, Proposal
from biopsy.reduction.pass_context import PassContext
from biopsy.search.removal import remove_singly


def linear(context: PassContext, target: Candidate) -> NodeSearch:
    """Try to do without each node once, wherever it stands.

    One that comes back, since nobody can tell the type of what would stand at the border, goes with the next ones.
    """
    problem = context.problem

    def without(target: Candidate, gone: Sequence[int]) -> list[Proposal]:
        return [Proposal(target.without(gone), f"without {problem.index.nodes[gone[-1]].label}")]

    order = problem.order(target)[::-1]
    yield from remove_singly(order, target, without, lambda left: set(left.nodes), problem.comes_back)
