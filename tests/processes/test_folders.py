"""Folders that are missing are made when something is written, as they should be, and not before."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from biopsy import errors
from biopsy.cli.app import main
from biopsy.processes.writing import (
    as_private_as,
    make_folders_of,
    open_anew,
    require_writable,
    write_whole,
    written_together,
)
from biopsy.tensors.files import write_feeds
from support.models import info, model, save


def test_whoever_writes_a_file_makes_its_folders(tmp_path: Path) -> None:
    write_whole(tmp_path / "a" / "b" / "f", [b"1"])
    with open_anew(tmp_path / "c" / "d" / "f") as stream:
        stream.write(b"2")
    with written_together(tmp_path / "e" / "f" / "m.xml") as made:
        made.write_bytes(b"3")
    assert (tmp_path / "a/b/f").read_bytes() + (tmp_path / "c/d/f").read_bytes() == b"12"
    assert (tmp_path / "e/f/m.xml").read_bytes() == b"3"


def test_asking_whether_a_file_can_be_written_makes_nothing(tmp_path: Path) -> None:
    require_writable(tmp_path / "a" / "b" / "f")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(errors.UsageError, match="is not a folder"):
        require_writable(tmp_path / "file" / "b" / "f")


def test_a_write_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    def broken() -> object:
        yield b"c"
        raise OSError("the disk is full")

    with pytest.raises(errors.UsageError, match="the disk is full"):
        write_whole(tmp_path / "a" / "b" / "f", broken())  # type: ignore[arg-type]
    with pytest.raises(RuntimeError), written_together(tmp_path / "a" / "m.xml"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_no_folder_is_made_through_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path / "outside")
    for path in (inside / "link" / "f", inside / "link" / "b" / "f"):
        with pytest.raises(errors.UsageError, match="leads nowhere"):
            require_writable(path)
        with pytest.raises(errors.UsageError, match="leads nowhere"):
            write_whole(path, [b"1"])
    assert not (tmp_path / "outside").exists()


def test_a_link_that_appears_meanwhile_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Path.mkdir
    (tmp_path / "outside").mkdir()

    def planted(self: Path, *args: object, **more: object) -> None:
        if self.name == "a":
            self.symlink_to(tmp_path / "outside")
        made(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", planted)
    with pytest.raises(FileExistsError):
        make_folders_of(tmp_path / "a" / "b" / "f")
    assert list((tmp_path / "outside").iterdir()) == []


def test_folders_are_as_private_as_the_umask_and_what_was_read_say(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_whole(tmp_path / "usual" / "f", [b"1"])
        secret = tmp_path / "secret"
        secret.touch(mode=0o600)
        with as_private_as([secret]):
            write_whole(tmp_path / "private" / "f", [b"1"])
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("usual", "private")]
    assert modes == [0o755, 0o700]


LINES = {
    "run m.onnx --onnxrt --save-outputs new/a/out.json --save-inputs new/b/in --report new/c/r.json": "new/c/r.json",
    "surgeon sanitize m.onnx -o new/m.onnx": "new/m.onnx",
    "surgeon extract m.onnx -o new/m.onnx --save-external-data": "new/m.onnx",
    "convert m.onnx -o new/deep/m.onnx": "new/deep/m.onnx",
    "convert m.onnx -o new/deep/m.ort": "new/deep/m.ort",
    "data merge in.json -o new/x.json": "new/x.json",
    "check lint m.onnx -o new/report.json": "new/report.json",
    "--log-file new/log.txt inspect model m.onnx": "new/log.txt",
    "debug reduce m.onnx -o new/r.onnx --artifacts-dir new/kept --events new/events/e --check false {}": "new/r.onnx",
    "debug repeat --until 1 --save-debug-replay new/d.json --check true": "new/d.json",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(model([helper.make_node("Exp", ["x"], ["y"])], [info("x")], [info("y")]), tmp_path / "m.onnx")
    write_feeds(tmp_path / "in.json", [{"x": np.ones((2, 2), np.float32)}])
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_every_command_makes_the_folders_of_what_it_writes(here: Path, line: str) -> None:
    more = ["--allow-vacuous-check"] if "debug reduce" in line else []
    words = line.split()
    at = words.index("--check") if "--check" in words else len(words)
    assert main([*words[:at], *more, *words[at:]]) == 0
    assert (here / LINES[line]).exists()


def test_a_refused_command_line_makes_no_folder(here: Path) -> None:
    assert main(["surgeon", "extract", "m.onnx", "-o", "new/m.onnx", "--outputs", "nothing"]) == 2
    assert main(["run", "m.onnx", "--onnxrt", "--save-outputs", "new/out.pkl"]) == 2
    assert main(["debug", "reduce", "m.onnx", "-o", "new/r.onnx", "--check", "true", "{}"]) == 3
    assert not (here / "new").exists()
