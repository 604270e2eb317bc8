"""What happens to the warm process from outside while a reduction uses it."""

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from support.command_line import wait_until
from support.models import chain, save

pytestmark = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")

CHECK = ["biopsy", "run", "{}", "--onnxrt", "--validate"]


LENGTH, CULPRIT = 12, 6


def many_checks(place) -> None:
    """A chain of which only the Log makes NaN of something; node by node it takes many checks to find."""
    made = chain(LENGTH, ("Neg",))
    for number, op in ((-3, "Abs"), (-2, "Neg"), (-1, "Identity"), (0, "Log")):
        made.graph.node[CULPRIT + number].op_type = op
    save(made, place.folder / "m.onnx")


def zygotes(place) -> list[int]:
    """The warm processes: each is a fork of a process that waits to be a cold check, and checks are forks of it."""
    found = {}
    for pid in place.processes():
        with suppress(OSError, ValueError):
            if b"biopsy.cli.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes():
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                found[pid] = int(fields[1])
    return [pid for pid, parent in found.items() if parent in found and found[parent] not in found]


def forks(place) -> list[int]:
    everyone = zygotes(place)
    return [pid for pid in place.processes() if pid not in everyone and parent_of(pid) in everyone]


def parent_of(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def begin(place, *words: str):
    many_checks(place)
    line = ["m.onnx", "-o", "r.onnx", "--mode=linear", "--events", "e.txt", *words, "--check", *CHECK]
    process = place.start(*line)
    assert wait_until(lambda: len(place.told("e.txt")) > 12), process.communicate(timeout=5)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_warm_process_that_is_killed_is_done_without_and_the_result_is_the_same(place, jobs: str) -> None:
    process = begin(place, "--jobs", jobs)
    killed = zygotes(place)
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert "Traceback" not in told
    assert place.nodes() == [
        f"n{CULPRIT - 2}",
        f"n{CULPRIT - 1}",
        f"n{CULPRIT}",
    ]  # as without a fault: Neg, Identity, Log


def test_a_fork_that_is_killed_is_another_failure_and_leads_nowhere(place) -> None:
    process = begin(place, "--jobs", "1")
    killed = kill_forks(place, process, lambda: bool(place.verdicts()))
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert f"n{CULPRIT}" in place.nodes()
    assert not killed or "signal SIGSEGV" in told


@pytest.mark.slow
def test_a_fork_that_is_killed_before_it_looks_is_asked_again(place) -> None:
    process = begin(place, "--jobs", "1")
    kill_forks(place, process, lambda: not place.verdicts())
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert f"n{CULPRIT}" in place.nodes()


def kill_forks(place, process: subprocess.Popen[str], when: Callable[[], bool]) -> int:
    """Kill three checks, each at a moment of which ``when`` is true; how many there were."""
    killed = 0
    while process.poll() is None and killed < 3:
        for pid in forks(place):
            with suppress(OSError):
                os.kill(pid, signal.SIGSTOP)
                if stops(pid) and when():
                    os.kill(pid, signal.SIGSEGV)
                    killed += 1
                os.kill(pid, signal.SIGCONT)
    return killed


def stops(pid: int) -> bool:
    """Whether a process stands still: a signal to one that has just ended would succeed, and change nothing."""
    return wait_until(lambda: state_of(pid) in "TZ", 5) and state_of(pid) == "T"


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_killed_biopsy_takes_its_warm_process_and_the_forks_along(place) -> None:
    process = begin(place)
    process.kill()
    process.communicate()
    assert place.everyone_has_ended()
    for path in place.folder.iterdir():
        if path.name != "m.onnx":
            path.unlink()
