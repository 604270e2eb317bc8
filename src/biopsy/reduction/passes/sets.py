"""Sets of nodes that matter, wherever they stand, everything between them cut away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from biopsy.reduction.candidate import Candidate, NodeSearch, Proposal
from biopsy.reduction.pass_context import PassContext
from biopsy.search.subset import minimize_subset


def sets(context: PassContext, target: Candidate) -> NodeSearch:
    """Delta debugging over node sets (Zeller and Hildebrandt 2002), in the order of the graph's neighbourhoods.

    Nodes without which a candidate did not fail are taken to be needed: first they are tried alone, then with some of
    the others. Whether they are is for the passes that try single nodes.
    """
    problem = context.problem
    order = problem.order(target)
    needed = context.missed(target)

    def propose(kept: Sequence[int]) -> Proposal:
        nodes = tuple(sorted(needed.union(kept)))
        return Proposal(replace(target, nodes=nodes), f"{len(nodes)} of {len(order)} nodes")

    yield from minimize_subset([node for node in order if node not in needed], propose)
