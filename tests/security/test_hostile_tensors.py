"""A file of tensors from a stranger is refused, in words, with nothing in memory that the file does not hold."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from biopsy import errors
from biopsy.tensors.files import read_feeds
from support import hostile_tensors
from support.confined import Confinement, Ended

COMMANDS = {
    "inspect": "inspect data {file} --all --show-values --histogram",
    "merge": "data to-input {file} -o made.safetensors",
}

MODEST = 600 << 20
"""Bytes of memory: what the program and its packages take, and no bomb besides."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "work"
    found.mkdir()
    return found


def run(command: str, name: str, folder: Path, confined: Confinement) -> Ended:
    extension, make = hostile_tensors.HOSTILE[name]
    (folder / f"file{extension}").write_bytes(make())
    return confined.run(COMMANDS[command].format(file=f"file{extension}").split(), folder)


@pytest.mark.parametrize("command", ["inspect", pytest.param("merge", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", hostile_tensors.HOSTILE)
def test_a_hostile_file_is_refused_or_harmless(name: str, command: str, folder: Path, confined: Confinement) -> None:
    ended = run(command, name, folder, confined)
    assert ended.status in {0, 4}, ended
    assert "itself failed" not in ended.err
    assert "Traceback" not in ended.err
    assert "Warning" not in ended.err
    assert len(ended.err) < 2_000
    assert ended.peak < MODEST
    if ended.status:
        assert ended.err.count("error: ") == 1
        assert f"file{hostile_tensors.HOSTILE[name][0]}" in ended.err
        assert {path.name for path in folder.iterdir()} == {f"file{hostile_tensors.HOSTILE[name][0]}"}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "npz: 1 GB that a header of two floats stands before",
            "its header claims 8 bytes, but 1073741832 are there",
        ),
        ("npz: 4.3 GB that all agree on", "it holds 4.6 GB of data, and there are 3.2 GB of memory"),
        ("npz: 1,000 names for one gigabyte", "overlaps another one"),
        ("npz: 4.3 GB of an index", "it holds 4.6 GB of data"),
        ("npz: less than the directory says", "cannot be as large as the directory says"),
        ("npz: one name twice", "two of its members have one name"),
        ("npz: LZMA", "packed in a way that is not read"),
        ("npz: an index with 10^5 times one tensor", "tensor '1': it is missing"),
        ("npz: an index with a type that is a class", "is not an element type known here"),
        ("npy in npz: objects", "a pickle"),
        ("npy in npz: records in a text", "records, not numbers"),
        ("npy in npz: 2^62 texts of no character", "elements of no byte"),
        ("npy in json: characters that do not exist", "not characters"),
        ("npy in json: rank 100", "it has 100 dimensions"),
        ("safetensors: rank 10^5", "it has 100000 dimensions"),
    ],
)
def test_the_message_says_what_is_wrong(name: str, told: str, folder: Path, confined: Confinement) -> None:
    assert told in run("inspect", name, folder, confined).err


def test_a_name_that_leads_away_is_only_a_name(folder: Path, confined: Confinement) -> None:
    ended = run("inspect", "npz: names that lead away", folder, confined)
    assert ended.status == 0
    assert "../../../tmp/x" in ended.out


def test_what_the_directory_hides_is_not_read(folder: Path, confined: Confinement) -> None:
    ended = run("inspect", "npz: 4.3 GB that the directory hides", folder, confined)
    assert ended.peak < MODEST


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_large_array_that_hardly_takes_any_room_is_read_whole(save: object, tmp_path: Path) -> None:
    values = np.zeros((1 << 22, 4), np.float32)
    values[-1] = 7
    assert callable(save)
    save(tmp_path / "f.npz", x=values, y=np.asfortranarray(values[:5]), z=np.array(["a", ""]))
    found = read_feeds(tmp_path / "f.npz")[0]
    assert (found["x"] == values).all()
    assert (found["y"] == values[:5]).all()
    assert found["z"].tolist() == ["a", ""]
    assert not found["x"].flags.writeable


def test_a_member_whose_bytes_were_changed_is_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", x=np.arange(1000.0))
    data = bytearray((tmp_path / "f.npz").read_bytes())
    data[2000] ^= 1
    (tmp_path / "f.npz").write_bytes(data)
    with pytest.raises(errors.DataError, match="Bad CRC-32"):
        read_feeds(tmp_path / "f.npz")


def test_a_member_that_is_longer_than_its_header_says_is_told(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.arange(3.0))
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
        archive.writestr("x.npy", stream.getvalue() + b"more")
    with pytest.raises(errors.DataError, match="its header claims 24 bytes, but 28 are there"):
        read_feeds(tmp_path / "f.npz")


def test_a_pipe_named_as_a_model_or_as_tensors_is_wrong_usage(folder: Path, confined: Confinement) -> None:
    os.mkfifo(folder / "pipe")
    for words in ("inspect model pipe", "inspect data pipe", "inspect tactics pipe", "run pipe --onnxrt"):
        ended = confined.run(words.split(), folder)
        assert (ended.status, ended.err.count("error: ")) == (2, 1), (words, ended)
