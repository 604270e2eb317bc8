"""Checks on a Ray cluster of three nodes: the same bytes, nothing concluded from what dies, nothing left behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import biopsy
from biopsy import Parallelism, errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.task import Task
from biopsy.cli.app import main
from biopsy.filesystem.content_store import digest_of
from support.models import chain, save
from support.processes import runs, waited_for
from support.real_failures import product_and_slopes_of_channels
from support.scripts import WAITS, script_check, with_external_weight
from support.session import LIMIT

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("default"),  # of Ray's own, which leaves sockets to the collector
]
ray = pytest.importorskip("ray")


@pytest.fixture(autouse=True)
def leaves_its_process_as_it_was() -> None:
    """Ray sets variables of this process."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
        patch.setenv("HOME", home)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = Cluster(initialize_head=True, head_node_args=node_arguments(Path(home), 0))
        for number in (1, 2):
            made.add_node(**node_arguments(Path(home), number))
        try:
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


def caches() -> Path:
    """Where the nodes keep what is sent to them."""
    return Path(os.environ["HOME"])


def node_arguments(home: Path, number: int) -> dict[str, object]:
    """One place for a check on each node, with a content store of its own, as on a machine of its own."""
    return {
        "num_cpus": 1,
        "resources": {f"node{number}": 1},
        "object_store_memory": 80 << 20,
        "include_dashboard": False,
        "env_vars": {"BIOPSY_CACHE_DIR": str(home / f"cache{number}")},
    }


@pytest.fixture
def workers(cluster) -> Iterator[object]:
    from biopsy.session.ray_cluster import RayWorkers

    made = RayWorkers(cluster.address)
    yield made
    made.close()


def test_a_script_gives_the_same_bytes_and_each_node_keeps_what_was_sent(tmp_path: Path, workers) -> None:
    source, check = with_external_weight(tmp_path / "model"), script_check(tmp_path / "check", "n9")
    output = tmp_path / "r.onnx"
    biopsy.reduce(source, check, output)
    here = output.read_bytes()
    assert workers.room == 3
    biopsy.reduce(source, check, output, parallelism=Parallelism(jobs=3, executor=workers))
    assert output.read_bytes() == here
    weights = digest_of(source.parent / "w.bin")
    assert [(caches() / f"cache{number}" / "contents" / weights).is_file() for number in range(3)] == [True] * 3


@pytest.mark.skipif(not __import__("importlib.util").util.find_spec("openvino"), reason="needs OpenVINO")
def test_our_own_run_gives_the_same_bytes(tmp_path: Path, workers) -> None:
    source = save(product_and_slopes_of_channels(), tmp_path / "m.onnx")
    check, output = ["biopsy", "run", "{}", "--openvino", "--onnxrt"], tmp_path / "r.onnx"
    biopsy.reduce(source, check, output)
    here = output.read_bytes()
    biopsy.reduce(source, check, output, parallelism=Parallelism(jobs=3, executor=workers))
    assert output.read_bytes() == here


def test_the_command_line_gives_the_same_bytes(
    tmp_path: Path, cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(12), tmp_path / "m.onnx")
    check = script_check(tmp_path / "check")
    assert main(["debug", "reduce", "m.onnx", "-o", "here.onnx", "--check", *check]) == 0
    there = ["debug", "reduce", "m.onnx", "-o", "there.onnx", "--on", cluster.address, "--require-uniform"]
    assert main([*there, "--check", *check]) == 0
    assert (tmp_path / "there.onnx").read_bytes() == (tmp_path / "here.onnx").read_bytes()
    assert "3 checks have room at once on 3 machines" in capsys.readouterr().out


def test_a_run_that_is_stopped_is_gone_within_two_seconds(tmp_path: Path, workers) -> None:
    (tmp_path / "check.py").write_text(WAITS)
    told = tmp_path / "pid"
    check = CommandCheck([sys.executable, str(tmp_path / "check.py"), "{}", str(told)], "c.onnx")
    run = workers.begin(Task(check, tmp_path / "c.onnx", [b"model"]))
    waited_for(told)
    child = int(told.read_text())
    began = time.monotonic()
    workers.stop(run)
    workers.wait([run], LIMIT)
    assert time.monotonic() - began < 2
    assert not runs(child)


def test_a_node_that_is_killed_in_the_middle_changes_nothing(tmp_path: Path, cluster, workers) -> None:
    (tmp_path / "check.py").write_text(
        "import pathlib, sys, time; place = pathlib.Path(sys.argv[2]); first = not place.exists()\n"
        "place.touch(); time.sleep(600 if first else 0); sys.exit(7)"
    )
    check = CommandCheck([sys.executable, str(tmp_path / "check.py"), "{}", str(tmp_path / "begun")], "c.onnx")
    added = cluster.add_node(**node_arguments(tmp_path, 3) | {"resources": {"doomed": 1}})
    from biopsy.session.ray_cluster import RayWorkers, Resources

    doomed = RayWorkers(cluster.address, Resources(others={"doomed": 1.0}))
    run = doomed.begin(Task(check, tmp_path / "c.onnx", [b"model"]))
    waited_for(tmp_path / "begun", empty=True)
    cluster.remove_node(added, allow_graceful=False)
    cluster.add_node(**node_arguments(tmp_path, 4) | {"resources": {"doomed": 1}})
    doomed.wait([run], LIMIT)
    assert run.result().status == 7
    doomed.close()


def test_a_driver_that_is_killed_resumes(tmp_path: Path, cluster) -> None:
    save(chain(12), tmp_path / "m.onnx")
    (tmp_path / "check.py").write_text(
        "import pathlib, subprocess, sys, time\n"
        "data = pathlib.Path(sys.argv[1]).read_bytes()\n"
        "log = pathlib.Path(sys.argv[2]); log.open('a').write('.')\n"
        "time.sleep(0.3)\n"
        "sys.exit(b'\\x1a\\x02n3' in data and b'\\x1a\\x02n9' in data)"
    )
    words = [sys.executable, "-m", "biopsy", "debug", "reduce", "m.onnx", "-o", "r.onnx", "--on", cluster.address]
    words += ["--check", sys.executable, "check.py", "{}", str(tmp_path / "log")]
    driver = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + LIMIT
    journal = tmp_path / "r.onnx.journal"
    while time.monotonic() < until and (not journal.exists() or journal.read_bytes().count(b'["run"') < 3):
        time.sleep(0.05)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    again = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert "remembered" in again.stdout


def test_a_search_ends_though_no_machine_gets_free_for_it(tmp_path: Path, cluster, workers) -> None:
    from biopsy.session.ray_cluster import RayWorkers

    check = CommandCheck(["true", "{}"], "c.onnx")
    for number in range(3):  # now all places are taken
        workers.begin(Task(check, tmp_path / f"c{number}.onnx", [b"model"]))
    waits = RayWorkers(cluster.address)
    run = waits.begin(Task(check, tmp_path / "c.onnx", [b"model"]))
    waits.wait([run], 2)
    began = time.monotonic()
    waits.close()
    assert run.done()
    assert time.monotonic() - began < LIMIT / 2


def test_resources_that_no_node_has_are_told(cluster) -> None:
    from biopsy.session.ray_cluster import RayWorkers, Resources

    with pytest.raises(errors.UsageError, match=r"none of the .* machines"):
        RayWorkers(cluster.address, Resources(gpus=1.0))
