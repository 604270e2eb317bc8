"""Files are written whole or not at all; what is not a file is only written to."""

import os
import threading
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.processes import writing
from biopsy.processes.writing import require_writable, write_whole


def test_what_stood_there_is_replaced_in_one_step_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_whole(path, [b"a", b"b"])
    assert path.read_bytes() == b"ab"

    def broken() -> object:
        yield b"c"
        raise OSError("the disk is full")

    with pytest.raises(errors.UsageError, match="the disk is full"):
        write_whole(path, broken())  # type: ignore[arg-type]
    assert path.read_bytes() == b"ab"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    require_writable(path)
    write_whole(path, [b"a", b"b"])
    reader.join(10)
    assert got == [b"ab"]
    assert path.is_fifo()


def test_a_read_only_file_system_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(writing.os, "open", refused)
    monkeypatch.setattr(writing.Path, "unlink", refused)
    with pytest.raises(errors.UsageError, match="Read-only file system"):
        write_whole(tmp_path / "f", [b"a"])
