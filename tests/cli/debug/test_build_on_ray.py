"""``debug build --on``, on a real cluster: the same builds in the same order, and what was asked for comes back."""

import json
import sys
from pathlib import Path

import pytest

from biopsy.cli.app import main
from support.models import chain, save
from support.ray_nodes import MARKS, RayNodes

pytestmark = MARKS

CHECK = """\
import pathlib, sys
pathlib.Path("log.txt").write_text(sys.argv[2])
sys.exit("threads=2" in sys.argv[2])
"""


@pytest.fixture(autouse=True)
def leaves_its_process_as_it_was() -> None:
    """Ray sets variables of this process."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(chain(3, ("Relu", "Neg")), tmp_path / "model.onnx")
    (tmp_path / "check.py").write_text(CHECK)
    return tmp_path


def build(folder: str, *on: str) -> list[tuple[str, str, object]]:
    """Where each file was sorted, and what it says of the settings."""
    files = ["--save-tactics", "replay.json", "--artifacts", "replay.json", "log.txt", "--art-dir", folder]
    words = ["debug", "build", "model.onnx", "--onnxrt", "--vary", "threads=1,2", "--seed", "1", "--until", "6", *files]
    assert main([*words, *on, "--check", sys.executable, "check.py", "{}", "{engine}"]) == 0
    found = []
    for path in Path(folder).rglob("*_N*"):
        said = path.read_text() if path.suffix == ".txt" else _record(path)
        found.append((path.parent.name, path.stem.rpartition("_N")[2], said))
    return sorted(found, key=str)


def _record(path: Path) -> object:
    tree = json.loads(path.read_text())
    return [tree[key] for key in ("settings", "version", "iteration", "block", "outcome", "layers")]


def test_builds_are_sorted_as_here_and_their_records_name_the_machine(
    ray_nodes: RayNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    here = build("here")
    assert len(here) == 12
    capsys.readouterr()
    assert build("there", "--on", ray_nodes.address, "--require-uniform") == here
    shown = capsys.readouterr().out
    assert "3 checks have room at once on 3 machines" in shown
    assert "6 builds   3 good · 3 bad" in shown
    machines = {json.loads(path.read_text())["machine"] for path in Path("there").rglob("*.json")}
    assert len(machines) == 1, "they are of one kind"
    assert not Path("polygraphy_debug.ort").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--jobs", "2", "--check", "build"), "--jobs is how many builds --on makes at once"),
        (("--on", "ray", "--iter-info", "n.json", "--check", "build"), "--iter-info cannot be combined with --on"),
        (("--on", "ray"), "--on needs a check"),
    ],
)
def test_what_cannot_be_done_there_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["debug", "build", "model.onnx", "--onnxrt", *words]) == 2
    assert said in capsys.readouterr().err
