"""The oracle: what is never checked twice, how often an answer needs a run, and what is told of it."""

import json
from contextlib import closing

import pytest

from benchmarks.simulated_clock import SimulatedClock
from biopsy import errors, events
from biopsy.checks.judge import signature_of
from biopsy.checks.outcome import Artifacts, Evidence, Outcome
from biopsy.session.files import IterationFiles
from biopsy.session.trial import FINAL, IDENTITY, LOOK, VALUES, Budget, BudgetSpentError
from support.session import LIMIT, Answers, Session, trial


def test_no_model_is_checked_twice(session: Session) -> None:
    check = Answers({"a": [1]})
    oracle = session.oracle(check)
    assert oracle.judge(trial("a")).outcome is Outcome.REPRODUCES
    assert oracle.judge(trial("a")).outcome is Outcome.REPRODUCES
    assert oracle.memory.conclusion(trial("a")) is not None
    assert check.asked == ["a"]


def test_a_model_that_passes_is_checked_as_often_as_the_repetitions_say(session: Session) -> None:
    check = Answers({"a": [0, 0, 1]})
    oracle = session.oracle(check)
    oracle.memory.repetitions = 3
    assert oracle.judge(trial("a")).outcome is Outcome.REPRODUCES
    assert oracle.judge(trial("b")).outcome is Outcome.PASSES
    assert check.asked == ["a", "a", "a", "b", "b", "b"]


def test_again_asks_whatever_is_known_and_its_output_is_there(session: Session) -> None:
    check = Answers()
    oracle = session.oracle(check)
    oracle.judge(trial("a"))
    assert oracle.again(trial("a")).evidence.output == b"output"
    assert check.asked == ["a", "a"]
    assert len(oracle.memory.runs(trial("a"))) == 2
    oracle.again(trial("a", FINAL))
    assert len(oracle.memory.runs(trial("a"))) == 2


def test_what_was_begun_ahead_is_not_begun_again(session: Session) -> None:
    check = Answers(is_stoppable=True)
    oracle = session.oracle(check, jobs=2)
    oracle.ahead(iter([trial("a"), trial("b"), trial("c")]))
    for name in ("b", "a"):
        oracle.judge(trial(name))
    assert sorted(check.asked) == ["a", "b"]


def test_every_run_that_begins_ends_with_an_answer_or_is_abandoned(session: Session) -> None:
    check = Answers(is_stoppable=True)
    check.hold("b")
    oracle = session.oracle(check, jobs=2)
    oracle.ahead(iter([trial("a"), trial("b")]))
    oracle.judge(trial("a"))
    assert check.begun["b"].wait(LIMIT)
    oracle.close()
    begun = {event.number for event in session.told if isinstance(event, events.Checking)}
    ended = {event.number for event in session.told if isinstance(event, events.Checked | events.Abandoned)}
    assert begun == ended == {0, 1}
    assert check.stopped == ["b"]


def test_events_name_the_stage_and_the_best_so_far(session: Session) -> None:
    oracle = session.oracle(Answers({"abc": [1], "ab": [1]}))
    oracle.left = 9
    oracle.judge(trial("abc"))
    oracle.judge(trial("ab", VALUES))
    checked = [event for event in session.told if isinstance(event, events.CheckedCandidate)]
    assert [(event.stage, event.nodes, event.left) for event in checked] == [("bisect", 3, 3), ("values", 2, 3)]
    assert checked[0].kind == "Checked"


def test_probes_are_no_iterations(session: Session) -> None:
    info = session.folder / "info.json"
    artifact = session.folder / "log"
    files = IterationFiles(artifacts=Artifacts((artifact,), session.folder / "sorted"), info=info)
    oracle = session.oracle(Answers({"a": [1]}), files=files)
    for number, (name, stage) in enumerate((("a", "bisect"), ("b", "values"), ("c", "linear"))):
        artifact.write_text(str(number))
        oracle.judge(trial(name, VALUES) if stage == "values" else trial(name))
    assert json.loads(info.read_text()) == {"iteration": 1}
    assert len(list((session.folder / "sorted").rglob("log_*"))) == 2


def test_an_answer_that_is_taken_back_is_asked_for_again_and_counts_no_more(session: Session) -> None:
    check = Answers({"a": [1, 0]})
    oracle = session.oracle(check)
    oracle.judge(trial("a"))
    assert oracle.undo() == trial("a").digest
    assert oracle.tally.checks == 0
    assert oracle.judge(trial("a")).outcome is Outcome.PASSES
    assert oracle.tally.checks == 1


def test_a_probe_that_is_taken_back_counts_no_iteration_less(session: Session) -> None:
    info = session.folder / "info.json"
    oracle = session.oracle(Answers(), files=IterationFiles(info=info))
    oracle.judge(trial("a"))
    oracle.judge(trial("b", VALUES))
    oracle.undo()
    oracle.judge(trial("c"))
    assert json.loads(info.read_text()) == {"iteration": 1}


def test_where_there_is_no_answer_to_take_back_that_is_said(session: Session) -> None:
    assert session.oracle(Answers()).undo() is None
    assert session.told == [events.Remark("there is no answer to take back")]


def test_a_check_that_cannot_be_run_ends_the_search_and_says_what_to_type(session: Session) -> None:
    oracle = session.oracle(Answers({"a": [127]}))
    with pytest.raises(errors.CheckError, match="could not be run") as caught:
        oracle.judge(trial("a"))
    assert caught.value.next_steps == ("run it by hand: look at candidate.onnx",)


def test_max_time_does_not_wait_for_a_check_that_hangs(session: Session) -> None:
    check = Answers(is_stoppable=True)
    check.hold("a")
    oracle = session.oracle(check, jobs=1, budget=Budget(seconds=0.5))
    with oracle.budget.enforced(), pytest.raises(BudgetSpentError, match="--max-time"):
        oracle.judge(trial("a"))
    oracle.close()
    assert check.asked in ([], ["a"])
    assert check.stopped == check.asked


def test_what_is_another_failure_or_cannot_be_said_is_met_once(session: Session) -> None:
    oracle = session.oracle(Answers({"a": [125], "b": [125]}))
    for name in ("a", "a", "b"):
        oracle.judge(trial(name))
    assert oracle.tally.cannot_say == {"exit status 125": 2}


def test_the_last_check_is_foreseen_once_a_candidate_of_few_nodes_is_asked_about(session: Session) -> None:
    check = Answers()
    oracle = session.oracle(check)
    oracle.judge(trial("a"))
    assert check.foreseen == 0  # whether the original fails is not known yet
    oracle.failure.reference = signature_of(Evidence(status=1))
    oracle.judge(trial("b", IDENTITY))
    oracle.judge(trial("many nodes, as many as letters"))
    assert check.foreseen == 0
    oracle.judge(trial("few"))
    assert check.foreseen == 1
    oracle.judge(trial("which of all these tensors are wrong", LOOK))
    assert check.foreseen == 2


def test_what_must_pass_several_times_is_begun_ahead_as_often(session: Session) -> None:
    check = Answers(is_stoppable=True)
    for name in ("a", "b", "c"):
        check.hold(name)
    oracle = session.oracle(check, jobs=7)
    oracle.memory.repetitions = 3
    oracle.ahead(iter([trial("a"), trial("b"), trial("c"), trial("d")]))
    assert [run.trial.description for run in oracle.pool.pending] == ["a"] * 3 + ["b"] * 3 + ["c"]


def test_what_has_ended_is_foretold_before_it_is_asked_and_counted_only_then(session: Session) -> None:
    check = Answers({"b": [1]})
    clock = SimulatedClock(lambda evidence: 0.1 if evidence.status else 1.0)  # it fails sooner than it passes
    oracle = session.oracle(check, jobs=2, executor=clock)
    oracle.ahead(iter([trial("a"), trial("b")]))
    told = []

    def meanwhile() -> None:
        told.append((oracle.foretold(trial("b")), oracle.foretold(trial("a")), oracle.tally.checks))
        oracle.keep_going([trial("a"), trial("c")])

    oracle.judge(trial("a"), meanwhile=meanwhile)
    ((foretold, unknown, counted), *_) = told
    assert foretold is not None
    assert foretold.outcome is Outcome.REPRODUCES
    assert (unknown, counted) == (None, 0)
    oracle.judge(trial("b"))
    assert oracle.tally.checks == 2
    assert check.asked == ["a", "b", "c"]


def test_questions_in_turn_are_checked_together_and_no_further_than_somebody_asks(session: Session) -> None:
    check = Answers({"b": [1]}, is_stoppable=True)
    oracle = session.oracle(check, jobs=2)
    with closing(oracle.in_turn(trial(name) for name in "abcdef")) as answers:
        assert [next(answers).outcome, next(answers).outcome] == [Outcome.PASSES, Outcome.REPRODUCES]
    assert oracle.tally.checks == 2
    assert not {"d", "e", "f"} & set(check.asked)
    assert oracle.pool.pending == []


@pytest.mark.parametrize("jobs", [1, 2, 7])
def test_questions_in_turn_have_the_same_answers_however_many_run_at_once(session: Session, jobs: int) -> None:
    oracle = session.oracle(Answers({"c": [1], "e": [125]}, is_stoppable=True), jobs=jobs)
    expected = [Outcome.PASSES, Outcome.PASSES, Outcome.REPRODUCES, Outcome.PASSES, Outcome.INVALID]
    assert [judged.outcome for judged in oracle.in_turn(trial(name) for name in "abcde")] == expected
