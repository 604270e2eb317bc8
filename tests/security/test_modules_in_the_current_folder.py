"""Nothing is imported from the current folder, which somebody else may have filled, however biopsy is started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.models import chain, save

BIN = Path(sys.executable).parent
OURS = {"numpy", "onnx", "onnxruntime", "openvino", "tensorrt", "tensorrt_rtx", "rich", "rich_argparse", "safetensors"}
THEIRS = {
    "ml_dtypes",
    "google",
    "onnxscript",
    "sympy",
    "flatbuffers",
    "packaging",
    "typing_extensions",
    "yaml",
    "torch",
}
BY_PYTHON_ITSELF = {"sitecustomize", "usercustomize"}

STARTS = {"the command": [str(BIN / "biopsy")], "python -m": [sys.executable, "-m", "biopsy"]}
RUN = ("biopsy", "run", "{}")

COMMANDS = {
    "nothing": (0, ()),
    "help": (0, ("run", "--help")),
    "doctor": (0, ("doctor",)),
    "onnxrt": (0, ("run", "m.onnx", "--onnxrt", "--reference", "--openvino", "--save-outputs", "o.npz")),
    "json": (0, ("run", "m.onnx", "--onnxrt", "--save-inputs", "i.json", "--report", "r.json")),
    "inspect": (0, ("inspect", "model", "m.onnx", "--mode=full")),
    "sanitize": (0, ("surgeon", "sanitize", "m.onnx", "-o", "s.onnx", "--fold-constants")),
    "extract": (0, ("surgeon", "extract", "m.onnx", "-o", "e.onnx", "--outputs", "t1")),
    "warm": (0, ("debug", "reduce", "m.onnx", "-o", "w.onnx", "--check", *RUN, "--engine", "fake:refuse.n1=build")),
    "cold": (0, ("debug", "repeat", "--until", "1", "--check", *RUN[:2], "m.onnx", "--openvino")),
    "layers": (0, ("debug", "layers", "m.onnx", "--suspect", "openvino")),
    "build": (0, ("debug", "build", "m.onnx", "--until", "1", "--onnxrt", "--check", *RUN[:2], "m.onnx", "--onnxrt")),
    "capability": (0, ("inspect", "capability", "m.onnx", "--openvino")),
}


def of_python_m(folder: Path) -> set[str]:
    """The modules that ``python -m`` itself imports before it comes to the one that it was told, which is not ours."""
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "told.py").write_text("import sys\nprint(*sys.modules)\n")
    shown = subprocess.run([sys.executable, "-m", "told"], cwd=elsewhere, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in shown.stdout.split()}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a model, and a module of every name that anybody might import; each leaves a mark."""
    here, marks = tmp_path / "here", tmp_path / "marks"
    here.mkdir()
    marks.mkdir()
    save(chain(3, ("Relu", "Neg")), here / "m.onnx")
    for name in {*sys.stdlib_module_names, *OURS, *THEIRS, *BY_PYTHON_ITSELF}:
        (here / f"{name}.py").write_text(f"open({str(marks / name)!r}, 'w').close()\n")
    for name in ("openvino", "onnx"):
        (here / f"{name}.py").rename(here / "kept")
        (here / name).mkdir()
        (here / "kept").rename(here / name / "__init__.py")
    (here / "evil-1.0.dist-info").mkdir()
    (here / "evil-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (here / "evil-1.0.dist-info" / "entry_points.txt").write_text("[biopsy.engines]\nonnxrt = json:x\nevil = json:x\n")
    yield here
    assert not sorted(mark.name for mark in marks.iterdir())


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_imported_from_it(folder: Path, start: str, command: str) -> None:
    status, words = COMMANDS[command]
    for name in of_python_m(folder) if start == "python -m" else ():
        (folder / f"{name}.py").unlink(missing_ok=True)
    ended = subprocess.run(
        [*STARTS[start], *words],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == status, ended.stderr + ended.stdout
    assert "evil" not in ended.stdout


def test_a_folder_that_the_user_names_is_imported_from_as_ever(tmp_path: Path) -> None:
    save(chain(1), tmp_path / "m.onnx")
    (tmp_path / "made.py").write_text("import numpy\nVALUE = numpy.ones((2, 2), 'float32')\n")
    (tmp_path / "load.py").write_text("from made import VALUE\ndef load_data():\n    yield {'t0': VALUE}\n")
    for start in STARTS.values():
        line = [*start, "run", "m.onnx", "--onnxrt", "--data-loader-script", "load.py"]
        assert subprocess.run(line, cwd=tmp_path, capture_output=True, timeout=120).returncode == 0
