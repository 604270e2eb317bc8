"""Checks that cannot see the failure, or not in most candidates: that is told, and not taken for an answer."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from biopsy.cli.app import main
from biopsy.tensors.files import write_feeds
from support.models import chain, save, seeds_example
from support.predicates import names

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(seeds_example(), tmp_path / "model.onnx")
    other = seeds_example()
    other.graph.node[1].op_type = "Div"
    save(other, tmp_path / "other.onnx")


def test_golden_values_of_outputs_alone_leave_most_candidates_unsaid_and_that_is_told(capsys: Captured) -> None:
    assert main(["run", "other.onnx", "--onnxrt", "--save-inputs", "i.npz", "--save-outputs", "g.npz"]) == 0
    check = ["biopsy", "run", "{}", "--onnxrt", "--load-inputs", "i.npz", "--load-outputs", "g.npz"]
    assert main(["debug", "reduce", "model.onnx", "-o", "r.onnx", "--jobs", "1", "--check", *check]) == 0
    told = capsys.readouterr().out
    assert len(names(onnx.load("r.onnx"))) > 1
    assert "could not say" in told
    assert "with values for them the result may get smaller" in told


def test_a_check_that_compares_mixed_models_with_themselves_is_warned_of(capsys: Captured) -> None:
    save(chain(2), Path("chain.onnx"))
    words = ["debug", "precision", "chain.onnx", "--fp16", "-o", "m.onnx", "--check", "biopsy", "run", "{}", "--onnxrt"]
    main(words)
    assert "cannot see what lower precision loses" in capsys.readouterr().err
    write_feeds(Path("x.npz"), [{"x": np.ones((2, 2), np.float32)}])
    main(["run", "chain.onnx", "--onnxrt", "--load-inputs", "x.npz", "--save-outputs", "y.npz"])
    main([*words, "--load-inputs", "x.npz", "--load-outputs", "y.npz", "--atol", "1e-2"])
    assert "cannot see what lower precision loses" not in capsys.readouterr().err
