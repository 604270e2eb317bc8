"""Whatever dies on a Ray cluster says nothing of the model, is told as what it was, and leaves nothing behind."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest

import biopsy
from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Evidence
from biopsy.checks.task import Task
from support.models import chain, save
from support.processes import waited_for
from support.ray_nodes import MARKS, RayNodes
from support.ray_processes import seconds_until_gone
from support.scripts import script_check
from support.session import LIMIT

pytest.importorskip("ray")
from biopsy.session.ray_cluster import RayWorkers, Resources

pytestmark = MARKS

ONCE = """
import os, pathlib, subprocess, sys, time
place = pathlib.Path(sys.argv[2])
if place.exists():
    sys.exit(7)
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
place.with_suffix(".part").write_text(f"{os.getppid()} {os.getpid()} {child.pid}")
place.with_suffix(".part").rename(place)
eaten = []
for _ in range(int(sys.argv[3])):
    eaten.append(b"x" * (100 << 20))
    time.sleep(0.02)
time.sleep(600)
"""
"""A check that stops in the middle the first time, with a child in a session of its own, and then fails."""


class Doomed:
    """A node of its own, and a check that runs on it until the node, or what runs there, dies."""

    def __init__(self, nodes: RayNodes, folder: Path, **more: object) -> None:
        self.begun = folder / "begun"
        (folder / "check.py").write_text(ONCE)
        self._folder = folder
        self._nodes = nodes
        self._temporary = folder / "tmp"
        self._temporary.mkdir()
        variables = {"TMPDIR": str(self._temporary), **dict(more.pop("env_vars", {}))}  # type: ignore[call-overload]
        self.added = [nodes.add(9, resources={"doomed": 1}, env_vars=variables, **more)]
        self.workers = RayWorkers(nodes.address, Resources(others={"doomed": 1.0}))

    def begin(self, megabytes: int = 0):
        words = [sys.executable, str(self._folder / "check.py"), "{}", str(self.begun), str(megabytes // 100)]
        run = self.workers.begin(Task(CommandCheck(words, "c.onnx"), self._folder / "c.onnx", [b"model"]))
        waited_for(self.begun)
        return run

    @property
    def processes(self) -> list[int]:
        """Whoever runs the check, the check, and its child."""
        return [int(word) for word in self.begun.read_text().split()]

    @property
    def host_folders(self) -> list[Path]:
        return sorted(self._temporary.glob("biopsy-host-*"))

    def another(self) -> None:
        self.added.append(self._nodes.add(10, resources={"doomed": 1}))

    def ended(self, run) -> Evidence:
        self.workers.wait([run], LIMIT)
        return run.result()


@contextmanager
def doomed(nodes: RayNodes, folder: Path, **more: object) -> Iterator[Doomed]:
    made = Doomed(nodes, folder, **more)
    try:
        yield made
    finally:
        made.workers.close()
        for node in made.added:
            if node in nodes.cluster.worker_nodes:
                nodes.cluster.remove_node(node)


def gone(path: Path) -> bool:
    until = monotonic() + LIMIT
    while path.exists() and monotonic() < until:
        sleep(0.01)
    return not path.exists()


def test_what_runs_checks_is_killed(tmp_path: Path, ray_nodes: RayNodes) -> None:
    with doomed(ray_nodes, tmp_path) as node:
        run = node.begin()
        (folder,) = node.host_folders
        host, check, child = node.processes
        os.kill(host, signal.SIGKILL)
        assert seconds_until_gone(check, child) < 5
        found = node.ended(run)
        assert (found.status, node.workers.lost) == (7, 1)
        assert "was killed, perhaps by the system for its memory" in found.remark
        assert gone(folder)


def test_the_machine_runs_out_of_memory(tmp_path: Path, ray_nodes: RayNodes) -> None:
    facts = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(facts[name]) << 10 for name in ("MemTotal:", "MemAvailable:"))
    if free < 8 << 30:
        pytest.skip("it eats 6 GB")
    limit = 1 - (free - (3 << 30)) / total
    variables = {"RAY_memory_usage_threshold": f"{limit:.3f}", "RAY_memory_monitor_refresh_ms": "100"}
    with doomed(ray_nodes, tmp_path, env_vars=variables) as node:
        run = node.begin(megabytes=6000)
        _, check, child = node.processes
        found = node.ended(run)
        assert (found.status, node.workers.lost) == (7, 1)
        assert "it ran out of memory, so Ray ended what runs checks there" in found.remark
        assert seconds_until_gone(check, child) < 5


@pytest.mark.parametrize(("is_graceful", "words"), [(False, "does not answer"), (True, "was taken out of the cluster")])
def test_the_machine_goes(tmp_path: Path, ray_nodes: RayNodes, *, is_graceful: bool, words: str) -> None:
    with doomed(ray_nodes, tmp_path) as node:
        run = node.begin()
        _, check, child = node.processes
        ray_nodes.cluster.remove_node(node.added[0], allow_graceful=is_graceful)
        node.another()
        found = node.ended(run)
        assert (found.status, node.workers.lost) == (7, 1)
        assert words in found.remark
        assert seconds_until_gone(check, child) < 5


def test_a_node_that_is_killed_in_the_middle_of_a_search_changes_nothing(tmp_path: Path, ray_nodes: RayNodes) -> None:
    source, check = save(chain(12), tmp_path / "m.onnx"), script_check(tmp_path / "check")
    biopsy.reduce(source, check, tmp_path / "here.onnx")
    added = ray_nodes.add(11)
    workers = RayWorkers(ray_nodes.address)
    checks = 0

    def listen(event: events.Event) -> None:
        nonlocal checks
        checks += isinstance(event, events.Checked)
        if checks == 3 and added in ray_nodes.cluster.worker_nodes:
            ray_nodes.cluster.remove_node(added, allow_graceful=False)

    biopsy.reduce(source, check, tmp_path / "there.onnx", jobs=4, executor=workers, listener=listen)
    assert added not in ray_nodes.cluster.worker_nodes
    assert (tmp_path / "there.onnx").read_bytes() == (tmp_path / "here.onnx").read_bytes()


def test_a_check_that_ends_what_runs_it_three_times_is_told_and_its_model_is_kept(
    tmp_path: Path, ray_workers: RayWorkers
) -> None:
    (tmp_path / "check.py").write_text("import os, signal; os.kill(os.getppid(), signal.SIGKILL); input()")
    check = CommandCheck([sys.executable, str(tmp_path / "check.py"), "{}"], "c.onnx")
    run = ray_workers.begin(Task(check, tmp_path / "c.onnx", [b"model"]))
    ray_workers.wait([run], LIMIT)
    with pytest.raises(errors.CheckError, match=r"3 machines in a row.*perhaps by the system for its memory") as told:
        run.result()
    assert (tmp_path / "c.lost.onnx").read_bytes() == b"model"
    assert "c.lost.onnx" in str(told.value.kept)
    assert ray_workers.lost == 3


def test_folders_that_a_dead_machine_left_are_removed_by_the_next(tmp_path: Path, ray_nodes: RayNodes) -> None:
    with doomed(ray_nodes, tmp_path) as node:
        left = tmp_path / "tmp" / "biopsy-host-left"
        left.mkdir(mode=0o700)
        (left / "weights").touch()
        run = node.begin()
        assert not left.exists()
        assert len(node.host_folders) == 1
        node.workers.stop(run)
        node.ended(run)
    assert node.host_folders == []
