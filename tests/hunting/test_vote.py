"""Who is right where engines agree with each other, but not with ONNX Runtime without its optimizer."""

from pathlib import Path

import numpy as np

from biopsy.engines.base import Engine
from biopsy.hunting.vote import Vote
from biopsy.model.index import index_file
from biopsy.tensors.results import Iteration, RunnerResult
from support.models import chain, save


def result(spec: str, value: float) -> RunnerResult:
    return RunnerResult(spec, (Iteration({"y": np.full((2, 3), value, np.float32)}),))


def kinds(folder: Path, **values: float) -> dict[str, str]:
    """The kind of each engine's cell, where whatever else is run gives 1."""

    def run(engine: Engine, roundings: int = 0, seed: int = 0) -> RunnerResult:
        return result(engine.label, 1.0)

    vote = Vote(index=index_file(save(chain(1), folder / "m.onnx")), run=run, inner=lambda name: None)
    cells = vote.cells({spec: result(spec, value) for spec, value in values.items()}, None)
    return {spec: cell.kind for spec, cell in cells.items()}


def test_engines_that_are_wrong_alike_are_both_wrong(tmp_path: Path) -> None:
    assert kinds(tmp_path, onnxrt=2.0, openvino=2.0) == {"onnxrt": "wrong", "openvino": "wrong"}


def test_of_two_engines_the_one_that_differs_from_both_plain_ones_is_wrong(tmp_path: Path) -> None:
    assert kinds(tmp_path, onnxrt=1.0, openvino=2.0) == {"onnxrt": "right", "openvino": "wrong"}
    assert kinds(tmp_path, onnxrt=2.0, openvino=1.0) == {"onnxrt": "wrong", "openvino": "right"}
