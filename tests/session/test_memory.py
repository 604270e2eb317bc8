"""The memory: what runs on a model say together, what a journal is told, and what is taken back."""

from pathlib import Path

import pytest

from biopsy.checks.journal import Journal
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.session.oracle import OutcomeMemory, concluded
from biopsy.session.trial import CONFIRM, FINAL, SearchTally
from support.session import trial


def said(*outcomes: Outcome) -> list[Judged]:
    return [Judged(outcome, outcome.value, Evidence(status=0, output=b"output")) for outcome in outcomes]


PASSED = said(Outcome.PASSES)[0]
FAILED = said(Outcome.REPRODUCES)[0]


def test_one_run_that_reproduces_is_enough() -> None:
    runs = said(Outcome.PASSES, Outcome.OTHER_FAILURE, Outcome.REPRODUCES)
    assert concluded(runs, 9) is runs[2]


def test_a_model_passes_only_after_as_many_runs_as_are_needed() -> None:
    assert concluded([], 1) is None
    assert concluded(said(*[Outcome.PASSES] * 2), 3) is None
    found = concluded(said(*[Outcome.PASSES] * 3), 3)
    assert found is not None
    assert found.outcome is Outcome.PASSES


@pytest.mark.parametrize("outcome", [Outcome.INVALID, Outcome.TIMED_OUT])
def test_what_cannot_be_said_is_not_asked_for_again(outcome: Outcome) -> None:
    found = concluded(said(outcome), 9)
    assert found is not None
    assert found.outcome is outcome


def test_runs_that_contradict_each_other_without_reproducing_are_unstable() -> None:
    found = concluded(said(Outcome.PASSES, Outcome.OTHER_FAILURE, Outcome.PASSES), 3)
    assert found is not None
    assert found.outcome is Outcome.UNSTABLE
    assert found.reason == "3 runs: 2 passed, 1 another failure"


def test_a_model_is_remembered_by_its_bytes_and_without_what_was_printed() -> None:
    memory = OutcomeMemory(SearchTally())
    memory.add(trial("a"), PASSED)
    found = memory.conclusion(trial("a", CONFIRM))
    assert found is not None
    assert found.evidence.output == b""
    assert memory.conclusion(trial("b")) is None


def test_more_repetitions_reopen_what_was_concluded() -> None:
    memory = OutcomeMemory(SearchTally())
    memory.add(trial("a"), PASSED)
    memory.repetitions = 2
    assert memory.conclusion(trial("a")) is None


def test_what_an_earlier_process_was_told_is_known_and_counted_as_remembered(tmp_path: Path) -> None:
    first = OutcomeMemory(SearchTally())
    first.journal = Journal.open(tmp_path / "j", {"check": "c"})
    first.add(trial("a"), PASSED)
    first.journal.close()

    tally = SearchTally()
    second = OutcomeMemory(tally)
    second.journal = Journal.open(tmp_path / "j", {"check": "c"})
    found = second.conclusion(trial("a"))
    assert found is not None
    assert found.outcome is Outcome.PASSES
    assert tally.remembered == 1
    assert not second.was_asked(trial("a"))
    second.add(trial("b"), FAILED)
    assert second.was_asked(trial("b"))
    second.journal.close()


def test_a_journal_holds_names_of_stages_and_nothing_that_is_asked_anew(tmp_path: Path) -> None:
    memory = OutcomeMemory(SearchTally())
    memory.journal = Journal.open(tmp_path / "j", {})
    memory.add(trial("a"), PASSED)
    memory.add(trial("b", CONFIRM), PASSED)
    memory.add(trial("c", FINAL), PASSED)
    assert [(entry.stage, entry.description) for entry in memory.journal.entries()] == [
        ("bisect", "a"),
        ("confirm", "b"),
    ]
    memory.journal.close()


def test_the_newest_answer_is_taken_back_everywhere(tmp_path: Path) -> None:
    memory = OutcomeMemory(SearchTally())
    memory.journal = Journal.open(tmp_path / "j", {})
    assert memory.undo() is None
    memory.add(trial("a"), PASSED)
    memory.add(trial("b"), FAILED)
    undone = memory.undo()
    assert undone is not None
    digest, runs = undone
    assert digest == trial("b").digest
    assert [run.outcome for run, _ in runs] == [Outcome.REPRODUCES]
    assert memory.conclusion(trial("b")) is None
    assert memory.conclusion(trial("a")) is not None
    assert [entry.description for entry in memory.journal.entries()] == ["a"]
    memory.journal.close()


def test_small_facts_are_noted_in_the_journal_if_there_is_one(tmp_path: Path) -> None:
    memory = OutcomeMemory(SearchTally())
    memory.note("flakiness", "none")
    assert memory.noted("flakiness") is None
    memory.journal = Journal.open(tmp_path / "j", {})
    memory.note("flakiness", "none")
    assert memory.noted("flakiness") == "none"
    memory.journal.close()
