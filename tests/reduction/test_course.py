"""The course of a pass: what it will ask about, if every guess is right."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from biopsy import events
from biopsy.model.index import index_bytes
from biopsy.recording.cut_types import CutTypes
from biopsy.recording.reference_run import Recording
from biopsy.reduction.candidate import Candidate, Proposal
from biopsy.reduction.course import course
from biopsy.reduction.pass_context import PassContext
from biopsy.reduction.passes.bisect import bisect
from biopsy.reduction.passes.linear import linear
from biopsy.reduction.passes.sets import sets
from biopsy.reduction.problem import Problem
from biopsy.search.drive import drive
from support.models import chain


@pytest.fixture
def problem() -> Problem:
    index = index_bytes(chain(24).SerializeToString())
    recording = Recording(index, tuple, Path(), events.ignore)
    return Problem(index, CutTypes(index, recording), recording)


def eligible(problem: Problem, candidate: Candidate, target: Candidate) -> list[Candidate]:
    closed = problem.closed(candidate)
    if closed == target:
        return [target]
    return [] if closed is None or closed.size >= target.size else [closed]


def asked(problem: Problem, search, fails) -> tuple[list[Candidate], list[Candidate | None]]:
    """What a pass asks about one after the other, and what it is answered."""
    target = problem.whole
    found, answers = [], []

    def reply(proposals: Iterable[Proposal]) -> Candidate | None:
        nonlocal target
        answer = None
        for proposal in proposals:
            for candidate in eligible(problem, proposal.candidate, target):
                if candidate != target:
                    found.append(candidate)
                if candidate == target or fails(candidate):
                    answer = candidate
                    break
            if answer:
                break
        answers.append(answer)
        target = answer or target
        return answer

    drive(search(PassContext(problem), problem.whole), reply)
    return found, answers


@pytest.mark.parametrize("search", [bisect, sets, linear], ids=["bisect", "sets", "linear"])
@pytest.mark.parametrize("wanted", [{5}, {0, 23}, {3, 11, 12}])
def test_with_right_guesses_it_is_what_the_pass_asks(problem: Problem, search, wanted: set[int]) -> None:
    def fails(candidate: Candidate) -> bool:
        return wanted <= set(candidate.nodes)

    found, _ = asked(problem, search, fails)
    foreseen = course(
        PassContext(problem),
        search,
        problem.whole,
        [],
        fails,
        lambda proposal, target: eligible(problem, proposal.candidate, target),
    )
    assert [proposal.candidate for proposal in foreseen] == found


@pytest.mark.parametrize("search", [bisect, sets, linear], ids=["bisect", "sets", "linear"])
def test_it_goes_on_from_the_answers_that_were_given(problem: Problem, search) -> None:
    def fails(candidate: Candidate) -> bool:
        return {4, 17} <= set(candidate.nodes)

    found, answers = asked(problem, search, fails)
    middle = len(answers) // 2
    foreseen = course(
        PassContext(problem),
        search,
        problem.whole,
        answers[:middle],
        fails,
        lambda proposal, target: eligible(problem, proposal.candidate, target),
    )
    rest = [proposal.candidate for proposal in foreseen]
    assert rest == found[len(found) - len(rest) :]
    assert rest
