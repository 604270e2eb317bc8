"""Operators whose inputs a schema gives types of their own, though engines load them in one type only."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from biopsy.questions.precision.mixed_models import in_fp16

MODELS = {
    "RMSNormalization": "g (float[3,4] x, float[4] w) => (float[3,4] y) { y = RMSNormalization (x, w) }",
    "Attention": "g (float[2,9,4,8] q, float[2,3,6,8] k, float[2,3,6,8] v) => (float[2,9,4,8] y) "
    "{ y = Attention (q, k, v) }",
    "MeanVarianceNormalization": "g (float[3,3,3,1] x) => (float[3,3,3,1] y) { y = MeanVarianceNormalization (x) }",
}


@pytest.mark.parametrize("operator", MODELS)
def test_a_model_in_fp16_is_loaded_by_an_engine(operator: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]> {MODELS[operator]}')
    data, _, _ = in_fp16(model, tmp_path)
    assert runtime.InferenceSession(data, providers=["CPUExecutionProvider"]).get_outputs()[0].name == "y"
