"""Locks: one has a file to itself, or many have it together."""

import os
from pathlib import Path

import pytest

from biopsy.processes.own_files import InUseError, open_locked


def test_many_share_a_lock_and_nobody_has_it_alone_meanwhile(tmp_path: Path) -> None:
    first, second = (open_locked(tmp_path / "lock", 0.0, shared=True) for _ in range(2))
    for held in (first, second):
        with pytest.raises(InUseError):
            open_locked(tmp_path / "lock", 0.0)
        os.close(held)
    os.close(open_locked(tmp_path / "lock", 0.0))


def test_who_has_a_lock_alone_shares_it_with_nobody(tmp_path: Path) -> None:
    alone = open_locked(tmp_path / "lock", 0.0)
    with pytest.raises(InUseError):
        open_locked(tmp_path / "lock", 0.0, shared=True)
    os.close(alone)


def test_a_lock_that_was_removed_is_none(tmp_path: Path) -> None:
    old = open_locked(tmp_path / "lock", 0.0)
    (tmp_path / "lock").unlink()
    new = open_locked(tmp_path / "lock", 0.0)
    assert os.fstat(new).st_ino == (tmp_path / "lock").stat().st_ino
    os.close(old)
    os.close(new)
