"""The layers that a report names as wrong, before anything else is tried: the first of a ranking that are enough."""

from __future__ import annotations

from biopsy.reduction.candidate import Candidate, NodeSearch, Proposal
from biopsy.reduction.pass_context import PassContext
from biopsy.reduction.passes.suspects import around
from biopsy.search.prefix import doubled, in_turn


def ranked(context: PassContext, target: Candidate) -> NodeSearch:
    """The worst entry of ``context.ranking`` with its direct neighbours, then the worst 2, 4, 8, ...

    The first that reproduces is gone on from. An entry is a set of nodes that are wrong together.
    """
    kept = set(target.nodes)
    ranking = [nodes for entry in context.ranking if (nodes := kept.intersection(entry))]

    def propose(count: int) -> Proposal:
        named = set[int]().union(*ranking[:count])
        near = around(context.problem, sorted(named), target, steps=1)
        description = f"the worst {'entry' if count == 1 else f'{count} entries'} of the ranking, with neighbours"
        return Proposal(Candidate(tuple(near), target.bypassed), description)

    yield from in_turn(map(propose, doubled(len(ranking))))
