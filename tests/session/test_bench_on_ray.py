"""The benchmark of many machines: whole searches on a cluster find what they are to find, by the same checks."""

from pathlib import Path

import pytest

from benchmarks import other_machines
from support.ray_nodes import MARKS, RayNodes

pytestmark = MARKS


@pytest.mark.parametrize("scenario", other_machines.QUICK, ids=lambda scenario: scenario.name)
def test_a_search_takes_as_many_checks_as_on_the_simulated_clock(
    tmp_path: Path, ray_nodes: RayNodes, scenario: other_machines.Scenario
) -> None:
    found = other_machines.measured(scenario, ray_nodes.address, 3, 0.05, tmp_path / "search")
    least, checks = other_machines.best(scenario, 3, tmp_path)
    assert found.checks == checks
    assert least < checks
    assert 0 < found.until_first < found.seconds
