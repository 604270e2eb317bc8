"""An installation without the packages that only extras of biopsy install."""

import os
import sys
from pathlib import Path

import pytest

_PACKAGES = ("pypi_simple", "fast_sugiyama", "onnxscript", "onnx_ir", "ray", "torch", "openvino")


def hide_extras(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the programs that a test starts import none of these packages; ``folder`` is for a file that sees to it."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({_PACKAGES}))\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
