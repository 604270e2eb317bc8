"""``biopsy debug reduce --explain``: what may vary in the result, in a few lines."""

from pathlib import Path

import onnx
import pytest
from onnx import helper

from biopsy.cli.app import main
from support.real_failures import relu_clip_of_integers
from support.varied_models import softmax

REDUCE = ("debug", "reduce", "m.onnx", "-o", "r.onnx", "--explain")


def saved(folder: Path) -> onnx.ModelProto:
    """A model of three nodes, of which the last two fail."""
    model = relu_clip_of_integers()
    model.graph.node[0].input[0] = "doubled"
    model.graph.node.insert(0, helper.make_node("Add", ["x", "x"], ["doubled"]))
    onnx.save(model, folder / "m.onnx")
    return model


@pytest.mark.slow
def test_a_reduction_ends_with_what_may_vary(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path)
    status = main([*REDUCE, "--check", "biopsy", "run", "{}", "--onnxrt"])
    told = capsys.readouterr().out
    if "does not fail" in told:
        pytest.skip("the ONNX Runtime that is installed does not have this bug any more")
    assert status == 0
    lines = [line for line in told.splitlines() if line.startswith(("may vary ", "must be ", " " * 10))]
    assert any(line.startswith("may vary  length of doubled") and "any of 5 tried" in line for line in lines)
    assert any(line.startswith("must be   type of doubled = low ") for line in lines)
    assert "not float32 (int64, int8 still fail; float32 passes)" in told
    assert "fails where all that may vary is changed at once" in told
    assert told.index("may vary") < told.index("Next")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "r.onnx"]


@pytest.mark.slow
def test_a_check_against_golden_values_says_that_nothing_can_be_varied(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(softmax(), "m.onnx")
    golden = ["--save-inputs", "i.npz", "--save-outputs", "g.npz"]
    assert main(["run", "m.onnx", "--engine", "onnxrt:optimization=none", *golden]) == 0
    loaded = ["--load-inputs", "i.npz", "--load-outputs", "g.npz"]
    assert main([*REDUCE, "--check", "biopsy", "run", "{}", "--engine", "fake:scale.Softmax=1.5", *loaded]) == 0
    assert "may vary  not known: the check compares with recorded values" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--check COMMAND"),
        (("--iter-inputs", "i.npz", "--check", "true"), "--iter-inputs"),
        (("--artifacts", "a", "--check", "true"), "--artifacts"),
        (("--no-remove-intermediate", "--check", "true"), "--no-remove-intermediate"),
    ],
)
def test_what_cannot_be_explained_is_refused_before_anything_is_done(
    tmp_path: Path, monkeypatch, capsys, options: tuple[str, ...], said: str
):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path)
    assert main([*REDUCE, *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "r.onnx").exists()
