"""Questions beside a search: who waits for them, how many run at once, and what an unexpected answer does."""

import pytest

from biopsy import errors, events
from biopsy.checks.outcome import Judged, Outcome
from biopsy.session.oracle import SearchInDoubtError
from biopsy.session.trial import IDENTITY, ORIGINAL, Budget, BudgetSpentError
from support.session import LIMIT, Answers, Session, trial

EXPECTED = {"original": [1]}


class Heeded(list[Judged | errors.CheckError]):
    """The answers that came; each but a failure is a reason to stop the search."""

    def __call__(self, answer: Judged | errors.CheckError):
        self.append(answer)
        if isinstance(answer, Judged) and answer.outcome is Outcome.REPRODUCES:
            return None
        return lambda: None


def test_the_search_goes_on_while_a_question_beside_it_is_open(session: Session) -> None:
    check = Answers(dict(EXPECTED), is_stoppable=True)
    check.hold("original")
    oracle, heeded = session.oracle(check, jobs=2), Heeded()
    oracle.beside.ask(trial("original", ORIGINAL), heeded)
    for name in "abc":
        oracle.judge(trial(name))
    assert check.begun["original"].wait(LIMIT)
    assert heeded == []
    assert not oracle.beside.is_settled
    check.held["original"].set()
    oracle.beside.settle()
    assert [judged.outcome for judged in heeded] == [Outcome.REPRODUCES]
    assert oracle.beside.is_settled


def test_never_more_run_at_once_than_may_and_one_place_is_always_left_to_the_search(session: Session) -> None:
    check = Answers({}, is_stoppable=True)
    for name in ("one", "two", "three"):
        check.hold(name)
    oracle = session.oracle(check, jobs=3)
    for name in ("one", "two", "three"):
        oracle.beside.ask(trial(name, IDENTITY), lambda answer: None)
    oracle.ahead(iter([trial("a"), trial("b")]))
    assert [run.trial.description for run in oracle.pool.pending] == ["one", "two", "a"]
    oracle.judge(trial("c"))
    assert len(oracle.pool.pending) <= 3
    oracle.pool.abandon_all()
    assert [run.trial.description for run in oracle.pool.pending] == ["one", "two"]
    for name in ("one", "two", "three"):
        check.held[name].set()
    oracle.beside.settle()


def test_an_unexpected_answer_stops_the_search_at_its_next_question(session: Session) -> None:
    check = Answers({"original": [0], "a": [1]}, is_stoppable=True)
    oracle, heeded = session.oracle(check, jobs=2), Heeded()
    oracle.beside.ask(trial("original", ORIGINAL), heeded)
    oracle.beside.ask(trial("original", ORIGINAL), heeded)
    with pytest.raises(SearchInDoubtError):
        while True:
            oracle.again(trial("a"))
    assert len(heeded) == 1
    assert oracle.beside.is_settled  # nobody wants the other answer any more
    oracle.again(trial("a"))


def test_they_are_counted_told_and_remembered_but_are_none_that_the_search_asked(session: Session) -> None:
    oracle = session.oracle(Answers(dict(EXPECTED), is_stoppable=True), jobs=2)
    oracle.left = 5
    oracle.beside.ask(trial("original", ORIGINAL), Heeded())
    oracle.beside.settle()
    oracle.judge(trial("a"))
    assert (oracle.tally.checks, oracle.tally.asked) == (2, 1)
    assert len(oracle.memory.runs(trial("original"))) == 1
    assert [event.nodes for event in session.of(events.CheckedCandidate)] == [8, 1]
    assert oracle.left == 5


def test_a_check_that_cannot_be_run_is_an_answer(session: Session) -> None:
    oracle, heeded = session.oracle(Answers({"original": [127]}, is_stoppable=True), jobs=2), Heeded()
    oracle.beside.ask(trial("original", ORIGINAL), heeded)
    with pytest.raises(SearchInDoubtError):
        oracle.beside.settle()
    assert [type(answer) for answer in heeded] == [errors.CheckError]


def test_a_limit_counts_them_and_is_not_exceeded_by_waiting_for_them(session: Session) -> None:
    check = Answers(dict(EXPECTED), is_stoppable=True)
    check.hold("original")
    oracle, heeded = session.oracle(check, jobs=2, budget=Budget(checks=1, seconds=0.2)), Heeded()
    with oracle.budget.enforced():
        oracle.beside.ask(trial("original", ORIGINAL), heeded)
        with pytest.raises(BudgetSpentError, match="max-checks"):
            oracle.judge(trial("a"))
        with pytest.raises(BudgetSpentError, match="max-time"):
            oracle.beside.settle()
    assert not oracle.beside.is_settled
    check.held["original"].set()
    oracle.beside.settle()  # outside of the search no limit holds
    assert len(heeded) == 1
