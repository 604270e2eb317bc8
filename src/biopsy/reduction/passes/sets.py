"""Sets of nodes that matter, wherever they stand, everything between them cut away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from biopsy.reduction.candidate import Candidate, NodeSearch, Proposal
from biopsy.reduction.pass_context import PassContext
from biopsy.search.subset import minimize_subset


def sets(context: PassContext, target: Candidate) -> NodeSearch:
    """Delta debugging over node sets (Zeller and Hildebrandt 2002), in the order of the graph's neighbourhoods."""
    problem = context.problem
    order = problem.order(target)

    def propose(kept: Sequence[int]) -> Proposal:
        return Proposal(replace(target, nodes=tuple(sorted(kept))), f"{len(kept)} of {len(order)} nodes")

    yield from minimize_subset(order, propose)
