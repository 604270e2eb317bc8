"""The earliest outputs that fail, then the latest inputs that still do: one contiguous piece, in O(log N) checks."""

from __future__ import annotations

from biopsy.reduction.candidate import Candidate, NodeSearch, Proposal
from biopsy.reduction.pass_context import PassContext
from biopsy.reduction.problem import Problem
from biopsy.search.prefix import Likelihood, near, shortest_prefix
from biopsy.search.rounds import Search


def bisect(context: PassContext, target: Candidate) -> NodeSearch:
    """Halve the model from its end; then take what the failure needs before the last node that is left.

    That node is most often all of it, or the end of a small piece: see ``_small``.
    """
    problem = context.problem
    if problem.may_cut_outputs:
        target = yield from _shortest(problem, target, "first", float)
    if problem.may_cut_inputs:
        yield from _shortest(problem, target, "last", _small(target.size) if problem.may_cut_outputs else float)


def _small(length: int) -> Likelihood:
    """A single node as likely as all other pieces together; of these, small ones are likelier than long ones."""
    return lambda count: (1 + near(count, length)) / 2 if count else 0.0


def _shortest(
    problem: Problem, target: Candidate, side: str, likely: Likelihood
) -> Search[Proposal, Candidate, Candidate]:
    order = problem.order(target)
    if side == "last":
        order.reverse()

    def propose(count: int) -> Proposal:
        return Proposal(Candidate(tuple(sorted(order[:count]))), f"the {side} {count} of {len(order)} nodes")

    _, shortest = yield from shortest_prefix(len(order), propose, likely=likely)
    return shortest or target
