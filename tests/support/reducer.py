"""A reduction in one process: a predicate over the nodes of a candidate instead of an engine."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import pytest

from biopsy import reduce
from biopsy.reduction.result import Reduction

Predicate = Callable[[onnx.ModelProto], bool]


@dataclass
class Reducer:
    """Reduces a model with a predicate; remembers every candidate that was checked."""

    folder: Path
    seen: list[onnx.ModelProto] = field(default_factory=list)

    def __call__(self, model: onnx.ModelProto, fails: Predicate, **options: Any) -> Reduction:
        def check(candidate: onnx.ModelProto) -> bool:
            self.seen.append(candidate)
            return fails(candidate)

        return reduce(model, check, self.folder / "reduced.onnx", takes="model", **options)

    @property
    def result(self) -> onnx.ModelProto:
        """The model that was written."""
        return onnx.load(self.folder / "reduced.onnx")


@pytest.fixture
def reducer(tmp_path: Path) -> Reducer:
    return Reducer(tmp_path)
