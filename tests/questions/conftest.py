"""What tests of several questions use: a package index, and other machines."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from processes.environments.conftest import index as index
from support.node_processes import Machines, NodeProcesses


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made: list[NodeProcesses] = []

    def of(room: int) -> NodeProcesses:
        folder = tmp_path / f"machines{len(made)}"
        folder.mkdir()
        made.append(NodeProcesses(folder, room))
        return made[-1]

    yield of
    for workers in made:
        workers.close()
