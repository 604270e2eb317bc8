"""Processes that checks leave in the background: gone with the check, however many run, and however biopsy ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from textwrap import indent

import pytest

from support.command_line import is_alive, started, wait_until
from support.models import chain, save

JOBS = ["1", "4", *(pytest.param(jobs, marks=pytest.mark.slow) for jobs in ("2", "8", "16", "32"))]

LEAVES_A_DAEMON = r"""
daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
with open("daemons.txt", "a") as file:
    file.write(f"{daemon.pid}\n")
sys.exit('n3' in names and 'n9' in names)
"""

FORKS_A_DAEMON = r"""
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    with open("daemons.txt", "a") as file:
        file.write(f"{os.getpid()}\n")
    os.closerange(0, 1024)
    time.sleep(600)
    os._exit(0)
time.sleep(0.1)
sys.exit('n3' in names and 'n9' in names)
"""


FORKS = FORKS_A_DAEMON.strip().rpartition("\n")[0]


def daemons(place) -> list[int]:
    return [int(line) for line in place.told("daemons.txt")]


@pytest.mark.parametrize("jobs", JOBS)
def test_daemons_of_checks_end_with_them_and_that_is_said_once(place, jobs: str) -> None:
    place.model(12)
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--jobs", jobs, "--check", *place.check(LEAVES_A_DAEMON))
    assert ran.status == 0, ran.told
    assert place.nodes() == ["n3", "n9"]
    assert len(daemons(place)) > 5
    assert not any(map(is_alive, daemons(place)))
    assert ran.told.count("a check left 1 process in the background, which ended with it") == 1


@pytest.mark.parametrize("jobs", JOBS)
def test_a_killed_biopsy_leaves_no_daemon_however_many_checks_have_run(place, jobs: str) -> None:
    place.model(12)
    code = LEAVES_A_DAEMON.replace("sys.exit", "time.sleep(0.2)\nsys.exit")
    process = place.start("m.onnx", "-o", "r.onnx", "--jobs", jobs, "--check", *place.check(code))
    assert wait_until(lambda: len(daemons(place)) >= 5 + int(jobs))
    process.kill()
    process.communicate()
    assert place.everyone_has_ended()
    assert not any(map(is_alive, daemons(place)))
    for path in place.folder.glob("*.journal"):
        path.unlink()


@pytest.mark.parametrize("cold", [[], ["--cold-checks"]])
def test_a_daemon_that_a_script_forks_ends_with_its_check(place, cold: list[str]) -> None:
    place.model(12)
    place.check(FORKS_A_DAEMON)
    ran = place.reduce("m.onnx", "-o", "r.onnx", *cold, "--check", sys.executable, "check.py", "{}")
    assert ran.status == 0, ran.told
    assert len(daemons(place)) > 5
    assert not any(map(is_alive, daemons(place)))


def test_a_killed_biopsy_takes_the_daemons_along_that_warm_scripts_fork(place) -> None:
    place.model(12)
    place.check(FORKS_A_DAEMON.replace("sys.exit", "time.sleep(0.2)\nsys.exit"))
    process = place.start("m.onnx", "-o", "r.onnx", "--check", sys.executable, "check.py", "{}")
    assert wait_until(lambda: len(daemons(place)) >= 6)
    process.kill()
    process.communicate()
    assert place.everyone_has_ended()
    assert wait_until(lambda: not any(map(is_alive, daemons(place))))
    for path in place.folder.glob("*.journal"):
        path.unlink()


@pytest.mark.parametrize("cold", [[], ["--cold-checks"]])
def test_a_daemon_that_a_function_of_the_user_forks_in_our_own_run_ends_with_it(place, cold: list[str]) -> None:
    place.model(4)
    (place.folder / "post.py").write_text(
        f"import os, time\ndef process(outputs):\n{indent(FORKS, '    ')}\n    return outputs\n"
    )
    check = ["biopsy", "run", "{}", "--engine", "fake", "--postprocess-func-script", "post.py:process"]
    place.reduce("m.onnx", "-o", "r.onnx", "--repeat", "1", *cold, "--check", *check)
    assert daemons(place)
    assert wait_until(lambda: not any(map(is_alive, daemons(place))), 3)


OWN_SESSION, SAME_SESSION = "subprocess.Popen(words, start_new_session=True)", "subprocess.Popen(words)"


@pytest.mark.parametrize(
    ("start", "cold"),
    [
        (OWN_SESSION, []),
        (SAME_SESSION, ["--cold-checks"]),
        pytest.param(OWN_SESSION, ["--cold-checks"], marks=pytest.mark.slow),
        pytest.param(SAME_SESSION, [], marks=pytest.mark.slow),
    ],
)
def test_a_server_stays_for_the_next_check_if_the_user_says_so(place, start: str, cold: list[str]) -> None:
    place.model(12)
    code = f"""
words = ["sleep", "600"]
if not os.path.exists("daemons.txt"):
    open("daemons.txt", "w").write(str({start}.pid))
os.kill(int(open("daemons.txt").read()), 0)
sys.exit('n3' in names and 'n9' in names)
"""
    words = ["m.onnx", "-o", "r.onnx", "--jobs", "1", *cold, "--check", *place.check(code)]
    assert place.reduce("--keep-processes", *words).status == 0
    (server,) = daemons(place)
    assert is_alive(server)
    os.kill(server, signal.SIGKILL)


@pytest.mark.parametrize(
    "line",
    [
        "debug repeat --until 3 --check CHECK",
        "debug flags m.onnx --engine onnxrt --check CHECK {}",
        "debug transform m.onnx --by onnxruntime --check CHECK {}",
        "debug known m.onnx --check CHECK {}",
        "diagnose m.onnx --max-time 20 --check CHECK {}",
    ],
)
def test_every_command_with_a_check_takes_its_daemons_along(place, line: str) -> None:
    save(chain(3), place.folder / "m.onnx")
    (place.folder / "check.sh").write_text("#!/bin/sh\nsetsid sleep 600 & echo $! >> daemons.txt\nexit 1\n")
    (place.folder / "check.sh").chmod(0o755)
    words = line.replace("CHECK", "./check.sh").split()
    process = started(*words, folder=place.folder, env=place.environment)
    process.communicate(timeout=60)
    assert daemons(place)
    assert wait_until(lambda: not place.processes(), 3)
    for path in place.folder.iterdir():
        if path.name not in {"m.onnx", "check.sh", "daemons.txt"}:
            subprocess.run(["rm", "-r", str(path)], check=True)
