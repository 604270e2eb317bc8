"""The right to write candidates to a path: what stood there comes back, or it is said where it is."""

from pathlib import Path

import pytest

from biopsy import errors
from biopsy.session.workspace import locked, set_aside


def test_what_stood_there_comes_back_and_nothing_is_said(tmp_path: Path) -> None:
    path, warnings = tmp_path / "candidate.onnx", []
    path.write_bytes(b"mine")
    with set_aside(path, "search", warnings.append) as remark:
        assert remark is not None
        assert not path.exists()
    assert path.read_bytes() == b"mine"
    assert warnings == []


def test_what_cannot_come_back_is_told_with_where_it_is(tmp_path: Path) -> None:
    path, warnings = tmp_path / "candidate.onnx", []
    path.write_bytes(b"mine")
    with set_aside(path, "search", warnings.append):
        path.write_bytes(b"the last candidate")
    aside = tmp_path / "candidate.aside.onnx"
    assert aside.read_bytes() == b"mine"
    assert warnings == [f"{path} holds the last candidate: what stood there before is still {aside}"]


def test_without_a_path_nothing_is_done() -> None:
    with set_aside(None, "search", lambda text: None) as remark:
        assert remark is None


def test_a_file_that_is_locked_is_had_by_nobody_else_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "inputs.json"
    path.write_bytes(b"mine")
    with locked([path]), pytest.raises(errors.UsageError, match=r"inputs\.json"), locked([path]):
        pass
    with locked([path, path]):
        assert path.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [path]


def test_where_no_lock_can_be_made_none_is(tmp_path: Path) -> None:
    with locked([tmp_path / "missing" / "inputs.json"]):
        pass
