"""Models of mixed precision, and what they compute."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from biopsy.questions.precision.formats import FP32, Form, Format
from biopsy.questions.precision.mixed_models import CastModels

Feed = dict[str, np.ndarray]


@pytest.fixture
def cast() -> Callable[..., onnx.ModelProto]:
    """Casts a model: ``high`` are the numbers of the layers that stay high."""

    def made(
        model: onnx.ModelProto, low: Format, form: Form = "emulate", high: set[int] = frozenset(), to: Format = FP32
    ) -> onnx.ModelProto:
        mixed_models = CastModels(model, low, to, form, Path(), {})
        return onnx.ModelProto.FromString(b"".join(mixed_models.parts(frozenset(high))))

    return made


@pytest.fixture
def run() -> Callable[..., list[np.ndarray]]:
    """Runs a model in onnxruntime; ``optimized`` as usual, or not at all."""

    def outputs(model: onnx.ModelProto, feed: Feed, *, optimized: bool = True) -> list[np.ndarray]:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if not optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, feed)

    return outputs
