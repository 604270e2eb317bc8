"""Examines a model with the fake engine or a real one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from biopsy import events
from biopsy.engines.runner import Inputs, feeds_for
from biopsy.model.index import index_file
from biopsy.questions.layers.examination import Examination
from biopsy.questions.layers.findings import LayerFindings
from biopsy.questions.layers.question import Question
from support.examinations import REFERENCE, Examine
from support.models import save

RANDOM = Inputs()


@pytest.fixture
def examine(tmp_path: Path) -> Examine:
    """Examines a model, given as a proto or a path. ``inputs`` are random unless feeds are given."""

    def run(made: onnx.ModelProto | Path, suspect: str, inputs: Inputs = RANDOM, **more: Any) -> LayerFindings:
        path = made if isinstance(made, Path) else save(made, tmp_path / "model.onnx")
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        index = index_file(path)

        def feeds(wanted: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
            return feeds_for(wanted, inputs).feeds

        listener = more.pop("listener", events.ignore)
        question = Question(
            index=index,
            reference=REFERENCE,
            suspect=suspect,
            feeds=feeds,
            limit=10**9,
        )
        return Examination(replace(question, **more), scratch, listener).run()

    return run
