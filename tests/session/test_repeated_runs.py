"""A command that is run again and again, here and on other machines: the same counts, and nothing from what dies."""

import contextlib
import sys
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.judge import RepeatedRun, Rules, RunTally
from biopsy.checks.outcome import Outcome
from biopsy.checks.task import NO_CANDIDATE
from biopsy.session.pool import repeated
from support.node_processes import NodeProcesses
from support.scripts import with_external_weight


def repetition(
    *words: str, times: int | None = None, jobs: int = 1, timeout: float | None = None, begun: list[int] | None = None
) -> Generator[RepeatedRun, None, None]:
    check = CommandCheck(words, str(NO_CANDIDATE), timeout)

    def begin(number: int, running: Collection[int]) -> CommandCheck:
        assert len(running) < jobs
        assert number not in running
        if begun is not None:
            begun.append(number)
        return check

    return repeated(begin, Rules(), times, jobs)


def test_with_one_job_a_run_begins_when_the_one_before_has_been_dealt_with() -> None:
    begun: list[int] = []
    for run in repetition("true", times=4, begun=begun):
        assert begun == list(range(run.number + 1))
    assert begun == [0, 1, 2, 3]


def test_runs_are_told_in_the_order_in_which_they_began_so_that_quick_failures_do_not_count_first() -> None:
    """The first run passes late, all others fail at once: who ends with a failure has seen one of two runs fail."""
    begun: list[int] = []

    def begin(number: int, running: Collection[int]) -> CommandCheck:
        begun.append(number)
        return CommandCheck(["false"] if number else ["sleep", "0.5"], str(NO_CANDIDATE))

    outcomes = []
    with contextlib.closing(repeated(begin, Rules(), None, 4)) as runs:
        for run in runs:
            outcomes.append(run.judged.outcome)
            if run.judged.outcome is Outcome.REPRODUCES:
                break
    assert outcomes == [Outcome.PASSES, Outcome.REPRODUCES]
    assert 4 < len(begun) <= 64 + 4  # nobody waited for it


def test_each_run_is_told_once_however_many_run_at_once() -> None:
    for jobs in (1, 3, 8):
        assert [run.number for run in repetition("true", times=10, jobs=jobs)] == list(range(10))


@pytest.mark.slow
def test_without_an_end_it_goes_on_until_it_is_closed(tmp_path: Path) -> None:
    """And what still runs is ended: it would leave a file otherwise."""
    started = time.monotonic()
    late = tmp_path / "late"
    line = f"mkdir '{tmp_path}/first' && exit 3; sleep 5; touch '{late}'"
    with contextlib.closing(repetition("sh", "-c", line, jobs=3)) as runs:
        assert next(runs).judged.evidence.status == 3
    assert time.monotonic() - started < 4
    time.sleep(max(0.0, started + 5.5 - time.monotonic()))
    assert not late.exists()


def test_a_program_that_is_missing_is_told_by_the_exception_of_the_check() -> None:
    with pytest.raises(errors.CheckError, match="no program"):
        list(repetition("no-such-program", times=2, jobs=2))


def test_braces_stay_what_they_are(tmp_path: Path) -> None:
    """There is no candidate that they could stand for."""
    line = 'test "$1" = "{""}" && test "$2" = "a{""}b"'
    (run,) = repetition("sh", "-c", line, "sh", "{}", "a{}b", times=1)
    assert run.judged.outcome is Outcome.PASSES


def test_out_of_time_is_neither_passed_nor_failed() -> None:
    (run,) = repetition("sleep", "60", times=1, timeout=0.2)
    assert run.judged.outcome is Outcome.TIMED_OUT
    tally = RunTally("status")
    assert not tally.add(run)
    assert (tally.runs, tally.decided, tally.undecided) == (1, 0, {Outcome.TIMED_OUT: 1})


def test_only_the_first_failure_of_a_kind_is_a_new_one() -> None:
    tally = RunTally("status")
    runs = [next(repetition("sh", "-c", f"exit {status}")) for status in (0, 1, 2, 1)]
    assert [tally.add(run) for run in runs] == [False, True, True, False]
    assert [(kind.reason, kind.times) for kind in tally.kinds] == [("exit status 1", 2), ("exit status 2", 1)]
    assert (tally.passed, tally.failed) == (1, 3)


def test_any_failure_may_be_taken_for_the_same() -> None:
    tally = RunTally("any")
    for status in (1, 2):
        tally.add(next(repetition("sh", "-c", f"exit {status}")))
    assert [kind.times for kind in tally.kinds] == [2]


# On other machines


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[NodeProcesses]:
    folder = tmp_path / "machines"
    folder.mkdir()
    with contextlib.closing(NodeProcesses(folder, 2)) as made:
        yield made


def elsewhere(words: Sequence[str], machines: NodeProcesses, times: int) -> list[RepeatedRun]:
    check = CommandCheck(words, str(NO_CANDIDATE))
    return list(repeated(lambda number, running: check, Rules(), times, machines.room, workers=machines))


def test_a_command_without_a_candidate_runs_elsewhere_with_the_files_that_it_names(
    tmp_path: Path, machines: NodeProcesses
) -> None:
    source = with_external_weight(tmp_path / "model")
    (tmp_path / "command.py").write_text(
        "import pathlib, sys\n"
        "model = pathlib.Path(sys.argv[1])\n"
        "print(model, sys.argv[2])\n"
        "sys.exit(3 if model.with_name('w.bin').stat().st_size else 4)"
    )
    words = [sys.executable, str(tmp_path / "command.py"), str(source), "{}"]
    found = elsewhere(words, machines, 4)
    assert [run.number for run in found] == [0, 1, 2, 3]
    assert [run.judged.evidence.status for run in found] == [3] * 4
    assert [run.judged.evidence.output for run in found] == [f"{source} {{}}\n".encode()] * 4
    sent = [sorted(path.name for path in node.sent) for node in machines.nodes]
    assert {*map(tuple, sent)} - {()} == {("command.py", "m.onnx", "w.bin")}  # one that is slow to start runs none


def test_a_machine_that_dies_is_no_run_that_fails(tmp_path: Path, machines: NodeProcesses) -> None:
    """Each run ends its machine, unless a run has done so before."""
    (tmp_path / "command.py").write_text(
        "import os, pathlib, signal, sys\n"
        "try: pathlib.Path(sys.argv[1]).touch(exist_ok=False)\n"
        "except FileExistsError: sys.exit(0)\n"
        "os.kill(os.getppid(), signal.SIGKILL)"
    )
    found = elsewhere([sys.executable, str(tmp_path / "command.py"), str(tmp_path / "done")], machines, 6)
    assert [run.judged.outcome for run in found] == [Outcome.PASSES] * 6
    assert (tmp_path / "done").exists()
    assert len(machines.nodes) > 1


def test_a_command_that_ends_three_machines_is_told(tmp_path: Path, machines: NodeProcesses) -> None:
    (tmp_path / "command.py").write_text("import os, signal; os.kill(os.getppid(), signal.SIGKILL)")
    with pytest.raises(errors.CheckError, match=r"3 machines in a row.*command") as told:
        elsewhere([sys.executable, str(tmp_path / "command.py")], machines, 1)
    assert told.value.kept is None
