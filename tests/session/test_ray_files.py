"""Files are sent to each node of a Ray cluster once, however many candidates and places for checks there are."""

import os
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


def test_each_node_receives_each_file_once(tmp_path: Path, ray_nodes: RayNodes, ray_workers: RayWorkers) -> None:
    (tmp_path / "w.bin").write_bytes(os.urandom(64 * MB))
    check = CommandCheck(["sh", "-c", "sleep 0.3", "{}", str(tmp_path / "w.bin")], "c.onnx")
    before = ray_nodes.stored()
    assert ended(ray_workers, [(check, tmp_path / f"c{number}.onnx") for number in range(12)]) == [0] * 12
    assert [grown // MB for grown in growth(before, ray_nodes)] == [64] * NODES


def growth(before: dict[str, int], nodes: RayNodes) -> list[int]:
    """The bytes that came to each node since then."""
    return [stored - before[node] for node, stored in nodes.stored().items()]


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
        before = ray_nodes.stored()
        assert ended(workers, [(check, tmp_path / f"c{number}.onnx") for number in range(12)]) == [0] * 12
        assert len(ray_nodes.host_folders(8)) > 1
        assert sorted(grown // MB for grown in growth(before, ray_nodes)) == [0, 0, 8, 8]  # this one, and the wide one
    finally:
        workers.close()
        ray_nodes.cluster.remove_node(wide)


@pytest.mark.slow
def test_a_gigabyte_of_weights_is_sent_in_little_memory(
    tmp_path: Path, ray_nodes: RayNodes, ray_workers: RayWorkers
) -> None:
    with (tmp_path / "w.bin").open("wb") as stream:
        stream.truncate(1 << 30)
    check = CommandCheck(["sh", "-c", "sleep 0.2", "{}", str(tmp_path / "w.bin")], "c.onnx")
    assert ended(ray_workers, [(check, tmp_path / f"c{number}.onnx") for number in range(24)]) == [0] * 24
    most = [memory for number in range(NODES) for memory in peaks(ray_nodes.variable(number))]
    assert len(most) == NODES
    assert max(most) < 512 * MB


def peaks(variable: str) -> list[int]:
    """The most memory, in bytes, that each process which runs checks has ever had."""
    pids = [pid for pid, words in processes_with(variable).items() if "_HostActor" in words]
    lines = [line.split() for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return [int(words[1]) << 10 for words in lines if words and words[0] == "VmHWM:"]
