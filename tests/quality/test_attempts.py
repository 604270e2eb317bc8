"""A benchmark of which one measurement breaks or hangs still has all the others."""

import signal
import time
from pathlib import Path

import pytest

from benchmarks import rounds, side_by_side
from benchmarks.attempts import NotMeasured, attempt, times_faster
from benchmarks.running import Tool


def broken() -> str:
    raise RuntimeError("no such | engine\nhere")


def test_what_breaks_leaves_its_reason_as_one_cell() -> None:
    assert str(attempt(broken)) == "not measured: RuntimeError: no such / engine here"
    assert attempt(lambda: 7) == 7


@pytest.mark.slow  # an alarm in a process that other tests share
def test_what_hangs_is_given_up_and_the_alarm_is_taken_back() -> None:
    before = signal.getsignal(signal.SIGALRM)
    assert str(attempt(lambda: time.sleep(60), 0.05)) == "not measured: TimeoutError: it took more than 0 s"
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [60.0, 0.1])
def test_the_limit_of_many_holds_whatever_limit_each_has(limit: float) -> None:
    def rows() -> list[object]:
        return [attempt(lambda: time.sleep(0.05), limit) for _ in range(1000)]

    assert str(attempt(rows, 0.3)) == "not measured: TimeoutError: it took more than 0 s"
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.slow
def test_a_limit_that_comes_before_the_one_around_it_ends_one_alone() -> None:
    found = attempt(lambda: [attempt(lambda: time.sleep(60), 0.05), attempt(lambda: 7)], 60)
    assert str(found) == "[NotMeasured(reason='TimeoutError: it took more than 0 s'), 7]"


def test_what_cannot_be_compared_has_no_ratio() -> None:
    assert times_faster(None, 2.0) == ""
    assert times_faster(3.0, 2.0, at_least=True) == "> 1.5×"


def test_a_broken_row_of_rounds_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        rounds, "rounds", lambda nodes, pattern, jobs, folder: broken() if jobs == 4 else (128 // jobs, 9)
    )
    rows = rounds.table(100).splitlines()
    assert len(rows) == 2 + len(rounds.PATTERNS) * len(rounds.JOBS)
    assert rows[3] == "| 100 | middle | 2 | 9 | 64 | 2.0× |"
    assert rows[4] == "| 100 | middle | 4 |  | not measured: RuntimeError: no such / engine here |  |"


def test_a_tool_that_is_not_there_leaves_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    tools = [Tool("one", Path("/nowhere/python"), Path("/nowhere/tool"), "bisect")]
    found = side_by_side.compare([side_by_side.Case("chain", 5, "middle")], tools)
    assert isinstance(found[0][1][0], NotMeasured)
    assert "not measured: FileNotFoundError" in side_by_side.table(found, tools)
