"""``--on``, on a real cluster of three nodes: each command says the same as on this machine alone."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from onnx import helper

from biopsy.cli.app import main
from support.models import chain, info, model, save
from support.processes import waited_for
from support.ray_nodes import MARKS, RayNodes
from support.session import LIMIT

pytestmark = MARKS


@pytest.fixture(autouse=True)
def leaves_its_process_as_it_was() -> None:
    """Ray sets variables of this process."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def both(ray_nodes: RayNodes, capsys: pytest.CaptureFixture[str], command: str, *words: str) -> Iterator[str]:
    """What a command says on this machine, and then on the nodes, each when it has ended."""
    assert main(["debug", command, *words]) == 0
    yield capsys.readouterr().out
    assert main(["debug", command, "--on", ray_nodes.address, "--require-uniform", *words]) == 0
    said = capsys.readouterr().out
    assert "3 checks have room at once on 3 machines" in said
    yield said


# repeat


def test_a_command_is_counted_as_on_this_machine_and_knows_the_number_of_its_iteration(
    here: Path, ray_nodes: RayNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "command.py").write_text(
        "import json, sys, time\n"
        "n = json.load(open(sys.argv[1]))['iteration']\n"
        "time.sleep(0.3 if n == 2 else 0)\n"
        "sys.exit([0, 0, 3, 0, 125, 1][n % 6])"
    )
    words = ["--check", sys.executable, "command.py", "number.json"]
    options = ["--until", "12", "--iter-info", "number.json"]
    for said in both(ray_nodes, capsys, "repeat", *options, *words):
        assert "12 iterations   6 passed · 4 failed · 2 cannot say" in said
        assert "2 x exit status 3, first in iteration 2" in said
    assert json.loads((here / "number.json").read_text())["iteration"] == 11
    assert main(["debug", "repeat", "--on", ray_nodes.address, "--until", "bad", *options[2:4], *words]) == 0
    assert "3 iterations   2 passed · 1 failed" in capsys.readouterr().out


def test_a_run_whose_machine_dies_is_counted_once_and_as_what_it_says(
    here: Path, ray_nodes: RayNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "command.py").write_text(
        "import os, pathlib, signal, sys\n"
        "try: pathlib.Path(sys.argv[1]).touch(exist_ok=False)\n"
        "except FileExistsError: sys.exit(0)\n"
        "os.kill(os.getppid(), signal.SIGKILL)"
    )
    words = [sys.executable, "command.py", str(here / "done")]
    assert main(["debug", "repeat", "--on", ray_nodes.address, "--until", "6", "--check", *words]) == 0
    assert (here / "done").exists()
    said = capsys.readouterr()
    assert "6 iterations   6 passed · 0 failed" in said.out
    assert "a machine was lost, so its check was asked again" in said.out + said.err


def test_who_ends_it_gets_what_was_measured(here: Path, ray_nodes: RayNodes) -> None:
    (here / "command.py").write_text("import sys, time; time.sleep(0.2); sys.exit(3)")
    words = [sys.executable, "-m", "biopsy", "debug", "repeat", "--on", ray_nodes.address, "--until", "good"]
    words += ["--save-debug-replay", "replay.json", "--check", sys.executable, "command.py"]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    waited_for(here / "replay.json")
    running.send_signal(signal.SIGTERM)
    said, told = running.communicate(timeout=LIMIT)
    assert running.returncode == 5
    assert "0 passed" in said
    assert "interrupted: runs in progress were ended, and are not counted" in told


# precision


def test_the_same_layers_are_high(here: Path, ray_nodes: RayNodes, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [helper.make_node("Sin", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(8)]
    save(model(nodes, [info("t0")], [info("t8")]), here / "m.onnx")
    (here / "check.py").write_text(
        "import sys\nmodel = open(sys.argv[1], 'rb').read()\n"
        "sys.exit(any(f't{i}_raw'.encode() in model for i in (3, 6)))"
    )
    words = ["m.onnx", "-o", "mixed.onnx", "--list", "keep.txt", "--check", sys.executable, "check.py", "{}"]
    made = []
    for said in both(ray_nodes, capsys, "precision", *words):
        assert "2 of 8 layers in float32" in said
        made.append(((here / "mixed.onnx").read_bytes(), (here / "keep.txt").read_text()))
    assert made[0] == made[1]
    assert made[0][1].split() == ["n2", "n5"]


# flags


def test_the_same_settings_are_switches(here: Path, ray_nodes: RayNodes, capsys: pytest.CaptureFixture[str]) -> None:
    save(chain(2), here / "m.onnx")
    (here / "check.py").write_text(
        "import os, sys; assert os.environ['BIOPSY_ENGINE'] == sys.argv[2]\n"
        "sys.exit(not {'threads=1', 'execution=parallel'} <= set(sys.argv[2].partition(':')[2].split(',')))"
    )
    words = ["m.onnx", "--engine", "onnxrt", "--report", "r.json"]
    found = []
    for said in both(ray_nodes, capsys, "flags", *words, "--check", sys.executable, "check.py", "{}", "{engine}"):
        assert "It goes away with threads=1 execution=parallel." in said
        found.append(json.loads((here / "r.json").read_text())["settings"])
    assert found[0] == found[1]


# What Ray installs


def test_packages_and_variables_are_there_before_a_check_runs(
    here: Path, ray_nodes: RayNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("virtualenv")
    (here / "command.py").write_text(
        "import os, sys\nfrom importlib.metadata import version\n"
        "sys.exit((version('iniconfig'), os.environ['WANTED']) != ('1.1.1', 'yes'))"
    )
    (here / "e.yaml").write_text("pip: [iniconfig==1.1.1]\nenv_vars: {WANTED: yes}")
    words = ["--resources", "node0=1", "--runtime-env", "e.yaml", "--until", "1", "--check", "python3", "command.py"]
    assert main(["debug", "repeat", "--on", ray_nodes.address, *words]) == 0
    assert "1 passed" in capsys.readouterr().out


def test_an_environment_that_ray_cannot_make_ends_the_search(
    here: Path, ray_nodes: RayNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "e.yaml").write_text("conda: no-such-environment")
    words = ["--resources", "node0=1", "--runtime-env", "e.yaml", "--until", "1", "--check", "true"]
    assert main(["debug", "repeat", "--on", ray_nodes.address, *words]) == 4
    told = capsys.readouterr().err
    assert "could not be run on another machine" in told
    (here / "e.yaml").write_text("{pip: [a], uv: [b]}")
    assert main(["debug", "repeat", "--on", ray_nodes.address, *words]) == 2
    assert "Ray does not take this runtime_env" in capsys.readouterr().err
