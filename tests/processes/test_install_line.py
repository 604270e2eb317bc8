"""The line that installs what is missing."""

from pathlib import Path

import pytest

from biopsy.processes import own_process
from biopsy.processes.own_process import install_line


def test_an_extra_is_installed_from_where_biopsy_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_process, "__file__", str(tmp_path / "src" / "biopsy" / "processes" / "own_process.py"))
    assert install_line("biopsy[ray]") == "pip install 'biopsy[ray]'"
    (tmp_path / "pyproject.toml").touch()
    assert install_line("biopsy[ray]") == f"pip install '{tmp_path}[ray]'"
    monkeypatch.chdir(tmp_path)
    assert install_line("biopsy[ray]") == "pip install '.[ray]'"
    assert install_line("onnxruntime") == "pip install onnxruntime"


def test_it_is_told_in_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert install_line("biopsy[ray]").startswith("pip install ")
