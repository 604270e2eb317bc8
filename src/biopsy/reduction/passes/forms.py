"""The other form of every cut: a node is needed only if the failure goes without it, be it fed or frozen."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from biopsy.reduction.candidate import Candidate, Proposal, Round, Search
from biopsy.reduction.problem import Problem


def forms(problem: Problem, target: Candidate) -> Search:
    """Try to do without each node once, what it computed fed, and frozen, whatever the policy makes of it.

    An engine computes with a constant before the model runs, and there the bug may be gone; or only there it may be.
    What goes from one end often goes with its neighbours: as long as that is so, twice as many are tried. Once no
    node goes any more, all is begun again with every cut fed, if that fails too: a constant at another place may hide
    what the failure needs.
    """
    problem.will_freeze(target)
    target = yield from _without_each(problem, target)
    fed = problem.as_fed(target, problem.subset(target).cuts)
    if target.size > 1 and fed != target:
        answer = yield [Proposal(fed, "every cut fed", sideways=True)]
        if answer is not None and answer != target:
            yield from _without_each(problem, answer)


def _without_each(problem: Problem, target: Candidate) -> Generator[Round, Candidate | None, Candidate]:
    waiting = problem.order(target)
    step = 1
    while waiting:
        gone = waiting[-step:]
        answer = yield _without(problem, target, gone)
        if answer is not None:
            target, step = answer, 2 * step
        elif step > 1:
            step = 1
            continue
        kept = set(target.nodes)
        waiting = [node for node in waiting[: -len(gone)] if node in kept]
    return target


def _without(problem: Problem, target: Candidate, gone: list[int]) -> list[Proposal]:
    """A candidate without some nodes, once with what they computed fed and once with it frozen."""
    index = problem.index
    left = set(target.nodes).difference(gone)
    rest = replace(target, nodes=tuple(sorted(left)))
    written = [tensor for node in gone for tensor in index.node_writes[node]]
    name = index.nodes[gone[0]].label if len(gone) == 1 else f"{len(gone)} nodes"
    return [
        Proposal(problem.as_fed(rest, written), f"without {name}, fed"),
        Proposal(problem.as_frozen(rest, written), f"without {name}, frozen"),
    ]
