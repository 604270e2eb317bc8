"""A Ray cluster of three nodes on this machine, each with one place for a check."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

MARKS = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("default"),  # of Ray's own, which leaves sockets to the collector
]
"""The ``pytestmark`` of a file whose tests use a cluster."""

NODES = 3


@dataclass(frozen=True)
class RayNodes:
    """The cluster that tests share: nodes may be added and killed, but its first three stay."""

    cluster: Any
    home: Path

    @property
    def address(self) -> str:
        """What ``--on`` takes."""
        return str(self.cluster.address)

    def stored(self) -> dict[str, int]:
        """The bytes that the object store of each living node has ever received or taken, by the id of the node."""
        import ray
        from ray._private.internal_api import node_stats

        return {
            node["NodeID"]: node_stats(
                node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False
            ).store_stats.cumulative_created_bytes
            for node in ray.nodes()
            if node["Alive"]
        }

    def variable(self, number: int) -> str:
        """What only the processes of a node have in their environment."""
        return f"BIOPSY_CACHE_DIR={self.home / f'cache{number}'}"

    def host_folders(self, number: int) -> list[Path]:
        """Where checks run on a node."""
        return sorted((self.home / f"tmp{number}").glob("biopsy-host-*"))

    def add(self, number: int, **more: Any) -> Any:
        """One more node, whose number no other has; whoever adds it removes it. It has ``more`` than the others."""
        return self.cluster.add_node(**_arguments(self.home, number, **more))


def _arguments(home: Path, number: int, **more: Any) -> dict[str, Any]:
    temporary = home / f"tmp{number}"
    temporary.mkdir(exist_ok=True)
    own = {"BIOPSY_CACHE_DIR": str(home / f"cache{number}"), "TMPDIR": str(temporary)}
    variables = {**own, **more.pop("env_vars", {})}
    return {
        "num_cpus": 1,
        "resources": {f"node{number}": 1},
        "object_store_memory": 256 << 20,
        "include_dashboard": False,
        **more,
        "env_vars": variables,
    }


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator[RayNodes]:
    """The one cluster of a run of tests; it is started by the first that asks for it."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
        patch.setenv("HOME", home)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = RayNodes(Cluster(initialize_head=True, head_node_args=_arguments(Path(home), 0)), Path(home))
        for number in range(1, NODES):
            made.add(number)
        try:
            yield made
        finally:
            ray.shutdown()
            made.cluster.shutdown()


@pytest.fixture
def ray_workers(ray_nodes: RayNodes) -> Iterator[Any]:
    """Workers on it, whose ``room`` is three."""
    from biopsy.session.ray_cluster import RayWorkers

    made = RayWorkers(ray_nodes.address)
    yield made
    made.close()
