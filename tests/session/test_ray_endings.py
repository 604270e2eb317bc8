"""Nothing runs on a Ray cluster that nobody waits for: neither a cancelled check, nor those of a driver that died."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest
from onnx import helper

from biopsy.checks.command import CommandCheck
from biopsy.checks.task import Task
from biopsy.checks.warm import command_check
from support.models import BOOL, INT64, chain, info, model, save, weight
from support.processes import waited_for
from support.ray_nodes import MARKS, NODES, RayNodes
from support.ray_processes import processes_with, seconds_until_gone
from support.session import LIMIT

pytest.importorskip("ray")
from biopsy.session.ray_cluster import RayWorkers, Resources

pytestmark = MARKS
LIMIT_OF_CANCELLED = 2.0

BROOD = """
import os, pathlib, subprocess, sys, time
children = [subprocess.Popen(["sleep", "600"], start_new_session=own) for own in (False, True)]
place = pathlib.Path(sys.argv[2])
place.with_suffix(".part").write_text(" ".join(str(pid) for pid in [os.getpid(), *(c.pid for c in children)]))
place.with_suffix(".part").rename(place)
time.sleep(600)
"""
"""A check that never ends, with a child in its own session and one in another."""

SLOW = """
import pathlib, subprocess, sys, time
data = pathlib.Path(sys.argv[1]).read_bytes()
log = pathlib.Path(sys.argv[2]); log.open("a").write(".")
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
log.with_name("pids").open("a").write(f"{child.pid}\\n")
time.sleep(0.3)
child.kill()
sys.exit(b"\\x1a\\x02n3" in data and b"\\x1a\\x02n9" in data)
"""
"""A check of half a second, with a child that would stay."""


def endless() -> onnx.ModelProto:
    """A Loop with so many trips that no engine comes to their end."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Sin", ["v"], ["w"])],
        "body",
        [info("n", (), INT64), info("go", (), BOOL), info("v")],
        [info("go_on", (), BOOL), info("w")],
    )
    trips = weight("count", 1 << 50, dtype="int64", shape=())
    return model([helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)], [info("x")], [info("y")], [trips])


def test_a_cancelled_script_is_gone_with_all_its_children(tmp_path: Path, ray_workers: RayWorkers) -> None:
    (tmp_path / "check.py").write_text(BROOD)
    check = CommandCheck([sys.executable, str(tmp_path / "check.py"), "{}", str(tmp_path / "pids")], "c.onnx")
    run = ray_workers.begin(Task(check, tmp_path / "c.onnx", [b"model"]))
    waited_for(tmp_path / "pids")
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    ray_workers.stop(run)
    assert seconds_until_gone(*pids) < LIMIT_OF_CANCELLED
    ray_workers.wait([run], LIMIT)
    assert run.done()


@pytest.mark.parametrize("is_cold", [False, True], ids=["warm", "cold"])
def test_a_cancelled_run_of_an_engine_is_gone(tmp_path: Path, ray_nodes: RayNodes, *, is_cold: bool) -> None:
    workers = RayWorkers(ray_nodes.address, Resources(others={"node1": 1.0}))
    warm = command_check(["biopsy", "run", "{}", "--onnxrt"], "c.onnx")
    check = warm.cold() if is_cold else warm
    try:
        first = workers.begin(Task(check, tmp_path / "a.onnx", [chain(2).SerializeToString()]))
        workers.wait([first], LIMIT)
        assert first.result().status == 0
        before = processes_with(ray_nodes.variable(1))
        run = workers.begin(Task(check, tmp_path / "b.onnx", [endless().SerializeToString()]))
        busy = waited_for_one_that_computes(ray_nodes.variable(1))
        assert busy not in before
        workers.stop(run)
        assert seconds_until_gone(busy) < LIMIT_OF_CANCELLED
        workers.wait([run], LIMIT)
        assert set(processes_with(ray_nodes.variable(1))) <= set(before)
    finally:
        workers.close()
        check.close()


def waited_for_one_that_computes(variable: str) -> int:
    """The process of a node that has computed for half a second since we look."""
    until = time.monotonic() + LIMIT
    began: dict[int, int] = {}
    while time.monotonic() < until:
        for pid in processes_with(variable):
            ticks = ticks_of(pid)
            if ticks - began.setdefault(pid, ticks) > os.sysconf("SC_CLK_TCK") // 2:
                return pid
        time.sleep(0.05)
    raise AssertionError("no process computes")


def ticks_of(pid: int) -> int:
    """How long a process has computed in user mode."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])
    except OSError:
        return 0


def test_what_a_killed_driver_has_begun_ends_and_the_same_line_resumes_on_another_machine(
    tmp_path: Path, ray_nodes: RayNodes
) -> None:
    here, there = machine_of_a_driver(tmp_path / "here"), tmp_path / "there"
    save(chain(12), here / "work" / "m.onnx")
    (here / "work" / "check.py").write_text(SLOW)
    words = [sys.executable, "-m", "biopsy", "debug", "reduce", "m.onnx", "-o", "r.onnx", "--on", ray_nodes.address]
    words += ["--check", sys.executable, "check.py", "{}", str(tmp_path / "log")]
    driver = subprocess.Popen(words, **at(here), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + LIMIT
    journal = here / "work" / "r.onnx.journal"
    while time.monotonic() < until and (not journal.exists() or journal.read_bytes().count(b'["run"') < 3):
        time.sleep(0.05)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    until = time.monotonic() + LIMIT
    while time.monotonic() < until and any(ray_nodes.host_folders(number) for number in range(NODES)):
        time.sleep(0.05)
    assert [ray_nodes.host_folders(number) for number in range(NODES)] == [[]] * NODES
    assert seconds_until_gone(*map(int, (tmp_path / "pids").read_text().split())) < LIMIT_OF_CANCELLED
    shutil.move(here, there)
    again = subprocess.run(words, **at(there), capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert "remembered" in again.stdout


def machine_of_a_driver(folder: Path) -> Path:
    (folder / "work").mkdir(parents=True)
    (folder / "home").mkdir()
    return folder


def at(machine: Path) -> dict[str, object]:
    """Where a driver is started, and with which home and state of its own, which hold the key of its journals."""
    own = {"HOME": str(machine / "home"), "XDG_STATE_HOME": str(machine / "home" / "state")}
    return {"cwd": machine / "work", "env": {**os.environ, **own}}
