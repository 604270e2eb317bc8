"""The other form of every cut: a node is needed only if the failure goes without it, be it fed or frozen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from biopsy.reduction.candidate import Candidate, NodeSearch, Proposal
from biopsy.reduction.pass_context import PassContext
from biopsy.reduction.problem import Problem
from biopsy.search.prefix import in_turn
from biopsy.search.removal import remove_in_runs


def forms(context: PassContext, target: Candidate) -> NodeSearch:
    """Try to do without each node once, what it computed fed, and frozen, whatever the policy makes of it.

    An engine computes with a constant before the model runs, and there the bug may be gone; or only there it may be.
    What goes from one end often goes with its neighbours: as long as that is so, twice as many are tried. If nothing
    goes at all, some nodes are tried with every cut fed, since a constant elsewhere may hide what the failure needs:
    so many that no more checks are made than there are nodes.
    """
    problem = context.problem
    problem.will_freeze(target)
    tried = 0

    def without(target: Candidate, gone: Sequence[int]) -> list[Proposal]:
        nonlocal tried
        proposals = _without(context, target, gone)
        tried += _news(problem, target, gone, proposals)
        return proposals

    left = yield from remove_in_runs(problem.order(target), target, without, lambda left: set(left.nodes))
    if left == target:
        yield from in_turn(islice(_all_fed(problem, target), max(0, target.size - tried)))


def _without(context: PassContext, target: Candidate, gone: Sequence[int]) -> list[Proposal]:
    """A candidate without some nodes, once with what they computed fed and once with it frozen."""
    problem, index = context.problem, context.problem.index
    rest = target.without(gone)
    written = [tensor for node in gone for tensor in index.node_writes[node]]
    name = index.nodes[gone[0]].label if len(gone) == 1 else f"{len(gone)} nodes"
    return [
        Proposal(problem.as_fed(rest, written), f"without {name}, fed"),
        Proposal(_frozen(context, rest, written), f"without {name}, frozen"),
    ]


def _frozen(context: PassContext, rest: Candidate, written: Sequence[int]) -> Candidate:
    """A candidate with what some nodes computed frozen; the others stay fed where a recorded value could fail.

    Whether it could is asked, which can cost checks, only if there is anything to be frozen so.
    """
    problem = context.problem
    frozen = problem.as_frozen(rest, written)
    recorded = {tensor for tensor in frozen.turned if problem.frozen(tensor) is None}
    closed = problem.closed(replace(rest, turned=())) if recorded else None
    if closed is None or recorded.isdisjoint(problem.subset(closed).cuts) or context.may_freeze_recorded(recorded):
        return frozen
    doubtful = {tensor for tensor in recorded if not context.may_freeze_recorded([tensor])}
    return replace(frozen, turned=tuple(tensor for tensor in frozen.turned if tensor not in doubtful))


def _news(problem: Problem, target: Candidate, gone: Sequence[int], proposals: Sequence[Proposal]) -> int:
    """How many of the proposals without some nodes are no candidate that ``linear`` has tried."""
    closed = {problem.closed(proposal.candidate) for proposal in proposals}
    return len(closed - {problem.closed(target.without(gone))})


def _all_fed(problem: Problem, target: Candidate) -> Iterator[Proposal]:
    """A candidate without each single node, every cut fed, where one that the target has is frozen."""
    cuts = problem.subset(target).cuts
    if all(problem.frozen(tensor, turned=tensor in target.turned) is None for tensor in cuts):
        return
    for node in reversed(problem.order(target)):
        rest = target.without([node])
        fed = problem.as_fed(rest, [*cuts, *problem.index.node_writes[node]])
        if problem.closed(fed) not in (None, problem.closed(rest)):
            yield Proposal(fed, f"without {problem.index.nodes[node].label}, every cut fed")
