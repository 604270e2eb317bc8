"""What a pass will ask about, if every guess is right."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from biopsy import events
from biopsy.model.index import index_bytes
from biopsy.recording.reference_run import Recording
from biopsy.recording.types import CutTypes
from biopsy.reduction.driver import foreseeable
from biopsy.reduction.passes.common import NamedPass, PassContext
from biopsy.reduction.passes.nodes import bisect, linear, sets
from biopsy.reduction.problem import Candidate, NodeSearch, Problem, Proposal
from biopsy.search.drive import Future, drive, likely_questions
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
    target = problem.original
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

    drive(search(PassContext(problem), problem.original), reply)
    return found, answers


def foreseen(problem: Problem, search, fails, answers: list[Candidate | None]) -> list[Candidate]:
    """What is foreseen after some answers if the likely comes true."""
    named = NamedPass(name="pass", summary="", search=search)
    pass_ = foreseeable(
        [named],
        PassContext(problem),
        problem.original,
        lambda proposal, target: eligible(problem, proposal.candidate, target),
    )
    return [
        each.proposal.candidate
        for each in likely_questions(
            Future(pass_, answers), lambda each: 1 - 1e-9 if fails(each.proposal.candidate) else 1e-9
        )
    ]


SEARCHES = pytest.mark.parametrize("search", [bisect, sets, linear], ids=["bisect", "sets", "linear"])


@SEARCHES
@pytest.mark.parametrize("wanted", [{5}, {0, 23}, {3, 11, 12}])
def test_if_the_likely_answers_come_the_pass_asks_what_was_foreseen(problem: Problem, search, wanted: set[int]) -> None:
    def fails(candidate: Candidate) -> bool:
        return wanted <= set(candidate.nodes)

    found, _ = asked(problem, search, fails)
    assert foreseen(problem, search, fails, [])[: len(found)] == found


@SEARCHES
def test_lookahead_continues_from_the_given_answers(problem: Problem, search) -> None:
    def fails(candidate: Candidate) -> bool:
        return {4, 17} <= set(candidate.nodes)

    found, answers = asked(problem, search, fails)
    middle = len(answers) // 2
    rest = [candidate for candidate in found if candidate in foreseen(problem, search, fails, answers[:middle])]
    assert rest and rest == found[len(found) - len(rest) :]


def proposing(kept: int) -> NamedPass:
    """A pass that proposes one candidate: the first nodes of its target."""

    def search(context: PassContext, target: Candidate) -> NodeSearch:
        yield [Proposal(Candidate(target.nodes[:kept]), f"{kept}")]

    return NamedPass(name=f"first {kept}", summary="", search=search)


def test_the_next_pass_is_foreseen_behind_each_end_of_a_pass(problem: Problem) -> None:
    later = foreseeable(
        [proposing(8), proposing(4)],
        PassContext(problem),
        problem.original.without(range(20, 24)),
        lambda proposal, target: eligible(problem, proposal.candidate, target),
    )
    asked = list(likely_questions(Future(later), lambda proposal: 0.5))
    assert [(each.named.name, each.proposal.candidate.size) for each in asked] == [
        ("first 8", 8),
        ("first 4", 4),
        ("first 4", 4),
    ]


def test_nothing_is_found_out_for_a_pass_that_is_only_foreseen(problem: Problem) -> None:
    asked: list[str] = []

    def may_change_values() -> bool:
        asked.append("values")
        return True

    def curious(context: PassContext, target: Candidate) -> NodeSearch:
        if context.may_change_values:
            yield [Proposal(Candidate(target.nodes[:2]), "two")]

    passes = [proposing(8), NamedPass(name="curious", summary="", search=curious)]
    context = PassContext(problem, may_change_values=may_change_values)

    def names() -> list[str]:
        later = foreseeable(
            passes, context, problem.original, lambda proposal, target: eligible(problem, proposal.candidate, target)
        )
        return [each.named.name for each in likely_questions(Future(later), lambda proposal: 0.5)]

    assert names() == ["first 8"]
    assert not asked
    assert context.may_change_values
    assert names() == ["first 8", "curious", "curious"]
    assert asked == ["values"]
