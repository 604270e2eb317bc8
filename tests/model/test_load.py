"""Opening model files."""

import os
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.cli.app import main
from biopsy.model.load import require_file


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    with pytest.raises(errors.UsageError, match="is a pipe or a device"):
        require_file(tmp_path / "m.onnx")
    words = ["-o", str(tmp_path / "r.onnx"), "--check", "false"]
    assert main(["debug", "reduce", str(tmp_path / "m.onnx"), *words]) == 2
