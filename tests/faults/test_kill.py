"""biopsy ended by SIGKILL at any moment: nothing goes on running, and the same line ends at the same file."""

import os
import random
import re
import signal
import time

import pytest

from biopsy.checks.journal import Journal
from support.command_line import is_alive, wait_until
from support.journals import lines_of

ASKED = "open('asked.txt', 'a').write('.\\n')\n"
"""Each check leaves a line, so that a moment is a number of checks, however slow the machine is just now."""

A_CHECK = 0.1  # seconds, of which a part goes by before the kill: it meets a check anywhere, and what is between two
SLEEPS = "time.sleep(0.01)\nsys.exit('n3' in names and 'n9' in names)"
EXPECTED = re.compile(r"m\.onnx|r\.onnx|r\.onnx\.journal")
"""The result and its journal: nothing else may be left, not even for a moment after the last process has ended."""


def moments(count: int, seed: int) -> list[float]:
    """Parts of a duration, spread over all of it."""
    spread = random.Random(seed)
    return [(number + spread.random()) / count for number in range(count)]


def wait_for_moment(place, process, checks: float) -> None:
    """Return once so many checks were asked, or when the reduction has ended before that."""
    whole = int(checks)
    assert wait_until(lambda: len(place.told("asked.txt")) >= whole or process.poll() is not None)
    time.sleep((checks - whole) * A_CHECK)


def kill_at_moments(place, count: int, seed: int) -> None:
    place.model(12)
    words = ["m.onnx", "-o", "r.onnx", "--jobs", "1", "--check", *place.check(ASKED + SLEEPS)]
    assert place.reduce(*words).status == 0
    whole = len(place.told("asked.txt"))
    expected = (place.folder / "r.onnx").read_bytes()
    resumed = 0
    for number, moment in enumerate(moments(count, seed)):
        (place.folder / "r.onnx").unlink()
        words[4] = "12"[number % 2]
        for part in (moment, 1 - moment)[: 1 + number % 4 // 3]:  # some are killed twice
            (place.folder / "asked.txt").unlink(missing_ok=True)
            process = place.start(*words)
            wait_for_moment(place, process, part * whole)
            process.kill()
            process.communicate()
            assert place.everyone_has_ended(), moment
            assert wait_until(lambda: not list(place.temporary.iterdir()), 60), list(place.temporary.iterdir())
            assert not [name for name in place.files() if not EXPECTED.fullmatch(name)]
        ran = place.reduce(*words)
        assert ran.status == 0, ran.told
        resumed += "remembered in r.onnx.journal" in ran.told
        assert (place.folder / "r.onnx").read_bytes() == expected, (moment, ran.told)
        assert place.files() == {"m.onnx", "r.onnx"}, (moment, ran.told)
    assert resumed >= count // 2  # early ones have nothing to go on from, late ones have ended


@pytest.mark.slow
def test_killed_at_four_moments_it_goes_on_to_the_same_result(place) -> None:
    kill_at_moments(place, 4, seed=1)


def test_killed_it_leaves_no_file_that_a_check_was_to_read(place) -> None:
    place.model(12)
    check = place.check(
        "open('asked.txt', 'a').write(' '.join(sys.argv[1:]) + '\\n')\nlen(names) < 12 and time.sleep(60)\nsys.exit(1)"
    )
    files = ["--iter-inputs", "in.npz", "--iter-info", "i.json"]
    process = place.start("m.onnx", "-o", "r.onnx", "--jobs", "3", *files, "--check", *check, "in.npz", "i.json")
    assert wait_until(lambda: any("in.2.npz i.2.json" in line for line in place.told("asked.txt")))
    assert {"in.1.npz", "i.1.json", "in.2.npz", "i.2.json"} < place.files()
    process.kill()
    process.communicate()
    assert place.everyone_has_ended()
    assert wait_until(lambda: place.files() - {"r.onnx.journal"} == {"m.onnx", "in.npz", "i.json"}), place.files()
    (place.folder / "r.onnx.journal").unlink(missing_ok=True)


@pytest.mark.slow
def test_killed_at_fifty_moments_it_goes_on_to_the_same_result(place) -> None:
    kill_at_moments(place, 50, seed=2)


HANGS = """
if len(names) == 6:
    if not os.fork():
        os.setsid()
        if os.fork(): os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open('pids.txt', 'a').write(f'{os.getpid()}\\n')
    time.sleep(60)
sys.exit('n3' in names and 'n9' in names)
"""


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_checks_of_a_killed_biopsy_end_with_their_daemons_and_temporary_files(place, jobs: str) -> None:
    place.model(12)
    process = place.start("m.onnx", "-o", "r.onnx", "--jobs", jobs, "--check", *place.check(HANGS))
    assert wait_until(lambda: place.told("pids.txt"))
    process.kill()
    process.communicate()
    assert place.everyone_has_ended()
    assert not any(map(is_alive, map(int, place.told("pids.txt"))))
    assert wait_until(lambda: not list(place.temporary.iterdir()))
    place.check("sys.exit('n3' in names and 'n9' in names)")
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--jobs", jobs, "--fresh", "--check", *place.check(SLEEPS))
    assert ran.status == 0, ran.told
    for path in place.folder.glob("r.onnx.journal.1"):
        path.unlink()


@pytest.mark.slow
def test_a_file_of_the_user_that_is_named_like_a_candidate_stays(place) -> None:
    place.model(12)
    (place.folder / "polygraphy_debug.1.onnx").write_bytes(b"mine")
    words = ["m.onnx", "-o", "r.onnx", "--jobs", "2", "--check", *place.check(SLEEPS)]
    assert place.reduce(*words).status == 0
    process = place.start(*words)
    time.sleep(0.8)
    process.kill()
    process.communicate()
    assert place.reduce(*words).status == 0
    mine = place.folder / "polygraphy_debug.1.onnx"
    assert mine.read_bytes() == b"mine"
    mine.unlink()


@pytest.mark.slow
def test_what_a_second_one_that_was_killed_has_left_is_removed(place) -> None:
    """The second one writes its candidates under another name, for the first has the usual one."""
    place.model(12)
    slow = place.check("time.sleep(0.2)\nsys.exit('n3' in names and 'n9' in names)")
    first = place.start("m.onnx", "-o", "a.onnx", "--check", *slow)
    assert wait_until((place.folder / ".polygraphy_debug.onnx.lock").exists)
    second = place.start("m.onnx", "-o", "b.onnx", "--check", *slow)
    assert wait_until(lambda: list(place.folder.glob(f"polygraphy_debug.{second.pid}*.onnx")))
    second.kill()
    second.communicate()
    assert wait_until(lambda: not list(place.folder.glob(f"*polygraphy_debug.{second.pid}*")))
    third = place.start("m.onnx", "-o", "c.onnx", "--check", *slow)  # while the first still runs
    assert first.wait(60) == third.wait(60) == 0
    for process in (first, third):
        process.communicate()
    assert place.reduce("m.onnx", "-o", "b.onnx", "--check", *slow).status == 0
    assert place.files() == {"m.onnx", "a.onnx", "b.onnx", "c.onnx"}
    assert place.nodes("a.onnx") == place.nodes("b.onnx") == place.nodes("c.onnx")


def test_a_killed_biopsy_whose_check_still_runs_keeps_no_journal(place) -> None:
    """The lock ends with the process: not with a check, which may live a moment longer, nor with a warm one."""
    place.model(12)
    process = place.start("m.onnx", "-o", "r.onnx", "--jobs", "2", "--check", *place.check(HANGS))
    assert wait_until(lambda: place.told("pids.txt"))
    checks = [pid for pid in place.processes() if pid != process.pid]
    for pid in checks:
        os.kill(pid, signal.SIGSTOP)  # whoever is stopped cannot end in time by luck; also who would end the others
    process.kill()
    process.wait()
    try:
        assert all(is_alive(pid) for pid in checks)
        journal = place.folder / "r.onnx.journal"
        identity = {line[1]: line[2] for line in lines_of(journal) if line[0] == "identity"}
        Journal.open(journal, identity).close()
    finally:
        for pid in checks:
            os.kill(pid, signal.SIGCONT)
    process.communicate()
    assert place.everyone_has_ended()
    assert wait_until(lambda: not list(place.temporary.iterdir()))
    journal.unlink()
    for path in place.folder.glob("*polygraphy_debug*"):
        path.unlink()


@pytest.mark.slow
def test_a_reduction_in_a_check_of_a_reduction_is_ended_with_its_own_checks(place) -> None:
    """biopsy in biopsy: the outer one is killed while a check of the inner one hangs."""
    place.model(12)
    inner = " ".join(place.check(HANGS, "inner.py"))
    line = f'biopsy debug reduce "$0" -o inner.onnx --fresh --check {inner}; exit 1'
    words = [
        "m.onnx",
        "-o",
        "r.onnx",
        "--iter-artifact",
        "outer.onnx",
        "--jobs",
        "1",
        "--check",
        "sh",
        "-c",
        line,
        "{}",
    ]
    process = place.start(*words)
    assert wait_until(lambda: place.told("pids.txt"))
    process.kill()
    process.communicate()
    assert place.everyone_has_ended()
    assert wait_until(lambda: not list(place.temporary.iterdir()))
    for path in place.folder.iterdir():
        path.unlink()
