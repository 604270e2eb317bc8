"""A process of ours that is started before it is needed; what a cold check makes of it is in checks/test_cold_start."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from biopsy.processes.warm import WaitingProcess
from biopsy.processes.watch import Limits
from support.command_line import is_alive, wait_until

CODE = """
import json, os, sys, time
from pathlib import Path

def main():
    Path(sys.argv[2]).write_text("loaded")
    with open(int(sys.argv[1]), "rb") as asked:
        line = asked.readline()
    if not line:
        return 9
    request = json.loads(line)
    print("heard", flush=True)
    time.sleep(request.get("sleep", 0))
    return request["status"]
"""


@pytest.fixture
def loaded(tmp_path: Path) -> Path:
    """What the process writes once it has loaded."""
    return tmp_path / "loaded"


@pytest.fixture
def waiting(child_module: Callable[[str], str], loaded: Path) -> WaitingProcess:
    return WaitingProcess(child_module(CODE), [str(loaded)])


def test_it_loads_at_once_and_does_what_it_is_told(waiting: WaitingProcess, loaded: Path) -> None:
    assert wait_until(loaded.exists)
    ended = waiting.run({"status": 7}, Limits)
    assert ended is not None
    assert (ended.status, ended.cause, ended.output) == (7, "itself", b"heard\n")
    assert not is_alive(waiting.pid)


def test_it_may_be_told_before_it_has_loaded(waiting: WaitingProcess) -> None:
    ended = waiting.run({"status": 0, "long": "x" * 5000}, Limits)
    assert ended is not None and ended.status == 0


def test_its_time_counts_from_when_it_is_told(waiting: WaitingProcess, loaded: Path) -> None:
    assert wait_until(loaded.exists)
    time.sleep(1.2)
    ended = waiting.run({"status": 3}, lambda: Limits(seconds=1))
    assert ended is not None and ended.status == 3


def test_a_limit_ends_it(waiting: WaitingProcess) -> None:
    ended = waiting.run({"status": 0, "sleep": 600}, lambda: Limits(seconds=0.2))
    assert ended is not None and ended.cause == "time"
    assert not is_alive(waiting.pid)


def test_one_that_died_while_it_waited_is_told_as_none(waiting: WaitingProcess, loaded: Path) -> None:
    assert wait_until(loaded.exists)
    os.kill(waiting.pid, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(waiting.pid))
    assert waiting.run({"status": 0}, Limits) is None


def test_one_that_is_not_needed_is_ended(waiting: WaitingProcess, loaded: Path) -> None:
    assert wait_until(loaded.exists)
    waiting.close()
    assert not is_alive(waiting.pid)


def test_none_waits_any_more_when_who_started_it_is_killed(child_module: Callable[[str], str], loaded: Path) -> None:
    code = f"""
import time
from biopsy.processes.warm import WaitingProcess
print(WaitingProcess({child_module(CODE)!r}, [{str(loaded)!r}]).pid, flush=True)
time.sleep(600)
"""
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    waiting = int(starter.stdout.readline())
    assert wait_until(loaded.exists)
    starter.kill()
    starter.communicate()
    assert wait_until(lambda: not is_alive(waiting))
