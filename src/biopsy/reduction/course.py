"""What a pass over nodes will probably propose next, so that checks can begin before they are asked for.

A pass is a generator and deterministic, so a second one, sent the same answers, stands where the first one does. From
there on it is sent guesses. What it proposes then is what will be asked about if they come true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from biopsy.reduction.candidate import Candidate, Proposal
from biopsy.reduction.named_pass import Pass
from biopsy.reduction.problem import Problem

_FARTHEST = 64
"""Proposals that are known already and passed over before one gives up to look ahead."""


def course(
    problem: Problem,
    search: Pass,
    start: Candidate,
    answers: Sequence[Candidate | None],
    guess: Callable[[Candidate], bool],
    eligible: Callable[[Proposal, Candidate], list[Candidate]],
) -> Iterator[Proposal]:
    """Candidates in the order in which they will be asked about, if every guess is right.

    ``answers`` are those that the pass was sent since it began at ``start``. ``eligible`` gives the closed candidates
    of a proposal that are worth a check against a target; ``guess`` whether one of them reproduces.
    """
    ahead = search(problem, start)
    target, answer = start, None
    try:
        proposals = ahead.send(None)
        for answer in answers:
            target = answer or target
            proposals = ahead.send(answer)
        for _ in range(_FARTHEST):
            answer = None
            for proposal in proposals:
                found = eligible(proposal, target)
                if found == [target]:
                    answer = target
                    break
                for candidate in found:
                    yield Proposal(candidate, proposal.description)
                    if guess(candidate):
                        answer = candidate
                        break
                if answer is not None:
                    break
            target = answer or target
            proposals = ahead.send(answer)
    except StopIteration:
        return
