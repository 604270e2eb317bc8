"""The layers that a report names as wrong, before anything else is tried: the first of a ranking that are enough."""

from __future__ import annotations

from biopsy.reduction.candidate import Candidate, Proposal, Search
from biopsy.reduction.passes.suspects import around
from biopsy.reduction.problem import Problem


def ranked(problem: Problem, target: Candidate) -> Search:
    """The worst entry of ``problem.ranking`` with its direct neighbours, then the worst 2, 4, 8, ...

    The first that reproduces is gone on from. An entry is a set of nodes that are wrong together.
    """
    kept = set(target.nodes)
    ranking = [nodes for entry in problem.ranking if (nodes := kept.intersection(entry))]
    taken = 1
    while ranking:
        named = set[int]().union(*ranking[:taken])
        near = around(problem, sorted(named), target, steps=1)
        count = min(taken, len(ranking))
        description = f"the worst {'entry' if count == 1 else f'{count} entries'} of the ranking, with neighbours"
        answer = yield [Proposal(Candidate(tuple(near), target.bypassed), description)]
        if answer is not None or taken >= len(ranking):
            return
        taken *= 2
