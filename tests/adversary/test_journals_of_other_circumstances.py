"""A journal answers for the same question only: what a check reads, and which packages answer it, belong to that."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import biopsy
from biopsy.cli.app import main
from biopsy.session import conditions
from support.models import chain, save

CHECK = """
import pathlib, sys
data = open(sys.argv[1], "rb").read()
golden = sorted(pathlib.Path(sys.argv[2]).rglob("*.json"))
sys.exit(b"n5" in data and bool(golden))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(chain(12), tmp_path / "m.onnx")
    (tmp_path / "check.py").write_text(CHECK)
    (tmp_path / "golden" / "deep").mkdir(parents=True)
    (tmp_path / "golden" / "0.json").write_text("{}")
    (tmp_path / "golden" / "deep" / "1.json").write_text("{}")
    return tmp_path


def reduced(*words: str) -> int:
    command = ["debug", "reduce", "m.onnx", "-o", "r.onnx", *words, "--jobs", "1"]
    return main([*command, "--check", sys.executable, "check.py", "{}", "golden"])


def test_golden_values_in_a_folder_belong_to_the_question(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reduced("--max-checks", "6") == 5
    (place / "golden" / "deep" / "1.json").write_text("{ }")
    assert reduced() == 2
    assert "golden/deep/1.json" in capsys.readouterr().err
    (place / "golden" / "deep" / "1.json").write_text("{}")
    (place / "golden" / "made_by_the_check.txt").write_text("later")
    assert reduced() == 0


def test_one_that_was_removed_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reduced("--max-checks", "6") == 5
    (place / "golden" / "0.json").unlink()
    assert reduced() == 2
    assert "golden/0.json" in capsys.readouterr().err


def test_a_folder_of_inputs_is_no_accident(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "m.onnx", "--onnxrt"]
    assert main([*run, "--save-inputs", "inputs"]) == 0
    words = ["debug", "reduce", "m.onnx", "-o", "r.onnx", "--load-inputs", "inputs", "--jobs", "1"]
    check = ["--check", sys.executable, "check.py", "{}", "golden"]
    assert main([*words, "--max-checks", "6", *check]) == 5
    assert main([*run, "--seed", "7", "--save-inputs", "others"]) == 0
    for path in (place / "others").iterdir():
        path.replace(place / "inputs" / path.name)
    assert main([*words, *check]) == 2
    assert "inputs/0" in capsys.readouterr().err
    assert main([*words, "--fresh", *check]) == 0


def test_what_the_reduction_writes_itself_is_no_condition(place: Path) -> None:
    """The current folder as a word: the journal, the candidate and the result stand in it, and change."""
    check = ["--check", sys.executable, "check.py", "{}", "."]
    words = ["debug", "reduce", "m.onnx", "-o", "r.onnx", "--jobs", "1"]
    assert main([*words, *check]) == 0
    assert main([*words, "--max-checks", "6", *check]) == 5
    assert main([*words, *check]) == 0


def test_no_folder_pipe_or_odd_word_makes_it_fall_over(place: Path) -> None:
    os.mkfifo(place / "golden" / "pipe")
    (place / "golden" / "gone").symlink_to("nowhere")
    (place / "golden" / "round").symlink_to(place / "golden")
    states = dict(conditions.states(place / "golden"))
    assert sorted(Path(name).name for name in states) == ["0.json", "1.json"]
    assert dict(conditions.states(place / "golden" / "pipe")) == {}
    assert list(conditions.states(Path("x" * 5000))) == [("x" * 5000, "cannot be read")]
    found = biopsy.reduce(
        "m.onnx",
        [sys.executable, "check.py", "{}", "golden", "y" * 5000, "/dev/null"],
        "r.onnx",
        journal="r.onnx.journal",
    )
    assert found.nodes == ("Relu 'n5'",)


def test_a_huge_folder_is_bounded_and_a_change_in_it_is_seen(tmp_path: Path) -> None:
    for number in range(2_100):
        (tmp_path / f"{number:05}.bin").write_bytes(b"1")
    before = list(conditions.states(tmp_path))
    assert len(before) == 2_001
    (tmp_path / "02099.bin").write_bytes(b"22")
    assert before != list(conditions.states(tmp_path))


def plug_in(folder: Path, version: str) -> None:
    """An engine as an installed package would bring it, with a package that it needs."""
    for name, number, more in (("my-engine", version, "Requires-Dist: my_kernels>=1\n"), ("my_kernels", version, "")):
        about = folder / f"{name.replace('-', '_')}-{number}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n{more}")
        if more:
            (about / "entry_points.txt").write_text("[biopsy.engines]\nmine = my_engine:Mine\n")
    (folder / "my_engine.py").write_text("class Mine: pass\n")


def test_packages_that_a_plug_in_brings_belong_to_the_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(tmp_path / "installed", "1.0")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    found = dict(conditions.versions())
    assert found["my-engine"] == found["my-kernels"] == "1.0"
    assert {"Python", "biopsy", "numpy", "onnx", "onnxruntime"} <= set(found)
    code = next(name for name in found if name.startswith("engine code"))
    (tmp_path / "installed" / "my_engine.py").write_text("class Mine: 'another'\n")
    assert dict(conditions.versions())[code] != found[code]
