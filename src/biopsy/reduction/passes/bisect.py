"""The earliest outputs that fail, then the latest inputs that still do: one contiguous piece, in O(log N) checks."""

from __future__ import annotations

from biopsy.reduction.candidate import Candidate, NodeSearch, Proposal
from biopsy.reduction.pass_context import PassContext
from biopsy.reduction.problem import Problem
from biopsy.search.prefix import shortest_prefix
from biopsy.search.rounds import Search


def bisect(context: PassContext, target: Candidate) -> NodeSearch:
    """Halve the model from its end, then what is left from its beginning."""
    problem = context.problem
    if problem.may_cut_outputs:
        target = yield from _shortest(problem, target, "first")
    if problem.may_cut_inputs:
        yield from _shortest(problem, target, "last")


def _shortest(problem: Problem, target: Candidate, side: str) -> Search[Proposal, Candidate, Candidate]:
    order = problem.order(target)
    if side == "last":
        order.reverse()

    def propose(count: int) -> Proposal:
        return Proposal(Candidate(tuple(sorted(order[:count]))), f"the {side} {count} of {len(order)} nodes")

    _, shortest = yield from shortest_prefix(len(order), propose)
    return shortest or target
