"""``biopsy.RayExecutor``: searches of Python code on a cluster, one after the other on the same machines."""

import importlib.util
from pathlib import Path

import pytest

import biopsy
from support.models import chain, save
from support.ray_nodes import MARKS, RayNodes
from support.scripts import script_check, with_external_weight


@pytest.mark.parametrize("resources", [{"GPU": "one"}, {"CPU": -1}, {"CPU": float("nan")}])
def test_resources_that_are_no_numbers_are_told(resources: dict[str, float]) -> None:
    with pytest.raises(biopsy.UsageError, match="is not a number of at least 0"):
        biopsy.RayExecutor(resources=resources)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_the_extra_it_says_what_to_type() -> None:
    with pytest.raises(biopsy.EngineMissing, match="need Ray, which is not installed"):
        biopsy.RayExecutor()


class TestOnThreeNodes:
    """A real cluster."""

    pytestmark = MARKS

    @pytest.fixture(autouse=True)
    def leaves_its_process_as_it_was(self) -> None:
        """Ray sets variables of this process."""

    def test_searches_share_the_machines_and_give_the_same_bytes(self, tmp_path: Path, ray_nodes: RayNodes) -> None:
        import ray

        source, check = with_external_weight(tmp_path / "model"), script_check(tmp_path / "check", "n9")
        output = tmp_path / "r.onnx"
        biopsy.reduce(source, check, output)
        here = output.read_bytes()
        with biopsy.RayExecutor(ray_nodes.address, require_uniform=True) as cluster:
            assert cluster.room == 3
            biopsy.reduce(source, check, output, executor=cluster)
            assert output.read_bytes() == here
            machines = cluster.borrowed
            assert machines > 0
            biopsy.reduce(source, check, output, executor=cluster)
            assert output.read_bytes() == here
            assert cluster.borrowed >= machines
        assert not ray.is_initialized()

    def test_a_function_is_refused(self, tmp_path: Path, ray_nodes: RayNodes) -> None:
        source = save(chain(2), tmp_path / "m.onnx")
        with (
            biopsy.RayExecutor(ray_nodes.address) as cluster,
            pytest.raises(biopsy.UsageError, match="only a check that is a command"),
        ):
            biopsy.reduce(source, lambda path: True, tmp_path / "r.onnx", executor=cluster)

    def test_an_environment_that_ray_does_not_take_is_told(self) -> None:
        with pytest.raises(biopsy.UsageError, match="Ray does not take this runtime_env"):
            biopsy.RayExecutor(runtime_env={"pip": ["a"], "uv": ["b"]})
