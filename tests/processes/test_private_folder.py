"""Folders of this user, in which nobody else can put anything."""

from pathlib import Path

import pytest

from biopsy.processes.own_files import folder_of_user, make_private_folder


def test_it_is_made_for_us_alone_and_left_as_it_is_later(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    make_private_folder(folder)
    assert folder.stat().st_mode & 0o777 == (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    make_private_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_one_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(PermissionError, match="others may write there"):
        make_private_folder(folder)


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(NotADirectoryError):
        make_private_folder(tmp_path / "a")


def test_a_variable_names_where_it_is_but_never_below_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert folder_of_user("XDG_CACHE_HOME", ".cache") == tmp_path / ".cache" / "biopsy"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
    assert folder_of_user("XDG_CACHE_HOME", ".cache") == tmp_path / "there" / "biopsy"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "home")
    assert folder_of_user("XDG_CACHE_HOME", ".cache") is None
