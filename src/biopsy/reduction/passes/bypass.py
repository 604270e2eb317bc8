"""Nodes whose readers can read one of the node's own inputs instead, so that what they connected stays connected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from biopsy.reduction.candidate import Candidate, NodeSearch, Proposal
from biopsy.reduction.pass_context import PassContext
from biopsy.search.prefix import in_turn
from biopsy.search.rounds import Search
from biopsy.search.subset import minimize_subset


def bypass(context: PassContext, target: Candidate) -> NodeSearch:
    """Bypass as many nodes as possible at once, then what is left one by one, by each input that agrees.

    Fusion bugs need their few nodes connected while everything between them goes. A bypass changes values, so this
    pass proposes nothing where the check compares with recorded ones.
    """
    problem = context.problem
    order = problem.order(target)
    detours = {node: tensors for node in order if (tensors := problem.detours(target, node))}
    if not detours or not context.may_change_values:
        return
    able = list(detours)
    start = target

    def propose(kept: Sequence[int]) -> Proposal:
        gone = [node for node in able if node not in set(kept)]
        return Proposal(
            _bypassing(start, [(node, detours[node][0]) for node in gone]), f"around {len(gone)} of {len(able)} nodes"
        )

    kept = yield from minimize_subset(able, propose)
    target = propose(kept).candidate
    for node in kept:
        description = f"around {problem.index.nodes[node].label}"
        ways = [_bypassing(target, [(node, tensor)]) for tensor in problem.detours(target, node)]
        bypassing: Search[Proposal, Candidate, Candidate | None] = in_turn(Proposal(way, description) for way in ways)
        answer = yield from bypassing
        target = answer or target


def _bypassing(target: Candidate, ways: Sequence[tuple[int, int]]) -> Candidate:
    rest = target.without(node for node, _ in ways)
    return replace(rest, bypassed=tuple(sorted((*target.bypassed, *ways))))
