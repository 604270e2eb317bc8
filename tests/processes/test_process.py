"""A command that is watched to its end; more ways to hang are in tests/faults/test_hangs.py."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.processes.process import CannotStartError, Process, run
from biopsy.processes.watch import Limits
from support.command_line import is_alive

PYTHON = (sys.executable, "-I", "-S", "-c")


def test_it_tells_the_status_and_all_that_was_printed_in_its_order() -> None:
    code = "import os; os.write(1, b'a'); os.write(2, b'b'); os.write(1, b'c'); raise SystemExit(3)"
    ended = run([*PYTHON, code], Limits)
    assert (ended.status, ended.cause, ended.output) == (3, "itself", b"abc")


def test_a_signal_is_a_negative_status() -> None:
    assert run([*PYTHON, "import os; os.abort()"], Limits).status == -signal.SIGABRT


def test_variables_are_added_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "1")
    code = "import os; print(os.environ['OURS'], os.environ['THEIRS'])"
    assert run([*PYTHON, code], Limits, environment={"THEIRS": "2"}).output == b"1 2\n"


def test_a_variable_that_is_to_be_nothing_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIOPSY_TEST", "here")
    words = ["sh", "-c", "echo ${BIOPSY_TEST-nothing}"]
    assert run(words, Limits, environment={"BIOPSY_TEST": None}).output == b"nothing\n"


def test_it_is_ended_at_the_limit_of_time_or_memory() -> None:
    assert run([*PYTHON, "import time; time.sleep(600)"], lambda: Limits(seconds=1)).cause == "time"
    grows = "import time; block = bytearray(200 << 20); time.sleep(600)"
    assert run([*PYTHON, grows], lambda: Limits(seconds=60, memory=100 << 20)).cause == "memory"


@pytest.mark.slow
def test_an_impatient_end_leaves_no_time_to_clean_up() -> None:
    deaf = "import os, signal, time; signal.signal(signal.SIGTERM, lambda *_: os._exit(9)); time.sleep(600)"
    assert run([*PYTHON, deaf], lambda: Limits(seconds=3), patient=False).status == -signal.SIGKILL


def test_of_what_is_printed_the_beginning_and_the_end_are_kept() -> None:
    ended = run([*PYTHON, "print('first' + 'x' * 100_000 + 'last', end='')"], Limits, kept=10)
    assert ended.output == b"firstxxxxx\n[... cut by biopsy ...]\nxxxxxxlast"


@pytest.mark.parametrize("words", [["/no/such/program"], ["a\0b"]])
def test_a_command_that_cannot_be_started_is_told_with_the_reason(words: list[str]) -> None:
    with pytest.raises(CannotStartError) as caught:
        run(words, Limits)
    assert isinstance(caught.value, errors.BiopsyError)
    assert isinstance(caught.value.reason, FileNotFoundError if "/" in words[0] else ValueError)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the platform has no descriptors of processes")
def test_one_that_cannot_be_watched_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []

    def refuse(pid: int) -> int:
        pids.append(pid)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(CannotStartError, match="Too many open files"):
        Process([*PYTHON, "import time; time.sleep(600)"])
    assert not is_alive(pids[0])


def test_one_that_still_runs_stays_registered_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    struck: list[tuple[str, ...]] = []
    process = Process([*PYTHON, "import time; time.sleep(600)"])
    monkeypatch.setattr("biopsy.processes.cleanup.unregister", lambda *entry: struck.append(entry))
    process.close()
    assert not struck
    process.kill()
    assert [entry[:2] for entry in struck] == [("group", str(process.pid))]


INTERRUPTED = """
import sys
from biopsy.processes.process import run
from biopsy.processes.watch import Limits

child = "import os, signal, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); "
child += "os.kill(os.getppid(), signal.SIGINT); time.sleep(600)"
try:
    run([sys.executable, "-c", child, sys.argv[1]], Limits)
except KeyboardInterrupt:
    sys.exit(3)
"""


def test_an_interrupt_ends_it(tmp_path: Path) -> None:
    """In a process of its own: what interrupts the one that runs the tests may end it."""
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED, str(tmp_path / "pid")], timeout=120)
    assert ended.returncode == 3
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_a_process_may_be_asked_again_and_again_how_it_ended() -> None:
    process = Process([*PYTHON, "raise SystemExit(3)"])
    assert process.wait(60) == process.status() == process.kill() == process.wait(0) == 3
    process.close()
    assert process.wait(0) == 3
    assert os.getpid() != process.pid


def test_a_command_can_be_interrupted_though_whoever_starts_it_cannot() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        ended = run(["sh", "-c", "kill -INT $$; exit 7"], Limits)
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert ended.status == -signal.SIGINT
