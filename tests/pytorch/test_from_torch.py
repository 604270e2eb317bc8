"""``biopsy data from-torch``: from the name of a factory to golden values that the other commands take."""

import sys
from pathlib import Path

import onnx
import pytest

torch = pytest.importorskip("torch")

from biopsy.cli.app import main  # noqa: E402
from biopsy.tensors.files import read_feeds  # noqa: E402
from support.advice import advised  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

SHOP = """
import torch
class Ranker(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
    def forward(self, x, weight):
        return self.down(torch.relu(self.up(x)) * weight)
def ranker(seed=0):
    torch.manual_seed(seed)
    return Ranker().eval()
def other_ranker():
    return ranker(1)
def ready():
    return ranker(), (torch.ones(2, 4),), {"weight": torch.tensor(2.0)}
class Untraced(torch.nn.Module):
    def forward(self, x):
        return x * 2 if float(x.sum()) > 0 else x
def untraced():
    return Untraced().eval(), (torch.ones(2),)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("shop.py").write_text(SHOP)
    torch.save((torch.ones(2, 4), torch.tensor(2.0)), "inputs.pt")
    yield tmp_path
    sys.modules.pop("shop", None)


def from_torch(*words):
    return main(["data", "from-torch", *words])


def test_a_factory_and_a_file_give_a_model_and_its_golden_values(capsys):
    assert from_torch("shop:ranker", "--args", "inputs.pt", "-o", "golden.safetensors") == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[:2] == [
        "model.onnx: 4 nodes",
        "golden.safetensors: golden values of 4 of 4 tensors, and its inputs",
    ]
    onnx.checker.check_model(onnx.load("model.onnx"))
    assert set(read_feeds("golden.safetensors")[0]) == {"x", "weight", "linear", "relu", "mul", "linear_1"}
    words = advised(shown)[0].split()
    assert main(words[1:]) == 0  # as it stands
    capsys.readouterr()
    assert main([*words[1:-1], "fake:offset.node_mul=0.5"]) == 1
    shown = capsys.readouterr().out
    assert "introduced by Mul 'node_mul', shop.py:8 in Ranker.forward" in shown
    assert "golden values of 4 of 4 tensors" in shown


def test_the_factory_may_give_the_arguments():
    assert from_torch("shop:ready", "-o", "out/golden.safetensors", "--save-model", "ranker.onnx") == 0
    assert {path.name for path in Path().iterdir()} >= {"ranker.onnx", "out"}
    assert [path.name for path in Path("out").iterdir()] == ["golden.safetensors"]


def test_values_are_recorded_for_a_model_that_was_exported_before(capsys):
    assert from_torch("shop:ready", "-o", "golden.safetensors", "--no-optimize") == 0
    (before,) = read_feeds("golden.safetensors")
    model = Path("model.onnx").read_bytes()
    again = ("--model", "model.onnx", "-o", "again.safetensors", "--no-optimize")
    assert from_torch("shop:ready", *again) == 0
    assert set(read_feeds("again.safetensors")[0]) == set(before)
    assert Path("model.onnx").read_bytes() == model
    assert from_torch("shop:other_ranker", "--args", "inputs.pt", *again) == 4
    assert "has another 'up.weight' than the module" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("shop:ranker",), 2, "gives a module and nothing to call it with"),
        (("shop:ranker", "--args", "absent.pt"), 2, "there is no such file"),
        (("program.pt2",), 2, "reading a saved program or module executes code"),
        (("shop:ranker", "--args", "inputs.pt2"), 2, "executes code that the file holds"),
        (("shop:untraced",), 1, "torch.export cannot capture the module"),
        (("shop:ready", "--model", "absent.onnx"), 2, "absent.onnx"),
        (("shop:ready", "--model", "shop.py"), 4, "cannot read shop.py"),
    ],
)
def test_what_cannot_be_recorded_is_said_and_nothing_is_written(words, status, said, capsys, folder):
    before = {path.name for path in folder.iterdir()}
    assert from_torch(*words, "-o", "golden.safetensors") == status
    assert said in capsys.readouterr().err
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == before - {"__pycache__"}


def test_a_model_that_nobody_named_is_not_replaced(capsys):
    Path("model.onnx").write_bytes(b"mine")
    assert from_torch("shop:ready", "-o", "golden.safetensors") == 2
    said = capsys.readouterr().err
    assert "--model model.onnx    records for it" in said
    assert Path("model.onnx").read_bytes() == b"mine"
    assert from_torch("shop:ready", "-o", "golden.safetensors", "--save-model", "model.onnx") == 0
    assert Path("model.onnx").read_bytes() != b"mine"


def test_only_a_safetensors_file_is_written(capsys):
    assert from_torch("shop:ready", "-o", "golden.npz") == 2
    assert "ends in .safetensors" in capsys.readouterr().err
