"""Names that a person may have meant."""

import pytest

from biopsy.text import similar


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("ort", "onnxrt"), ("OnnxRuntime", "onnxrt"), ("ov", "openvino"), ("tensorrt", "trt"), ("onnxr", "onnxrt")],
)
@pytest.mark.parametrize("dashes", ["", "--"])
def test_what_an_engine_is_called_elsewhere_leads_to_its_name_here(typed: str, meant: str, dashes: str) -> None:
    known = [f"{dashes}{name}" for name in ("trt", "onnxrt", "openvino", "tensor-formats")]
    assert similar(f"{dashes}{typed}", known)[0] == f"{dashes}{meant}"


def test_nothing_is_like_a_word_that_names_nothing() -> None:
    assert similar("ort", ["minutes"]) == []
