"""Passes over nodes, the first that run: suspects and ranked layers, bisection, sets, bypasses, one node at a time,
and the other form of each cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from biopsy.reduction.passes.common import PassContext
from biopsy.reduction.problem import Candidate, NodeSearch, Problem, Proposal
from biopsy.search.drive import Search
from biopsy.search.subset import (
    Likelihood,
    doubled,
    in_turn,
    least,
    minimize_subset,
    near,
    remove_in_runs,
    remove_singly,
)


def suspects(context: PassContext, target: Candidate) -> NodeSearch:
    """The first suspect alone; with its neighbours, since an engine fuses what is connected; then all of them."""
    problem = context.problem
    nodes = [node for node in context.suspects if node in target.kept]
    if not nodes:
        return
    first = problem.index.nodes[nodes[0]].label
    tries = [(nodes[:1], f"{first} alone"), (around(problem, nodes[:1], target, 3), f"{first} with its neighbours")]
    if len(nodes) > 1:
        tries.append((nodes, f"{len(nodes)} suspects"))
    yield from in_turn(
        Proposal(Candidate(tuple(sorted(nodes)), target.bypassed), description) for nodes, description in tries
    )


def around(problem: Problem, nodes: Sequence[int], target: Candidate, steps: int) -> list[int]:
    """Nodes of the target that are few steps away, along tensors in either direction."""
    index, kept = problem.index, target.kept
    reached, edge = set(nodes), set(nodes)
    for _ in range(steps):
        before = (index.producer.get(tensor) for node in edge for tensor in index.node_reads[node])
        after = (
            reader for node in edge for tensor in index.node_writes[node] for reader in index.consumers.get(tensor, ())
        )
        edge = {node for node in (*before, *after) if node in kept} - reached
        reached |= edge
    return sorted(reached)


# The layers that a report names as wrong, before anything else is tried: the first of a ranking that are enough.


def ranked(context: PassContext, target: Candidate) -> NodeSearch:
    """The worst entry of ``context.ranking`` with its direct neighbours, then the worst 2, 4, 8, ...

    The first that reproduces is gone on from. An entry is a set of nodes that are wrong together.
    """
    kept = set(target.nodes)
    ranking = [nodes for entry in context.ranking if (nodes := kept.intersection(entry))]

    def propose(count: int) -> Proposal:
        named = set[int]().union(*ranking[:count])
        near = around(context.problem, sorted(named), target, 1)
        description = f"the worst {'entry' if count == 1 else f'{count} entries'} of the ranking, with neighbours"
        return Proposal(Candidate(tuple(near), target.bypassed), description)

    yield from in_turn(map(propose, doubled(len(ranking))))


# The earliest outputs that fail, then the latest inputs that still do: one contiguous piece, in O(log N) checks.


def bisect(context: PassContext, target: Candidate) -> NodeSearch:
    """Halve the model from its end; then take what the failure needs before the last node that is left.

    That node is most often all of it, as likely as all other pieces together, or the end of a small piece.
    """
    problem = context.problem
    for side, is_allowed in (("first", problem.may_cut_outputs), ("last", problem.may_cut_inputs)):
        if not is_allowed:
            continue
        order = problem.order(target)[:: 1 if side == "first" else -1]
        propose = partial(_prefix, order, side)
        likely: Likelihood = float
        if side == "last" and problem.may_cut_outputs:
            likely = partial(_likely_short, len(order))
        _, shortest = yield from least(0, len(order), propose, likely)
        target = shortest or target


def _prefix(order: Sequence[int], side: str, count: int) -> Proposal:
    return Proposal(Candidate(tuple(sorted(order[:count]))), f"the {side} {count} of {len(order)} nodes")


def _likely_short(length: int, count: int) -> float:
    return (1 + near(count, length)) / 2 if count else 0.0


# Sets of nodes that matter, wherever they stand, everything between them cut away.


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


# Nodes whose readers can read one of the node's own inputs instead, so that what they connected stays connected.


def bypass(context: PassContext, target: Candidate) -> NodeSearch:
    """Bypass as many nodes as possible at once, then what is left one by one, by each input that agrees.

    Fusion bugs need their few nodes connected while everything between them goes. A bypass changes values, so this
    pass proposes nothing where the check compares with recorded ones.
    """
    problem = context.problem
    detours = {node: tensors for node in problem.order(target) if (tensors := problem.detours(target, node))}
    if not detours or not context.may_change_values:
        return

    def bypassing(target: Candidate, ways: Sequence[tuple[int, int]]) -> Candidate:
        rest = target.without(node for node, _ in ways)
        return replace(rest, bypassed=tuple(sorted((*target.bypassed, *ways))))

    start, able = target, list(detours)

    def propose(kept: Sequence[int]) -> Proposal:
        gone = [node for node in able if node not in set(kept)]
        ways = [(node, detours[node][0]) for node in gone]
        return Proposal(bypassing(start, ways), f"around {len(gone)} of {len(able)} nodes")

    kept = yield from minimize_subset(able, propose)
    target = propose(kept).candidate
    for node in kept:
        description = f"around {problem.index.nodes[node].label}"
        ways = [bypassing(target, [(node, tensor)]) for tensor in problem.detours(target, node)]
        search: Search[Proposal, Candidate, Candidate | None] = in_turn(Proposal(way, description) for way in ways)
        answer = yield from search
        target = answer or target


# One node at a time, from the end of the model to its beginning: O(N) checks.


def linear(context: PassContext, target: Candidate) -> NodeSearch:
    """Try to do without each node once, wherever it stands.

    One that comes back, since nobody can tell the type of what would stand at the border, goes with the next ones.
    """
    problem = context.problem

    def without(target: Candidate, gone: Sequence[int]) -> list[Proposal]:
        return [Proposal(target.without(gone), f"without {problem.index.nodes[gone[-1]].label}")]

    order = problem.order(target)[::-1]
    yield from remove_singly(order, target, without, lambda left: left.kept, problem.comes_back)


# The other form of every cut: a node is needed only if the failure goes without it, be it fed or frozen.


def forms(context: PassContext, target: Candidate) -> NodeSearch:
    """Try to do without each node once, what it computed fed, and frozen, whatever the policy makes of it.

    An engine computes with a constant before the model runs, and there the bug may be gone; or only there it may be.
    What goes from one end often goes with its neighbours: as long as that is so, twice as many are tried. If nothing
    goes at all, some nodes are tried with every cut fed, since a constant elsewhere may hide what the failure needs:
    so many that no more checks are made than there are nodes.
    """
    problem, index = context.problem, context.problem.index
    problem.will_freeze(target)
    tried = 0

    def without(target: Candidate, gone: Sequence[int]) -> list[Proposal]:
        nonlocal tried
        rest = target.without(gone)
        written = [tensor for node in gone for tensor in index.node_writes[node]]
        name = index.nodes[gone[0]].label if len(gone) == 1 else f"{len(gone)} nodes"
        proposals = [
            Proposal(problem.in_form(rest, written, fed=True), f"without {name}, fed"),
            Proposal(_frozen(context, rest, written), f"without {name}, frozen"),
        ]
        closed = {problem.closed(proposal.candidate) for proposal in proposals}
        tried += len(closed - {problem.closed(rest)})  # ``linear`` has tried this one
        return proposals

    def all_fed(target: Candidate) -> Iterator[Proposal]:
        """Without each single node, every cut fed, where one that the target has is frozen."""
        cuts = problem.subset(target).cuts
        if all(problem.frozen(tensor, turned=tensor in target.turned) is None for tensor in cuts):
            return
        for node in reversed(problem.order(target)):
            rest = target.without([node])
            fed = problem.in_form(rest, [*cuts, *index.node_writes[node]], fed=True)
            if problem.closed(fed) not in (None, problem.closed(rest)):
                yield Proposal(fed, f"without {index.nodes[node].label}, every cut fed")

    left = yield from remove_in_runs(problem.order(target), target, without, lambda left: left.kept)
    if left == target:
        yield from in_turn(islice(all_fed(target), max(0, target.size - tried)))


def _frozen(context: PassContext, rest: Candidate, written: Sequence[int]) -> Candidate:
    """A candidate with what some nodes computed frozen; the others stay fed where a recorded value could fail.

    Whether it could is asked, which can cost checks, only if there is anything to be frozen so.
    """
    problem = context.problem
    frozen = problem.in_form(rest, written, fed=False)
    recorded = {tensor for tensor in frozen.turned if problem.frozen(tensor) is None}
    closed = problem.closed(replace(rest, turned=())) if recorded else None
    if closed is None or recorded.isdisjoint(problem.subset(closed).cuts) or context.may_freeze_recorded(recorded):
        return frozen
    doubtful = {tensor for tensor in recorded if not context.may_freeze_recorded([tensor])}
    return replace(frozen, turned=tuple(tensor for tensor in frozen.turned if tensor not in doubtful))
