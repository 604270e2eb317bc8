"""The passes over nodes."""

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
    """Propose the first suspect alone, with its neighbours (engines fuse connected nodes), and then all suspects."""
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
    """The nodes of the target at most this many steps away from ``nodes``, along tensors in either direction."""
    index, kept = problem.index, target.kept
    reached, last_reached = set(nodes), set(nodes)
    for _ in range(steps):
        before = (index.producer.get(tensor) for node in last_reached for tensor in index.node_reads[node])
        written = (tensor for node in last_reached for tensor in index.node_writes[node])
        after = (reader for tensor in written for reader in index.consumers.get(tensor, ()))
        last_reached = {node for node in (*before, *after) if node in kept} - reached
        reached |= last_reached
    return sorted(reached)


def ranked(context: PassContext, target: Candidate) -> NodeSearch:
    """Propose the worst entry of ``context.ranking`` with its direct neighbours, then the worst 2, 4, 8, ...

    An entry is a set of nodes that are wrong together.
    """
    kept = set(target.nodes)
    ranking = [nodes for entry in context.ranking if (nodes := kept.intersection(entry))]

    def propose(count: int) -> Proposal:
        worst = set[int]().union(*ranking[:count])
        nodes = around(context.problem, sorted(worst), target, 1)
        description = f"the worst {'entry' if count == 1 else f'{count} entries'} of the ranking, with neighbours"
        return Proposal(Candidate(tuple(nodes), target.bypassed), description)

    yield from in_turn(map(propose, doubled(len(ranking))))


def bisect(context: PassContext, target: Candidate) -> NodeSearch:
    """Find a contiguous piece in O(log N) checks: the earliest outputs that fail, then the latest inputs that still do.

    For the inputs, the last node alone is taken to be as likely as all other pieces together, and small pieces to be
    likelier than large ones.
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


def sets(context: PassContext, target: Candidate) -> NodeSearch:
    """Find the set of nodes that matter by delta debugging (Zeller and Hildebrandt 2002), in neighbourhood order.

    Nodes without which a candidate did not reproduce (``context.known_needed``) are always kept, first alone, then with
    some of the others. Passes over single nodes try to remove them.
    """
    problem = context.problem
    order = problem.order(target)
    needed = context.known_needed(target)

    def propose(kept: Sequence[int]) -> Proposal:
        nodes = tuple(sorted(needed.union(kept)))
        return Proposal(replace(target, nodes=nodes), f"{len(nodes)} of {len(order)} nodes")

    yield from minimize_subset([node for node in order if node not in needed], propose)


def bypass(context: PassContext, target: Candidate) -> NodeSearch:
    """Bypass as many nodes as possible at once, then the others one by one, by each input of the same type.

    A bug of a fusion needs its few nodes connected when the nodes between them are removed. A bypass changes values, so
    this pass proposes nothing if the check compares with recorded ones.
    """
    problem = context.problem
    detours = {node: tensors for node in problem.order(target) if (tensors := problem.detours(target, node))}
    if not detours or not context.may_change_values:
        return

    def bypassing(target: Candidate, ways: Sequence[tuple[int, int]]) -> Candidate:
        remaining = target.without(node for node, _ in ways)
        return replace(remaining, bypassed=tuple(sorted((*target.bypassed, *ways))))

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


def linear(context: PassContext, target: Candidate) -> NodeSearch:
    """Try to remove each node once, from the end of the model: O(N) checks.

    A node that comes back, since a type at the border is unknown, is removed together with the next ones.
    """
    problem = context.problem

    def without(target: Candidate, gone: Sequence[int]) -> list[Proposal]:
        return [Proposal(target.without(gone), f"without {problem.index.nodes[gone[-1]].label}")]

    order = problem.order(target)[::-1]
    yield from remove_singly(order, target, without, lambda candidate: candidate.kept, problem.comes_back)


def forms(context: PassContext, target: Candidate) -> NodeSearch:
    """Try to remove each node once with its outputs fed and with its outputs frozen, whatever the policy says.

    Engines fold constants before the model runs, which may hide the bug or be needed for it. Nodes that can be removed
    are often neighbours, so after each success twice as many are tried at once. If no node can be removed, some are
    tried with every cut fed, since a constant elsewhere may hide the bug; all in all, there are at most as many checks
    as nodes.
    """
    problem, index = context.problem, context.problem.index
    problem.will_freeze(target)
    tried = 0

    def without(target: Candidate, gone: Sequence[int]) -> list[Proposal]:
        nonlocal tried
        remaining = target.without(gone)
        written = [tensor for node in gone for tensor in index.node_writes[node]]
        name = index.nodes[gone[0]].label if len(gone) == 1 else f"{len(gone)} nodes"
        proposals = [
            Proposal(problem.in_form(remaining, written, fed=True), f"without {name}, fed"),
            Proposal(_frozen(context, remaining, written), f"without {name}, frozen"),
        ]
        closed = {problem.closed(proposal.candidate) for proposal in proposals}
        tried += len(closed - {problem.closed(remaining)})  # ``linear`` has tried this one
        return proposals

    def all_fed(target: Candidate) -> Iterator[Proposal]:
        """The target without each single node and with every cut fed, if one of its cuts is frozen."""
        cuts = problem.subset(target).cuts
        if all(problem.frozen(tensor, turned=tensor in target.turned) is None for tensor in cuts):
            return
        for node in reversed(problem.order(target)):
            remaining = target.without([node])
            fed = problem.in_form(remaining, [*cuts, *index.node_writes[node]], fed=True)
            if problem.closed(fed) not in (None, problem.closed(remaining)):
                yield Proposal(fed, f"without {index.nodes[node].label}, every cut fed")

    smallest = yield from remove_in_runs(problem.order(target), target, without, lambda candidate: candidate.kept)
    if smallest == target:
        yield from in_turn(islice(all_fed(target), max(0, target.size - tried)))


def _frozen(context: PassContext, candidate: Candidate, written: Sequence[int]) -> Candidate:
    """The candidate with the tensors ``written`` frozen, except those whose recorded values might fail by themselves.

    Whether they might is found out, which can cost checks, only if there are any.
    """
    problem = context.problem
    frozen = problem.in_form(candidate, written, fed=False)
    recorded = {tensor for tensor in frozen.turned if problem.frozen(tensor) is None}
    closed = problem.closed(replace(candidate, turned=())) if recorded else None
    if closed is None or recorded.isdisjoint(problem.subset(closed).cuts) or context.may_freeze_recorded(recorded):
        return frozen
    doubtful = {tensor for tensor in recorded if not context.may_freeze_recorded([tensor])}
    return replace(frozen, turned=tuple(tensor for tensor in frozen.turned if tensor not in doubtful))
