"""Command lines that would ruin a reduction, or a file of the user, are refused before anything is written."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from biopsy.cli.app import main
from biopsy.tensors.files import write_feeds
from support.models import chain, save, seeds_example

LOOK = ("--fail-regex", "Op: Mul", "--check", "biopsy", "inspect", "model", "{}", "--mode=basic")


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(seeds_example(), tmp_path / "model.onnx")
    return tmp_path


def reduce(*words: str) -> int:
    return main(["debug", "reduce", *words])


@pytest.mark.parametrize(
    "words",
    [
        ("--iter-artifact", "model.onnx"),
        ("--iter-artifact", "./result.onnx"),
        ("--iter-info", "model.onnx"),
        ("--iter-inputs", "./model.onnx"),
        ("--events", "model.onnx"),
        ("--min-good", "model.onnx"),
        ("--min-good", "result.onnx"),
        ("--load-inputs", "inputs.json", "--iter-inputs", "inputs.json"),
        ("--artifacts", "model.onnx"),
        ("--artifacts", "polygraphy_debug.onnx", "inputs.json", "--load-inputs", "inputs.json"),
        ("--artifacts", "result.onnx"),
        ("--artifacts", "events.json", "--events", "events.json"),
    ],
)
def test_a_file_with_two_tasks_is_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    original = Path("model.onnx").read_bytes()
    write_feeds("inputs.json", [{"X0": np.ones((1, 3, 8, 8), np.float32), "Y0": np.ones((1, 3, 8, 8), np.float32)}])
    inputs = Path("inputs.json").read_bytes()
    assert reduce("model.onnx", "-o", "result.onnx", *words, *LOOK) == 2
    assert "it would be" in capsys.readouterr().err
    assert Path("model.onnx").read_bytes() == original
    assert Path("inputs.json").read_bytes() == inputs
    assert not Path("result.onnx").exists()


def test_a_model_of_the_candidates_name_is_not_removed():
    save(seeds_example(), Path("polygraphy_debug.onnx"))
    assert reduce("polygraphy_debug.onnx", "-o", "result.onnx", *LOOK) == 2
    assert Path("polygraphy_debug.onnx").exists()


def test_a_model_is_not_replaced_by_what_it_is_reduced_to():
    before = Path("model.onnx").read_bytes()
    assert reduce("model.onnx", "-o", "model.onnx", *LOOK) == 2
    assert Path("model.onnx").read_bytes() == before


def test_a_place_where_no_candidate_can_be_written_is_told_at_once(capsys: pytest.CaptureFixture[str]):
    assert reduce("model.onnx", "-o", "result.onnx", "--iter-artifact", "model.onnx/c.onnx", *LOOK) == 2
    assert "--iter-artifact FILE" in capsys.readouterr().err


def golden(culprit: int, words: tuple[str, ...] = ()) -> None:
    """A chain, and golden values of a variant in which one node computes something else."""
    ops = ["Sigmoid", "Tanh", "Softplus", "Abs", "Sigmoid", "Identity"]
    save(chain(6, ops), Path("chain.onnx"))
    ops[culprit] = "Cos"
    save(chain(6, ops), Path("wrong.onnx"))
    assert main(["run", "wrong.onnx", "--onnxrt", "--save-inputs", "in.npz", *words, "--save-outputs", "out.npz"]) == 0


CHECK = ("--check", "biopsy", "run", "{}", "--onnxrt", "--load-outputs", "out.npz")


def test_golden_values_without_their_inputs_would_blame_any_node(capsys: pytest.CaptureFixture[str]):
    golden(2)
    assert reduce("chain.onnx", "-o", "result.onnx", *CHECK) == 2
    assert "biopsy data to-input" in capsys.readouterr().err
    assert not Path("result.onnx").exists()


def test_golden_values_without_their_inputs_may_reduce_from_the_end():
    golden(2, ("--onnx-outputs", "mark", "all"))
    assert reduce("chain.onnx", "-o", "result.onnx", "--no-reduce-inputs", *CHECK) == 0
    assert [node.name for node in onnx.load("result.onnx").graph.node] == ["n0", "n1", "n2"]


@pytest.mark.slow
def test_inputs_that_another_reduction_left_are_not_taken_for_those_of_the_model():
    golden(2, ("--onnx-outputs", "mark", "all"))
    for _ in range(2):
        assert (
            reduce("chain.onnx", "-o", "result.onnx", "--iter-inputs", "ii.npz", *CHECK, "--load-inputs", "ii.npz") == 0
        )
        assert [node.name for node in onnx.load("result.onnx").graph.node] == ["n2"]
