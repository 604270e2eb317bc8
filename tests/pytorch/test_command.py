"""``biopsy torch``, as it is typed."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import onnx
import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.torch

MODELS = """
import torch

class Columns(torch.nn.Module):
    def forward(self, x):
        mean = x.pow(2).mean(-1)
        return x / torch.sqrt(mean + 1e-5) * torch.linspace(0.5, 1.5, 8)

class Doubled(torch.nn.Module):
    def forward(self, x):
        return x * 2

def columns():
    return Columns().eval(), (torch.linspace(-2, 3, 64).reshape(8, 8),)

def doubled():
    return Doubled().eval()

class Fixed(torch.nn.Module):
    def forward(self, x):
        return x.reshape(-1, 3) * len(x)

def sized():
    return Fixed().eval(), (torch.ones(4, 3),)

def broken():
    return Doubled().eval(), ("no tensor", None)
"""


def biopsy(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "models.py").write_text(MODELS)
    line = [sys.executable, "-m", "biopsy", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=240)


def test_an_engine_that_is_wrong_is_status_1_with_lines_to_paste(tmp_path: Path) -> None:
    ran = biopsy(tmp_path, "torch", "models:columns", "-o", "found", "--report", "report.json")
    assert ran.returncode == 1, ran.stderr
    assert "FAILED | engine: onnxrt" in ran.stdout
    assert "mean = x.pow(2).mean(-1)" in ran.stdout
    assert "engine     no: " in ran.stdout  # "fails      no" would read as its opposite
    issue = (tmp_path / "found" / "bundle" / "ISSUE.md").read_text()
    assert str(tmp_path) not in issue
    assert f"PyTorch {version('torch')}" in issue
    assert "ORT_DISABLE_ALL" in issue.partition("Workaround: ")[2]
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["verdict"]["kind"], report["torch"]["blame"], report["status"]) == ("engine", "engine", 1)
    for advice in report["next"]:
        again = biopsy(tmp_path, *advice["line"].split()[1:])
        assert again.returncode == (1 if " run " in advice["line"] else 0), again.stderr


def test_what_passes_is_status_0_and_json_alone_is_printed(tmp_path: Path) -> None:
    import torch

    torch.save((torch.ones(2, 3),), tmp_path / "inputs.pt")
    ran = biopsy(tmp_path, "torch", "models:doubled", "--args", "inputs.pt", "-o", "found", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["torch"]["blame"] == "passes"


def test_nothing_to_call_it_with_is_status_2(tmp_path: Path) -> None:
    ran = biopsy(tmp_path, "torch", "models:doubled", "-o", "found")
    assert (ran.returncode, "--args FILE" in ran.stderr) == (2, True)
    assert not (tmp_path / "found").exists()


def test_a_module_that_raises_is_status_4(tmp_path: Path) -> None:
    ran = biopsy(tmp_path, "torch", "models:broken", "-o", "found")
    assert (ran.returncode, "the module itself raises" in ran.stderr) == (4, True)


def test_sizes_that_are_named_open_are_tried_with_others(tmp_path: Path) -> None:
    ran = biopsy(tmp_path, "torch", "models:sized", "--dynamic-shapes", "x:[batch,3]", "-o", "found")
    assert ran.returncode == 0, ran.stderr
    assert "also with sizes [5, 3]" in ran.stdout
    model = onnx.load(tmp_path / "found" / "model.onnx")
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_golden_values_of_a_model_with_open_sizes(tmp_path: Path) -> None:
    words = ("data", "from-torch", "models:sized")
    shapes = ("--dynamic-shapes", "x:[batch,3]")
    assert biopsy(tmp_path, *words, *shapes, "-o", "golden.safetensors").returncode == 0
    for more in (shapes, ()):
        ran = biopsy(tmp_path, *words, *more, "--model", "model.onnx", "-o", "again.safetensors")
        assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("shape", "said"), [("x:[batch]", "of shape [4, 3]"), ("y:[batch]", "the tensors are x"), ("x", "a name and")]
)
def test_an_open_size_that_does_not_fit_is_status_2(tmp_path: Path, shape: str, said: str) -> None:
    ran = biopsy(tmp_path, "torch", "models:sized", "--dynamic-shapes", shape, "-o", "found")
    assert (ran.returncode, said in ran.stderr) == (2, True), ran.stderr
    assert not (tmp_path / "found").exists()


SURROUNDINGS = """
import os
import torch
print("printed on import")

class Late(torch.nn.Module):
    def forward(self, x):
        print("printed by forward")
        import late_numbers
        return x * late_numbers.TWO

def late():
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")
    return Late().eval(), (torch.ones(2, 3),)

class Leaving(torch.nn.Module):
    def forward(self, x):
        raise SystemExit(0)

def leaving():
    return Leaving().eval(), (torch.ones(2, 3),)
"""


def test_what_the_code_prints_imports_and_enters_changes_neither_json_nor_folder(tmp_path: Path) -> None:
    (tmp_path / "own_code.py").write_text(SURROUNDINGS)
    (tmp_path / "late_numbers.py").write_text("TWO = 2.0\n")
    ran = biopsy(tmp_path, "torch", "own_code:late", "-o", "found", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["torch"]["blame"] == "passes"
    assert (tmp_path / "found" / "model.onnx").is_file()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert "printed by forward" in ran.stderr


@pytest.mark.parametrize("words", [("torch", "-o", "found"), ("data", "from-torch", "-o", "golden.safetensors")])
def test_a_module_that_ends_python_does_not_end_biopsy_with_status_0(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "own_code.py").write_text(SURROUNDINGS)
    ran = biopsy(tmp_path, *words, "own_code:leaving")
    assert ran.returncode != 0, ran.stderr
    assert "sys.exit(0)" in ran.stderr
