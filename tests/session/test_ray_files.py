"""Files are sent to each node of a Ray cluster once, however many candidates and places for checks there are."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from biopsy.checks.command import CommandCheck
from biopsy.checks.task import Task
from support.ray_nodes import MARKS, NODES, RayNodes
from support.ray_processes import processes_with

pytest.importorskip("ray")
from biopsy.session.ray_cluster import RayWorkers, Resources

pytestmark = MARKS
MB = 1 << 20


def test_each_node_receives_each_file_once(tmp_path: Path, ray_nodes: RayNodes) -> None:
    (tmp_path / "w.bin").write_bytes(os.urandom(64 * MB))
    check = CommandCheck(["sh", "-c", "sleep 0.3", "{}", str(tmp_path / "w.bin")], "c.onnx")
    with closing(RayWorkers(ray_nodes.address)) as workers:
        assert ended(workers, [(check, tmp_path / f"c{number}.onnx") for number in range(12)]) == [0] * 12
        assert list(workers.received.values()) == [64 * MB] * NODES
        assert workers.sent == 64 * MB
    with closing(RayWorkers(ray_nodes.address)) as again:  # once the places are free
        assert ended(again, [(check, tmp_path / "c.onnx")]) == [0]
        assert sum(again.received.values()) == 0


def ended(workers: RayWorkers, asked: list[tuple[CommandCheck, Path]]) -> list[int]:
    """The statuses of these checks, all of which are begun at once."""
    runs = [workers.begin(Task(check, candidate, [b"model"])) for check, candidate in asked]
    for run in runs:
        workers.wait([run], 100)
    return [run.result(0).status for run in runs]


def test_places_of_one_node_that_start_at_once_receive_a_file_once(tmp_path: Path, ray_nodes: RayNodes) -> None:
    (tmp_path / "w.bin").write_bytes(os.urandom(8 * MB))
    check = CommandCheck(["sh", "-c", "sleep 0.3", "{}", str(tmp_path / "w.bin")], "c.onnx")
    wide = ray_nodes.add(8, num_cpus=4, resources={"wide": 4})
    workers = RayWorkers(ray_nodes.address, Resources(others={"wide": 1.0}))
    try:
        assert ended(workers, [(check, tmp_path / f"c{number}.onnx") for number in range(12)]) == [0] * 12
        assert len(ray_nodes.host_folders(8)) > 1
        assert list(workers.received.values()) == [8 * MB]
        assert workers.sent == 8 * MB
    finally:
        workers.close()
        ray_nodes.cluster.remove_node(wide)


@pytest.mark.slow
def test_a_gigabyte_of_weights_is_sent_to_each_node_once_and_in_little_memory(
    tmp_path: Path, ray_nodes: RayNodes, ray_workers: RayWorkers
) -> None:
    with (tmp_path / "w.bin").open("wb") as stream:
        stream.truncate(1 << 30)
    check = CommandCheck(["sh", "-c", "sleep 0.2", "{}", str(tmp_path / "w.bin")], "c.onnx")
    assert ended(ray_workers, [(check, tmp_path / f"c{number}.onnx") for number in range(24)]) == [0] * 24
    assert list(ray_workers.received.values()) == [1 << 30] * NODES
    assert ray_workers.sent == 1 << 30
    most = [memory for number in range(NODES) for memory in peaks(ray_nodes.variable(number))]
    assert len(most) == NODES
    assert max(most) < 512 * MB
    for number in range(NODES):
        for path in ray_nodes.contents(number).iterdir():
            path.unlink()


def peaks(variable: str) -> list[int]:
    """The most memory, in bytes, that each process which runs checks has ever had."""
    pids = [pid for pid, words in processes_with(variable).items() if "_HostActor" in words]
    lines = [line.split() for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return [int(words[1]) << 10 for words in lines if words and words[0] == "VmHWM:"]
