"""Pieces of a file are those of the file that was opened, or an error."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.tensors.container import SteadyFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "f").write_bytes(bytes(range(100)))
    os.utime(tmp_path / "f", ns=(0, 0))
    return tmp_path / "f"


def test_any_piece_is_read_from_a_file_that_is_as_it_was(path: Path) -> None:
    file = SteadyFile(path)
    assert file.size == 100
    with file.opened() as read:
        assert (read(98, 2), read(0, 3), read(5, 0)) == (b"bc", b"\0\1\2", b"")


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(0, 0))
    other.replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "cut short": lambda path: os.truncate(path, 50),
    "longer": lambda path: path.write_bytes(bytes(101)),
    "of the same size": lambda path: path.write_bytes(bytes(100)),
    "another file": replace,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_was_changed_is_told_and_not_read(path: Path, change: str) -> None:
    file = SteadyFile(path)
    CHANGES[change](path)
    with pytest.raises(errors.DataError, match=r"/f was changed while it was read: it had 100 bytes"), file.opened():
        pytest.fail("it was opened")


def test_a_change_while_it_is_read_is_told(path: Path) -> None:
    with pytest.raises(errors.DataError, match="was changed"), SteadyFile(path).opened() as read:
        read(0, 10)
        CHANGES["of the same size"](path)


def test_what_is_not_there_any_more_is_no_short_piece(path: Path) -> None:
    with pytest.raises(errors.DataError, match="it had 100 bytes, and has 50 now"), SteadyFile(path).opened() as read:
        os.truncate(path, 50)
        read(40, 20)


def test_a_file_that_is_gone_is_told(path: Path) -> None:
    file = SteadyFile(path)
    path.unlink()
    with pytest.raises(errors.DataError, match=r"/f cannot be read any more: No such file"), file.opened():
        pytest.fail("it was opened")


def test_a_relative_path_is_of_the_folder_where_it_was_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    file = SteadyFile(Path("f"))
    monkeypatch.chdir("/")
    with file.opened() as read:
        assert read(1, 1) == b"\1"
