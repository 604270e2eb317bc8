"""What is told of checks that go on at once: how many run, wait, end, and were cancelled, on how many machines."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from time import monotonic, sleep

import pytest

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.task import Task
from biopsy.session.pool import Parallelism, Pool, Workers
from support.machines_here import MachinesHere
from support.session import LIMIT, Answers, Session, trial

SLEEPS = CommandCheck(["sh", "-c", "exec sleep 600", "{}"], "c.onnx")
ENDS = CommandCheck(["true", "{}"], "c.onnx")


def pool_of(session: Session, check: Check, jobs: int, workers: Workers | None = None) -> Pool:
    parallelism = Parallelism(jobs=jobs, executor=workers)
    return Pool(check, session.folder / "candidate.onnx", parallelism, session.told.append, keep_last=False)


def told(session: Session) -> list[events.ChecksInFlight]:
    return [event for event in session.told if isinstance(event, events.ChecksInFlight)]


def begun(workers: MachinesHere, folder: Path, check: CommandCheck = ENDS) -> Future[Evidence]:
    return workers.begin(Task(check, folder / "c.onnx", [b"model"]))


def until(holds: object) -> None:
    end = monotonic() + LIMIT
    while not holds() and monotonic() < end:  # type: ignore[operator]
        sleep(0.002)
    assert holds()  # type: ignore[operator]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[MachinesHere]:
    """Three places on two machines."""
    made = MachinesHere(tmp_path, ["a", "a", "b"])
    yield made
    for event in made.late.values():
        event.set()
    made.close()
    assert all(machine.is_given_back for machine in made.lent)


def test_one_check_after_the_other_is_not_told(session: Session) -> None:
    pool = pool_of(session, Answers(), 1)
    pool.wait(pool.start(pool.new_run(trial("a"))), None)
    pool.close()
    assert told(session) == []


def test_checks_of_this_machine_are_told_when_somebody_waits_and_at_the_end(session: Session) -> None:
    check = Answers(is_stoppable=True)
    check.hold("b")
    pool = pool_of(session, check, 2)
    runs = [pool.start(pool.new_run(trial(name))) for name in ("a", "b")]
    assert check.begun["b"].wait(LIMIT)
    wait([runs[0].future], LIMIT)
    assert pool.wait(runs[1], 0.01) is None
    pool.close()
    assert told(session) == [
        events.ChecksInFlight(running=1, waiting=0, ending=0, cancelled=0),
        events.ChecksInFlight(running=0, waiting=0, ending=0, cancelled=1),
    ]


def test_an_answer_that_was_there_was_not_cancelled(session: Session) -> None:
    pool = pool_of(session, Answers(), 2)
    wait([pool.start(pool.new_run(trial("a"))).future], LIMIT)
    pool.close()
    assert told(session) == []


def test_checks_wait_for_a_machine_and_are_told_once_they_run(session: Session, here: MachinesHere) -> None:
    here.late = {"b": threading.Event()}
    pool = pool_of(session, SLEEPS, 3, here)
    runs = [pool.start(pool.new_run(trial(name))) for name in ("x", "y", "z")]
    until(lambda: here.running == 2)
    assert pool.wait(runs[0], 0.01) is None
    here.late["b"].set()
    until(lambda: here.running == 3)
    assert pool.wait(runs[0], 0.01) is None
    pool.close()
    assert [(one.machines, one.running, one.waiting) for one in told(session)] == [(1, 2, 1), (2, 3, 0), (0, 0, 0)]
    assert told(session)[-1].cancelled == 3


def test_machines_are_borrowed_before_the_first_check_is_begun(session: Session, here: MachinesHere) -> None:
    pool = pool_of(session, ENDS, 2, here)
    until(lambda: len(here.lent) == 2)
    pool.close()
    assert len(here.lent) == 2


def test_a_run_takes_the_machine_that_is_free_first(tmp_path: Path, here: MachinesHere) -> None:
    """It need not be the one that was borrowed for it."""
    here.late = {"b": threading.Event()}
    runs = [begun(here, tmp_path / str(number)) for number in range(4)]
    here.wait(runs, LIMIT)
    wait(runs, LIMIT)
    assert [run.result().status for run in runs] == [0] * 4
    assert {machine.name for machine in here.lent} == {"a"}


def test_a_run_that_is_stopped_waits_for_no_machine(tmp_path: Path, here: MachinesHere) -> None:
    here.late = {"a": threading.Event(), "b": threading.Event()}
    run = begun(here, tmp_path)
    until(run.running)
    here.stop(run)
    here.wait([run], LIMIT)
    assert run.done()
    assert here.lent == []


def test_who_waits_is_told_why_there_is_no_machine(tmp_path: Path) -> None:
    here = MachinesHere(tmp_path, ["other", "same"])
    here.refused = {"other": errors.CheckError("another processor")}
    first = begun(here, tmp_path)
    with pytest.raises(errors.CheckError, match="another processor"):
        first.result(LIMIT)
    assert begun(here, tmp_path).result(LIMIT).status == 0
    here.close()
