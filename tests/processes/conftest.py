"""Modules of ours, made for a test, that a child process can be told to run."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def child_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes the code of a module, and gives its name; every process that is started from here finds it."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))

    def write(code: str) -> str:
        (folder / "the_child.py").write_text(code)
        return "the_child"

    return write
