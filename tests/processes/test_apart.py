"""One call in a fork: whatever becomes of it, this process goes on, and nothing is left."""

import ctypes
import mmap
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from biopsy.processes.own_process import taken_by_family
from biopsy.processes.supervised import ForkEndedError, call_in_fork
from biopsy.processes.watch import Limits
from support.command_line import children_of

PLENTY = Limits(seconds=30.0, memory=500_000_000)


@pytest.fixture(autouse=True)
def no_fork_is_left() -> Iterator[None]:
    """None runs, and none waits for its status to be taken; other tests may have left children of this process."""
    before = {*children_of(os.getpid())}
    yield
    left = {pid for pid in children_of(os.getpid()) if Path(f"/proc/{pid}").exists()} - before
    assert not left


def ended(work: object, limits: Limits = PLENTY) -> ForkEndedError:
    with pytest.raises(ForkEndedError) as told:
        call_in_fork(work, limits)  # type: ignore[arg-type]
    return told.value


def test_answers_of_any_size_come_in_their_order() -> None:
    assert call_in_fork(lambda: [b"", b"x" * 3_000_000, b"last"], PLENTY) == [b"", b"x" * 3_000_000, b"last"]


def test_a_crash_ends_the_fork_alone_and_what_it_said_before_counts() -> None:
    def work() -> Iterator[bytes]:
        yield b"before"
        ctypes.string_at(0)
        yield b"after"

    told = ended(work)
    assert (told.cause, told.status, told.answers) == ("itself", -signal.SIGSEGV, [b"before"])


def test_what_raises_is_no_answer() -> None:
    assert ended(lambda: iter([1 // 0])).status == 4


def test_a_call_that_takes_too_long_is_ended() -> None:
    began = time.monotonic()
    told = ended(lambda: [time.sleep(60) or b""], Limits(seconds=0.2))
    assert told.cause == "time"
    assert time.monotonic() - began < 5


def test_a_call_that_fills_the_memory_is_ended() -> None:
    def work() -> Iterator[bytes]:
        held = []
        while True:
            held.append(bytearray(os.urandom(1 << 10) * (1 << 10)))
            if not held:
                yield b""

    assert ended(work, Limits(seconds=30.0, memory=100_000_000)).cause == "memory"


def test_a_mapped_file_is_no_memory(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(os.urandom(1 << 20) * 200)

    def work() -> Iterator[bytes]:
        with (tmp_path / "weights").open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            yield bytes([sum(mapped[at] for at in range(0, len(mapped), 4096)) % 256])
            time.sleep(0.1)

    assert len(call_in_fork(work, Limits(seconds=30.0, memory=50_000_000))) == 1


@pytest.mark.slow
def test_it_works_while_other_threads_do(recwarn: pytest.WarningsRecorder) -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=lambda: [sorted(range(1000)) for _ in iter(stop.is_set, True)]) for _ in "ab"]
    for thread in threads:
        thread.start()
    try:
        assert all(call_in_fork(lambda: [b"x"], PLENTY) == [b"x"] for _ in range(20))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not recwarn.list


def test_the_memory_of_processes_that_end_meanwhile_is_counted_without_a_fault() -> None:
    for _ in range(30):
        child = subprocess.Popen(["sh", "-c", "for n in 1 2 3 4 5; do true & done; /bin/true"])
        while child.poll() is None:
            assert taken_by_family(child.pid) >= 0
        assert taken_by_family(child.pid) == 0


def test_an_interrupt_ends_it_too() -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            call_in_fork(lambda: [time.sleep(60) or b""], PLENTY)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


interrupts_of_a_fork: list[int] = []
os.register_at_fork(after_in_parent=lambda: [signal.raise_signal(number) for number in interrupts_of_a_fork])


def test_an_interrupt_while_it_forks_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python prints and forgets what a function raises that was registered for forks, such as those of logging."""
    monkeypatch.setitem(globals(), "interrupts_of_a_fork", [signal.SIGINT])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            call_in_fork(lambda: [time.sleep(60) or b""], PLENTY)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began < 10


def test_a_call_may_make_calls_of_its_own():
    assert call_in_fork(lambda: call_in_fork(lambda: [b"inner"], PLENTY), PLENTY) == [b"inner"]
