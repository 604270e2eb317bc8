"""The nodes that are suspected, before anything else is tried: if they are the culprits, two checks are enough."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.reduction.candidate import Candidate, NodeSearch, Proposal
from biopsy.reduction.pass_context import PassContext
from biopsy.reduction.problem import Problem
from biopsy.search.prefix import in_turn

_STEPS_AROUND = 3


def suspects(context: PassContext, target: Candidate) -> NodeSearch:
    """The first suspect alone; with its neighbours, since an engine fuses what is connected; then all of them."""
    problem = context.problem
    ranked = [node for node in context.suspects if node in set(target.nodes)]
    if not ranked:
        return
    first = problem.index.nodes[ranked[0]].label
    tries = [(ranked[:1], f"{first} alone"), (around(problem, ranked[:1], target), f"{first} with its neighbours")]
    if len(ranked) > 1:
        tries.append((ranked, f"{len(ranked)} suspects"))
    yield from in_turn(
        Proposal(Candidate(tuple(sorted(nodes)), target.bypassed), description) for nodes, description in tries
    )


def around(problem: Problem, nodes: Sequence[int], target: Candidate, steps: int = _STEPS_AROUND) -> list[int]:
    """Nodes of the target that are few steps away, along tensors in either direction."""
    index, kept = problem.index, set(target.nodes)
    readers: dict[int, list[int]] = {}
    for node in target.nodes:
        for tensor in index.node_reads[node]:
            readers.setdefault(tensor, []).append(node)
    found, edge = set(nodes), set(nodes)
    for _ in range(steps):
        before = (
            index.producer[tensor] for node in edge for tensor in index.node_reads[node] if tensor in index.producer
        )
        after = (reader for node in edge for tensor in index.node_writes[node] for reader in readers.get(tensor, ()))
        edge = {node for node in (*before, *after) if node in kept} - found
        found |= edge
    return sorted(found)
