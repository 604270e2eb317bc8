"""What a pass over nodes will probably have checked next, so that checks can begin before they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

from biopsy.reduction.candidate import Candidate, Proposal
from biopsy.reduction.named_pass import Pass
from biopsy.reduction.pass_context import PassContext
from biopsy.search.lookahead import foresee
from biopsy.search.rounds import Round


def course(
    context: PassContext,
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
    target = next(filter(None, reversed(answers)), start)

    def expect(proposals: Round[Proposal]) -> Generator[Proposal, None, Candidate | None]:
        nonlocal target
        answer = yield from _expected(proposals, target, guess, eligible)
        target = answer or target
        return answer

    return foresee(lambda: search(context, start), answers, expect)


def _expected(
    proposals: Round[Proposal],
    target: Candidate,
    guess: Callable[[Candidate], bool],
    eligible: Callable[[Proposal, Candidate], list[Candidate]],
) -> Generator[Proposal, None, Candidate | None]:
    """What of a round will be asked about; returns the answer that is guessed."""
    for proposal in proposals:
        closed = eligible(proposal, target)
        if closed == [target]:
            return target
        for candidate in closed:
            yield Proposal(candidate, proposal.description)
            if guess(candidate):
                return candidate
    return None
