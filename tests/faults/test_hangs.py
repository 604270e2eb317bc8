"""Checks that hang, in every way in which a process can refuse to end."""

import os
import signal
import time
from pathlib import Path

import pytest

from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Evidence
from biopsy.processes.watch import Stop

NOTE = "open('pids.txt', 'a').write(f'{os.getpid()}\\n')\n"

SPIN = "\nwhile True: pass\n"
DEAF = """
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
while True: time.sleep(1)
"""
GRANDCHILD = """
if not os.fork() and not os.fork():
    open('pids.txt', 'a').write(f'{os.getpid()}\\n')
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True: pass
time.sleep(60)
"""
OTHER_GROUP = """
if not os.fork():
    os.setpgid(0, 0)
    open('pids.txt', 'a').write(f'{os.getpid()}\\n')
    while True: time.sleep(1)
time.sleep(60)
"""
DAEMON = """
if not os.fork():
    os.setsid()
    if os.fork(): os._exit(0)
    open('pids.txt', 'a').write(f'{os.getpid()}\\n')
    for number in (signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
    while True: time.sleep(1)
time.sleep(60)
"""
BROOD = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def bear(depth):
    open('pids.txt', 'a').write(f'{os.getpid()}\\n')
    for _ in range(2):
        if depth and not os.fork():
            os.setsid()
            bear(depth - 1)
    while True: time.sleep(1)
bear(4)
"""
HANGS = {
    "spins": SPIN, "ignores signals": DEAF, "has a grandchild": GRANDCHILD, "has a child in another group": OTHER_GROUP,
    "has a daemon": DAEMON, "has thirty daemons": BROOD,
}  # fmt: skip


def hangs(place, hang: str, timeout: float = 1.0) -> tuple[Evidence, list[int]]:
    """Run a check that hangs by itself; what came of it, and who took part in it."""
    words = place.check(NOTE + hang)
    words[3] = str(place.folder / words[3])
    candidate = place.model()
    before = Path.cwd()
    os.chdir(place.folder)
    try:
        evidence = CommandCheck(words, "polygraphy_debug.onnx", timeout).run(candidate)
    finally:
        os.chdir(before)
    return evidence, [int(line) for line in place.told("pids.txt")]


@pytest.mark.slow
@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS)
def test_after_the_timeout_nobody_is_left(place, hang: str) -> None:
    started = time.monotonic()
    evidence, pids = hangs(place, hang)
    assert evidence.timed_out
    assert time.monotonic() - started < 30
    assert len(pids) >= {BROOD: 25, SPIN: 1, DEAF: 1}.get(hang, 2)
    assert [pid for pid in pids if Path(f"/proc/{pid}/environ").exists() and is_running(pid)] == []


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_daemon_that_the_check_left_behind_does_not_make_it_hang(place) -> None:
    """It has the pipe that the check prints into, and would print for ever."""
    code = DAEMON.replace("while True: time.sleep(1)", "end = time.time() + 3\n    while time.time() < end: print('x')")
    evidence, _ = hangs(place, code.replace("time.sleep(60)", "sys.exit(1)"), timeout=20)
    assert (evidence.status, evidence.timed_out) == (1, False)
    assert evidence.seconds < 15


def test_an_original_that_hangs_is_reduced_to_what_hangs(place) -> None:
    place.model(6)
    check = place.check(f"if 'n3' in names:\n    {NOTE}    {SPIN.strip()}")
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--check-timeout", "0.3", "--check", *check)
    assert (ran.status, place.nodes()) == (0, ["n3"]), ran.told
    assert "no answer in time" in ran.told
    assert "timed out" not in ran.told


@pytest.mark.slow
def test_a_candidate_that_hangs_where_the_original_did_not_is_no_reproduction(place) -> None:
    place.model(8)
    daemon = DAEMON.strip().replace("\n", "\n    ")
    check = place.check(f"if 'n3' in names: sys.exit(1)\nif 'n6' not in names and len(names) > 1:\n    {daemon}")
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--check-timeout", "1", "--check", *check)
    assert (ran.status, place.nodes()) == (0, ["n3"]), ran.told
    assert "timed out" in ran.told
    assert place.told("pids.txt")


def test_a_check_that_is_not_wanted_any_more_is_ended_with_its_daemons(place) -> None:
    words = place.check(NOTE + DAEMON)
    words[3] = str(place.folder / words[3])
    here = Path.cwd()
    os.chdir(place.folder)
    stop = Stop()
    try:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as one:
            running = one.submit(CommandCheck(words, "c.onnx", 60).run, place.model(), stop)
            while len(place.told("pids.txt")) < 2:
                assert not running.done()
                time.sleep(0.02)
            stop.set()
            assert running.result(timeout=30).status == -signal.SIGTERM
    finally:
        stop.close()
        os.chdir(here)
    assert [pid for pid in map(int, place.told("pids.txt")) if is_running(pid)] == []
