"""The pool: runs checks at once, each on a model that stands where no other run looks, and leaves nothing behind."""

from collections.abc import Collection, Iterator
from concurrent.futures import Future, wait
from pathlib import Path

import pytest

from biopsy import events
from biopsy.checks.outcome import Evidence
from biopsy.session.pool import Parallelism, PendingRun, Pool, Threads
from support.session import LIMIT, Answers, Session, trial


@pytest.fixture
def pools(session: Session) -> Iterator[list[Pool]]:
    made: list[Pool] = []
    yield made
    for pool in made:
        pool.close()


def pool_of(session: Session, pools: list[Pool], check: Answers, jobs: int, *, keep_last: bool = False) -> Pool:
    pool = Pool(
        check, session.folder / "candidate.onnx", Parallelism(jobs=jobs), session.told.append, keep_last=keep_last
    )
    pools.append(pool)
    return pool


def begin(pool: Pool, name: str, place: Path | None = None) -> PendingRun:
    return pool.start(pool.new_run(trial(name, place=place)))


def test_one_check_at_a_time_looks_where_the_user_knows_candidates_to_be(session: Session, pools: list[Pool]) -> None:
    check = Answers()
    pool = pool_of(session, pools, check, 1)
    for name in ("a", "b"):
        assert pool.wait(begin(pool, name), None) is not None
    assert check.asked == ["a", "b"]
    assert set(check.places) == {session.folder / "candidate.onnx"}


def test_runs_at_the_same_time_have_places_of_their_own(session: Session, pools: list[Pool]) -> None:
    check = Answers(is_stoppable=True)
    gates = [check.hold(name) for name in ("a", "b", "c")]
    pool = pool_of(session, pools, check, 3)
    runs = [begin(pool, name) for name in ("a", "b", "c")]
    assert all(check.begun[name].wait(LIMIT) for name in ("a", "b", "c"))
    assert len({run.path for run in runs}) == 3
    for gate in gates:
        gate.set()
    assert all(pool.wait(run, LIMIT) is not None for run in runs)
    assert pool.pending == []


def test_a_file_of_somebody_else_beside_the_candidate_is_not_used(session: Session, pools: list[Pool]) -> None:
    (session.folder / "candidate.1.onnx").write_bytes(b"mine")
    check = Answers(is_stoppable=True)
    gate = check.hold("a")
    check.held["b"] = gate
    check.begun["b"] = check.begun["a"]
    pool = pool_of(session, pools, check, 2)
    runs = [begin(pool, "a"), begin(pool, "b")]
    assert runs[1].path.name == "candidate.2.onnx"
    gate.set()
    assert all(pool.wait(run, LIMIT) is not None for run in runs)
    pool.close()
    assert [path.name for path in session.folder.iterdir()] == ["candidate.1.onnx"]


def test_a_model_that_stands_somewhere_is_checked_there(session: Session, pools: list[Pool]) -> None:
    place = session.folder / "result.onnx"
    place.write_bytes(b"result")
    check = Answers()
    pool = pool_of(session, pools, check, 1)
    assert pool.wait(begin(pool, "result", place), None) is not None
    assert check.places == [place]
    pool.close()
    assert place.exists()


def test_a_run_that_is_abandoned_is_stopped_and_told_of(session: Session, pools: list[Pool]) -> None:
    check = Answers(is_stoppable=True)
    check.hold("a")
    pool = pool_of(session, pools, check, 2)
    run = begin(pool, "a")
    assert check.begun["a"].wait(LIMIT)
    pool.abandon([run])
    pool.close()
    assert check.stopped == ["a"]
    assert session.of(events.Abandoned) == [events.Abandoned(run.number)]


def test_who_waits_too_long_is_told_and_the_run_stays_pending(session: Session, pools: list[Pool]) -> None:
    check = Answers(is_stoppable=True)
    gate = check.hold("a")
    pool = pool_of(session, pools, check, 2)
    run = begin(pool, "a")
    assert pool.wait(run, 0.0) is None
    assert pool.pending == [run]
    gate.set()
    assert pool.wait(run, LIMIT) is not None


class EndLate(Threads):
    """Workers whose runs end at the very moment at which nobody waits for them any more."""

    def wait(self, runs: Collection[Future[Evidence]], seconds: float | None) -> None:
        super().wait(runs, seconds)
        for run in runs:
            run.set_result(Evidence(status=1, output=b"late"))


def test_a_run_that_ends_as_the_wait_for_it_ends_is_heard(session: Session, pools: list[Pool]) -> None:
    late = Parallelism(executor=EndLate(1))
    pool = Pool(Answers(), session.folder / "candidate.onnx", late, session.told.append, keep_last=False)
    pools.append(pool)
    run = pool.new_run(trial("a"))
    pool.pending.append(run)
    assert pool.wait(run, 0.0) == Evidence(status=1, output=b"late")
    assert pool.pending == []


def test_a_timeout_that_the_check_raises_is_the_checks_own(session: Session, pools: list[Pool]) -> None:
    pool = pool_of(session, pools, Answers(), 1)
    future: Future[Evidence] = Future()
    future.set_exception(TimeoutError("of the check"))
    run = pool.new_run(trial("a"))
    run.future = future
    pool.pending.append(run)
    with pytest.raises(TimeoutError, match="of the check"):
        pool.wait(run, LIMIT)


def test_who_waits_is_told_of_every_other_run_that_ends(session: Session, pools: list[Pool]) -> None:
    check = Answers(is_stoppable=True)
    gates = {name: check.hold(name) for name in ("a", "b", "c")}
    pool = pool_of(session, pools, check, 3)
    runs = {name: begin(pool, name) for name in gates}
    order = iter(["c", "a"])

    def next_one() -> None:
        gates[next(order)].set()

    gates["b"].set()
    assert pool.wait(runs["a"], LIMIT, next_one) is not None
    assert [run.trial.description for run in pool.pending] == ["b", "c"]
    assert all(run.future.done() for run in pool.pending)
    assert pool.running == []


def test_answers_that_nobody_asked_for_yet_take_no_room_and_are_kept_until_there_are_many(
    session: Session, pools: list[Pool]
) -> None:
    check = Answers(is_stoppable=True)
    pool = pool_of(session, pools, check, 1)
    for number in range(6):
        run = begin(pool, str(number))
        wait([run.future], LIMIT)
        pool.make_room(kept=[])
    assert len(pool.pending) == 6
    pool.abandon_running(but=[trial("0")])
    assert [run.trial.description for run in pool.pending] == ["0", "2", "3", "4", "5"]


def test_room_is_made_from_the_newest_run_that_nobody_needs(session: Session, pools: list[Pool]) -> None:
    check = Answers(is_stoppable=True)
    for name in ("a", "b", "c"):
        check.hold(name)
    pool = pool_of(session, pools, check, 3)
    runs = [begin(pool, name) for name in ("a", "b", "c")]
    pool.make_room(kept=[runs[2]])
    assert pool.pending == [runs[0], runs[2]]
    pool.make_room(kept=[runs[2]])
    assert pool.pending == [runs[0], runs[2]]


def test_another_check_is_used_from_now_on_and_both_end_at_the_end(session: Session, pools: list[Pool]) -> None:
    warm, cold = Answers(), Answers()
    pool = pool_of(session, pools, warm, 1)
    pool.wait(begin(pool, "a"), None)
    pool.use(cold)
    pool.wait(begin(pool, "b"), None)
    assert (warm.asked, cold.asked) == (["a"], ["b"])
    pool.close()
    assert (warm.closed, cold.closed) == (1, 1)
    pools.clear()


@pytest.mark.parametrize("keep_last", [False, True])
def test_no_candidate_is_left_unless_the_last_one_is_wanted(
    session: Session, pools: list[Pool], *, keep_last: bool
) -> None:
    pool = pool_of(session, pools, Answers(), 1, keep_last=keep_last)
    pool.wait(begin(pool, "a"), None)
    pool.close()
    assert (session.folder / "candidate.onnx").exists() is keep_last
