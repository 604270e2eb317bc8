"""A cold check whose process began to load before says what any cold check says; every process here is real."""

import os
import pickle
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import biopsy
from biopsy.checks import warm as cold_start
from biopsy.checks.command import ARBITER, CommandCheck
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.warm import ZygoteStarter, command_check
from biopsy.processes.warm import Warming
from biopsy.tensors.files import write_feeds, write_results
from support.command_line import children_of, is_alive, wait_until
from support.models import chain, save

NAME = "polygraphy_debug.onnx"


def warm(*words: str, timeout: float | None = None) -> CommandCheck:
    return command_check(["biopsy", "run", "{}", *words], NAME, timeout)


def said(evidence: Evidence) -> tuple[object, ...]:
    """What a check says, without the times that it measured."""
    return evidence.status, evidence.verdict, re.sub(rb"[\d.]+ m?s\b", b"", evidence.output), evidence.timed_out


def waiting(check: Check) -> int:
    """The process that waits."""
    assert isinstance(check, CommandCheck) and isinstance(check.starter, ZygoteStarter)
    assert check.starter._cold._waiting is not None
    return check.starter._cold._waiting.pid


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_it_says_what_a_process_says_that_nobody_foresaw(tmp_path: Path, count: int) -> None:
    candidate = save(chain(count), tmp_path / "m.onnx")
    words = ("--onnxrt", "--reference", "--input-shapes", "t0:[2,2]")
    foreseen, other = warm(*words), warm(*words)
    foreseen.foresee_cold()
    pid = waiting(foreseen)
    assert said(foreseen.cold().run(candidate)) == said(other.cold().run(candidate))
    assert not is_alive(pid)
    assert said(foreseen.cold().run(candidate)) == said(other.cold().run(candidate))  # in another process


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only /proc shows what a process has loaded")
def test_it_loads_its_engine_but_no_file_that_its_words_name(tmp_path: Path) -> None:
    candidate = save(chain(1), tmp_path / "m.onnx")
    feed = {"t0": np.ones((2, 2), np.float32)}
    inputs, golden = tmp_path / "in.npz", tmp_path / "golden.npz"
    words = ("--onnxrt", "--load-inputs", str(inputs), "--load-outputs", str(golden))
    for wrong in (inputs, golden):
        wrong.write_bytes(b"nothing that could be read")
    check = warm(*words)
    try:
        check.foresee_cold()
        maps = Path(f"/proc/{waiting(check)}/maps")
        assert wait_until(lambda: "onnxruntime_pybind11_state" in maps.read_text())
        write_feeds(inputs, [feed])
        write_results(golden, biopsy.run(chain(1), "onnxrt", feed))
        assert check.cold().run(candidate).status == 0
    finally:
        check.close()


def test_one_that_died_while_it_waited_says_nothing(tmp_path: Path) -> None:
    candidate = save(chain(1), tmp_path / "m.onnx")
    check = warm("--reference")
    check.foresee_cold()
    os.kill(waiting(check), signal.SIGKILL)
    assert check.cold().run(candidate).status == 0


def test_only_one_process_waits_whichever_check_of_the_command_foresees_it() -> None:
    check = warm("--reference")
    check.foresee_cold()
    pid = waiting(check)
    for other in (check, check.glance(), check.telling(ARBITER)):
        assert other is not None
        other.foresee_cold()
        assert waiting(other) == pid
    check.close()
    assert not is_alive(pid)
    check.foresee_cold()
    assert isinstance(check.starter, ZygoteStarter) and check.starter._cold._waiting is None


def test_a_check_that_travels_leaves_what_waits_behind() -> None:
    check = warm("--reference", timeout=3)
    travelled = pickle.loads(pickle.dumps(check.cold()))
    assert type(travelled) is CommandCheck
    assert (travelled.words, travelled.timeout) == (check.words, 3)


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[tuple[CommandCheck, Warming]]:
    """A check as the command line makes it, whose processes were started before; the zygote is warm."""
    words = ["biopsy", "run", "{}", "--onnxrt", "--load-inputs", str(tmp_path / "in.npz")]
    write_feeds(tmp_path / "in.npz", [{"t0": np.ones((2, 2), np.float32)}])
    started = Warming.begun(words, 1)
    check = command_check(words, NAME, begun=started)
    assert check.run(save(chain(1), tmp_path / "m.onnx")).status == 0
    yield check, started
    check.close()
    assert not is_alive(started.cold.pid)
    assert wait_until(lambda: not is_alive(started.zygote.pid))


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="only /proc shows what a process has loaded"
)


@needs_proc
def test_what_was_started_for_warm_checks_is_the_process_of_the_last_one(
    begun: tuple[CommandCheck, Warming], tmp_path: Path
) -> None:
    check, started = begun
    assert children_of(started.cold.pid) == [started.zygote.pid]
    maps = Path(f"/proc/{started.cold.pid}/maps")
    assert "_multiarray_umath" in maps.read_text()
    assert "onnxruntime_pybind11_state" not in maps.read_text()  # the zygote has opened it, and this process not
    check.foresee_cold()
    assert waiting(check) == started.cold.pid
    assert wait_until(lambda: "onnxruntime_pybind11_state" in maps.read_text())
    assert said(check.cold().run(tmp_path / "m.onnx")) == said(warm(*check.words[3:]).cold().run(tmp_path / "m.onnx"))
    assert not is_alive(started.cold.pid)
    assert (
        check.run(tmp_path / "m.onnx").status == 0 and check.starter._server is started.zygote
    )  # it outlives the other


@needs_proc
def test_the_process_of_the_last_check_was_started_a_short_time_before(
    begun: tuple[CommandCheck, Warming], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, started = begun
    monkeypatch.setattr(cold_start, "MOST_SECONDS", 0.0)
    assert check.cold().run(tmp_path / "m.onnx").status == 0
    assert not is_alive(started.cold.pid)
    check.foresee_cold()
    assert waiting(check) != started.cold.pid


@needs_proc
def test_a_warm_process_ends_with_who_asks_it_also_if_it_does_not_listen(
    begun: tuple[CommandCheck, Warming],
) -> None:
    _, started = begun
    os.kill(started.zygote.pid, signal.SIGSTOP)
    started.zygote.kill()
    assert wait_until(lambda: not is_alive(started.zygote.pid))
