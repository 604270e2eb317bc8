"""Checks on a Ray cluster of three nodes: the same bytes, nothing concluded from what dies, nothing left behind."""

import socket
import time
from pathlib import Path

import pytest

import biopsy
from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.task import Task
from biopsy.cli.app import main
from biopsy.cli.demo import REDUCE
from biopsy.session.conditions import this_machine
from biopsy.session.ray_cluster import RayWorkers, Resources
from support.machine_kinds import installed
from support.models import chain, save
from support.ray_nodes import MARKS, RayNodes
from support.real_failures import product_and_slopes_of_channels
from support.scripts import script_check, with_external_weight
from support.session import LIMIT

pytestmark = MARKS
pytest.importorskip("ray")


def test_a_script_gives_the_same_bytes(tmp_path: Path, ray_workers) -> None:
    source, check = with_external_weight(tmp_path / "model"), script_check(tmp_path / "check", "n9")
    output = tmp_path / "r.onnx"
    biopsy.reduce(source, check, output)
    here = output.read_bytes()
    assert ray_workers.room == 3
    biopsy.reduce(source, check, output, jobs=3, executor=ray_workers)
    assert output.read_bytes() == here


@pytest.mark.skipif(not __import__("importlib.util").util.find_spec("openvino"), reason="needs OpenVINO")
def test_our_own_run_gives_the_same_bytes(tmp_path: Path, ray_workers) -> None:
    source = save(product_and_slopes_of_channels(), tmp_path / "m.onnx")
    check, output = ["biopsy", "run", "{}", "--openvino", "--onnxrt"], tmp_path / "r.onnx"
    biopsy.reduce(source, check, output)
    here = output.read_bytes()
    biopsy.reduce(source, check, output, jobs=3, executor=ray_workers)
    assert output.read_bytes() == here


def test_the_demo_gives_the_same_bytes(tmp_path: Path, ray_nodes: RayNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "-o", "demo"]) == 0
    monkeypatch.chdir(tmp_path / "demo")
    if not Path("layerwise_golden.npz").exists():
        pytest.skip("this ONNX Runtime does not have the bug of the demo")
    place = REDUCE.index("--check")
    words = [word.replace("reduced.onnx", "there.onnx") for word in REDUCE]
    assert main([*words[:place], "--on", ray_nodes.address, *words[place:]]) == 0
    assert Path("there.onnx").read_bytes() == Path("reduced.onnx").read_bytes()


def test_the_command_line_gives_the_same_bytes(
    tmp_path: Path, ray_nodes: RayNodes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(12), tmp_path / "m.onnx")
    check = script_check(tmp_path / "check")
    assert main(["debug", "reduce", "m.onnx", "-o", "here.onnx", "--check", *check]) == 0
    there = ["debug", "reduce", "m.onnx", "-o", "there.onnx", "--on", ray_nodes.address, "--require-uniform"]
    assert main([*there, "--check", *check]) == 0
    assert (tmp_path / "there.onnx").read_bytes() == (tmp_path / "here.onnx").read_bytes()
    told = capsys.readouterr().out
    assert "3 checks have room at once on 3 machines" in told
    assert f"fails in the same way on {this_machine()}" in told


def test_a_search_ends_though_no_machine_gets_free_for_it(tmp_path: Path, ray_nodes: RayNodes, ray_workers) -> None:
    check = CommandCheck(["true", "{}"], "c.onnx")
    for number in range(3):  # now all places are taken
        ray_workers.begin(Task(check, tmp_path / f"c{number}.onnx", [b"model"]))
    waits = RayWorkers(ray_nodes.address)
    run = waits.begin(Task(check, tmp_path / "c.onnx", [b"model"]))
    waits.wait([run], 2)
    began = time.monotonic()
    waits.close()
    assert run.done()
    assert time.monotonic() - began < LIMIT / 2


def test_resources_that_no_node_has_are_told(ray_nodes: RayNodes) -> None:
    with pytest.raises(errors.UsageError, match=r"no machine of the Ray cluster has .*: CPU=1,GPU=1"):
        RayWorkers(ray_nodes.address, Resources(gpus=1.0))


def test_nodes_that_differ_are_told_or_refused_before_anything_runs(tmp_path: Path, ray_nodes: RayNodes) -> None:
    packages = installed(tmp_path / "packages", "onnx-made-up", "2.0")
    unlike = ray_nodes.add(3, env_vars={"PYTHONPATH": str(packages)})
    try:
        with pytest.raises(errors.CheckError, match=r"machines differ.*onnx-made-up: (none, 2.0|2.0, none)"):
            RayWorkers(ray_nodes.address, require_uniform=True)
        workers = RayWorkers(ray_nodes.address)
        told = workers.remarks
        workers.close()
    finally:
        ray_nodes.cluster.remove_node(unlike)
    assert any("onnx-made-up" in text and "different engines" in text for text in told)


def test_a_journal_of_one_kind_of_nodes_is_not_continued_by_another(
    tmp_path: Path, ray_nodes: RayNodes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(12), tmp_path / "m.onnx")
    check = ["--check", *script_check(tmp_path / "check")]
    begun = ["debug", "reduce", "m.onnx", "-o", "r.onnx", "--on", ray_nodes.address]
    assert main([*begun, "--max-checks", "6", "--resources", "node0=1", *check]) == 5
    unlike = ray_nodes.add(3, env_vars={"PYTHONPATH": str(installed(tmp_path / "packages", "onnx-made-up", "2.0"))})
    try:
        assert main([*begun, "--resources", "node3=1", *check]) == 2
        assert "onnx-made-up of other machines: not given then, '2.0' now" in capsys.readouterr().err
        assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx", *check]) == 0  # here, as on machines of this kind
    finally:
        ray_nodes.cluster.remove_node(unlike)
    assert "remembered" in capsys.readouterr().out


def test_where_nobody_listens_no_time_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(errors.UsageError, match="connection refused"):
        RayWorkers(f"127.0.0.1:{port}")
    assert capfd.readouterr().err == ""
