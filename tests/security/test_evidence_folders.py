"""The folder of ``biopsy diagnose``, whose name it has chosen itself, came with the model: nothing in it is believed,
and nothing is written through it.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import biopsy
from biopsy import errors
from biopsy.cli.app import main
from support.models import chain, save

STRANGERS = b"a model of a stranger"
QUICK = ("--engine", "fake:refuse.Exp=build", "--max-time", "0.001")
"""Ends as interrupted before anything was asked; its inputs and its record are written."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that came, with a model in it."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    save(chain(3, ("Neg", "Exp", "Tanh")), folder / "model.onnx")
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A home with a shell profile and nothing else, before and after."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "profile").write_bytes(b"export EDITOR=vi\n")
    yield home / "profile"
    assert {path.name: path.read_bytes() for path in home.iterdir()} == {"profile": b"export EDITOR=vi\n"}


def diagnose(*words: str) -> int:
    return main(["diagnose", "model.onnx", *QUICK, *words])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def link_to_home(here: Path, victim: Path) -> None:
    (here / "model_diagnosis").symlink_to(victim.parent)


def dangling_link(here: Path, victim: Path) -> None:
    (here / "model_diagnosis").symlink_to(victim.parent / "made")


def complete_record(here: Path, victim: Path) -> None:
    shipped(here, {"biopsy_diagnosis": 1, "complete": True})


def foreign_seal(here: Path, victim: Path) -> None:
    """All that a diagnosis writes, under the seal of another user."""
    os.environ["XDG_STATE_HOME"], ours = str(here.parent / "other"), os.environ["XDG_STATE_HOME"]
    assert diagnose() == 5
    os.environ["XDG_STATE_HOME"] = ours
    (here / "model_diagnosis" / "piece.onnx").write_bytes(STRANGERS)


def odd_seal(here: Path, victim: Path) -> None:
    shipped(here, {"biopsy_diagnosis": 1, "complete": False, "seal": "\u00e9"})


def a_file(here: Path, victim: Path) -> None:
    (here / "model_diagnosis").write_text("no folder")


def linked_record(here: Path, victim: Path) -> None:
    assert diagnose("--dir", "own") == 5
    (here / "model_diagnosis").mkdir()
    (here / "model_diagnosis" / "diagnosis.json").symlink_to("../own/diagnosis.json")
    (here / "model_diagnosis" / "piece.onnx").write_bytes(STRANGERS)


def shipped(here: Path, record: dict[str, object]) -> None:
    (here / "model_diagnosis").mkdir()
    (here / "model_diagnosis" / "diagnosis.json").write_text(json.dumps(record))
    (here / "model_diagnosis" / "piece.onnx").write_bytes(STRANGERS)


ATTACKS = [link_to_home, dangling_link, complete_record, foreign_seal, odd_seal, a_file, linked_record]


@pytest.mark.parametrize("options", [(), pytest.param(("--fresh",), marks=pytest.mark.slow)], ids=["", "fresh"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_folder_that_came_is_left_and_another_one_beside_it_is_used(
    here: Path, victim: Path, capsys, attack: Callable[[Path, Path], None], options: tuple[str, ...]
) -> None:
    attack(here, victim)
    place = here / "model_diagnosis"
    before = contents(place) if place.is_dir() and not place.is_symlink() else None
    assert diagnose(*options) == 5
    assert "the evidence goes to model_diagnosis-2" in capsys.readouterr().err
    assert (here / "model_diagnosis-2" / "diagnosis.json").is_file()
    assert STRANGERS not in contents(here / "model_diagnosis-2").values()
    assert before is None or contents(place) == before
    assert diagnose() == 5, "the same line goes on there"
    assert not (here / "model_diagnosis-3").exists()


@pytest.mark.parametrize("options", [(), ("--fresh",)], ids=["", "fresh"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_folder_that_a_person_names_is_refused_and_left(
    here: Path, victim: Path, capsys, attack: Callable[[Path, Path], None], options: tuple[str, ...]
) -> None:
    attack(here, victim)
    place = here / "model_diagnosis"
    before = contents(place) if place.is_dir() else None
    assert diagnose("--dir", "model_diagnosis", *options) == 2
    assert "model_diagnosis" in capsys.readouterr().err
    assert before is None or contents(place) == before
    with pytest.raises(errors.UsageError, match="model_diagnosis"):
        biopsy.diagnose("model.onnx", ["onnxrt"], directory="model_diagnosis")


IN_OUR_FOLDER = ("x/y", "layers.json", "inputs.safetensors", "candidate.onnx", "piece.onnx.journal")


@pytest.mark.parametrize(
    ("name", "link"),
    [
        pytest.param(name, link, marks=[] if number % 2 == index else pytest.mark.slow)
        for number, name in enumerate(IN_OUR_FOLDER)
        for index, link in enumerate((os.symlink, os.link) if number else (os.symlink,))
    ],
)
def test_no_link_in_our_own_folder_is_written_through(here: Path, victim: Path, capsys, name: str, link) -> None:
    assert diagnose() == 5
    if name == "x/y":
        (here / "model_diagnosis" / "x").symlink_to(victim.parent)
    else:
        (here / "model_diagnosis" / name).unlink(missing_ok=True)
        link(victim, here / "model_diagnosis" / name)
    assert diagnose() == 5
    assert "holds a link" in capsys.readouterr().err
    assert (here / "model_diagnosis-2").is_dir()


def test_a_link_on_the_way_to_a_folder_that_leads_nowhere_is_not_made_real(here: Path, victim: Path) -> None:
    (here / "deep").symlink_to(victim.parent / "made")
    assert diagnose("--dir", "deep/diagnosis") == 2


@pytest.mark.parametrize("name", ["piece.onnx", pytest.param("run.json", marks=pytest.mark.slow)])
def test_a_file_swapped_beside_a_genuine_record_is_not_shown(here: Path, victim: Path, capsys, name: str) -> None:
    assert main(["diagnose", "model.onnx", "--engine", "fake:refuse.Exp=build"]) == 1
    record = json.loads((here / "model_diagnosis" / "diagnosis.json").read_text())
    assert record["complete"] and record["files"]["piece.onnx"] and record["files"]["run.json"]
    (here / "model_diagnosis" / name).write_bytes(STRANGERS)
    assert diagnose("--report", "report.json", "--bundle", "sent") == 5
    assert f"holds another {name} than a diagnosis has left there" in capsys.readouterr().err
    assert STRANGERS not in contents(here / "model_diagnosis-2").values()
    assert not (here / "sent").exists()


@pytest.mark.parametrize("options", [(), ("--fresh",)], ids=["", "fresh"])
def test_the_line_that_moves_a_refused_folder_aside_lets_the_same_command_begin(
    here: Path, victim: Path, capfd, options: tuple[str, ...]
) -> None:
    name = "-it's $(touch evil)"
    (here / f"{name}.old").mkdir()
    (here / name).mkdir()
    (here / name / "piece.onnx").write_bytes(STRANGERS)
    assert diagnose(f"--dir={name}", *options) == 2
    told = capfd.readouterr().err
    assert f"sealed with your key ({here.parent / 'state/biopsy/key'})" in told
    line = next(line for line in told.splitlines() if " mv " in line)
    subprocess.run(["bash", "-c", f"mv {line.partition(' mv ')[2].removesuffix('    moves it aside')}"], check=True)
    assert contents(here / f"{name}.old2") == {"piece.onnx": STRANGERS} and not (here / "evil").exists()
    assert diagnose(f"--dir={name}", *options) == 5
    assert diagnose("--dir", ".", *options) == 2
    assert " mv " not in capfd.readouterr().err, "nobody moves the folder that a shell is in"


def test_a_refused_diagnosis_leaves_nothing(here: Path, victim: Path) -> None:
    inputs = here / "{}.npz"
    np.savez(inputs, t0=np.ones((2, 2), np.float32))
    assert diagnose("--load-inputs", inputs.name) == 2
    assert diagnose("--dir", "a/b/c", "--load-inputs", inputs.name) == 2
    (here / "empty").mkdir()
    assert diagnose("--dir", "empty", "--load-inputs", inputs.name) == 2
    assert contents(here / "empty") == {}
    shutil.rmtree(here / "empty")
    assert sorted(contents(here)) == ["model.onnx", "{}.npz"]
