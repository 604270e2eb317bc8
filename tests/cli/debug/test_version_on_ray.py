"""``debug version --on``, on machines of a real cluster that make the environments of releases themselves."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from biopsy.cli.app import main
from processes.environments.conftest import index as index
from support.models import chain, save
from support.package_index import PackageIndex
from support.ray_nodes import MARKS, RayNodes

pytestmark = MARKS


@pytest.fixture(autouse=True)
def leaves_its_process_as_it_was() -> None:
    """Ray sets variables of this process."""


@pytest.fixture
def address(index: PackageIndex, ray_nodes: RayNodes, tmp_path: Path) -> Iterator[str]:
    """A cluster with two nodes that know the index, and have a cache of environments each."""
    variables = {name: os.environ[name] for name in ("UV_DEFAULT_INDEX", "UV_CONFIG_FILE", "PIP_CONFIG_FILE")}
    added = [
        ray_nodes.add(
            number, resources={"index": 1}, env_vars={**variables, "UV_CACHE_DIR": str(tmp_path / str(number))}
        )
        for number in (20, 21)
    ]
    yield ray_nodes.address
    for node in added:
        ray_nodes.cluster.remove_node(node)


def test_the_release_is_found_as_here_by_environments_of_the_machines(
    index: PackageIndex,
    address: str,
    ray_nodes: RayNodes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(1), Path("model.onnx"))
    Path("check.py").write_text("import thing\nthing.look()\n")
    for number in range(1, 7):
        index.add("thing", f"{number}.0", "def look(): " + ("raise SystemExit(1)" if number > 3 else "pass"))
    words = ["debug", "version", "model.onnx", "--package", "thing", "--hide-fail-output"]
    check = ["--check", "{python}", "check.py", "{}"]
    assert main([*words, "-o", "here.json", *check]) == 0
    capsys.readouterr()
    assert main([*words, "-o", "there.json", "--on", address, "--resources", "index=1", *check]) == 0
    shown = capsys.readouterr().out
    assert "2 checks have room at once" in shown
    assert "thing: 4.0 broke it, 3.0 is right." in shown
    found = [_told(json.loads(Path(name).read_text())) for name in ("here.json", "there.json")]
    assert found[0] == found[1]
    made = [place for number in (20, 21) for place in (ray_nodes.home / f"cache{number}").rglob("thing-*.dist-info")]
    assert len(made) >= 4, "the machines have made them"
    assert sys.executable not in shown


def _told(report: dict) -> object:
    tried = [{key: one[key] for key in ("version", "outcome", "reason", "runs")} for one in report["releases"]["tried"]]
    return report["verdict"], tried, report["releases"]["borders"]


def test_what_cannot_be_done_there_is_refused(
    index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(1), Path("model.onnx"))
    words = ["debug", "version", "model.onnx", "--package", "thing", "--on", "ray", "--reduce"]
    assert main([*words, "--check", "{python}", "check.py", "{}"]) == 2
    assert "--reduce cannot be combined with --on" in capsys.readouterr().err
