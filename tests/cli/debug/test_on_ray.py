"""``--on``, on a real cluster of three nodes: each command says the same as on this machine alone."""

import json
import sys
from pathlib import Path

import pytest

from biopsy.cli.app import main
from support.ray_nodes import MARKS, RayNodes

pytestmark = MARKS


@pytest.fixture(autouse=True)
def leaves_its_process_as_it_was() -> None:
    """Ray sets variables of this process."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def both(ray_nodes: RayNodes, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """What a command says on this machine, and on the nodes. Its first words come before ``--on``."""
    said = []
    for on in ([], ["--on", ray_nodes.address, "--require-uniform"]):
        assert main(["debug", words[0], *on, *words[1:]]) == 0
        said.append(capsys.readouterr().out)
    assert "3 checks have room at once on 3 machines" in said[1]
    return said[0], said[1]


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
    assert "6 iterations   6 passed · 0 failed" in capsys.readouterr().out
