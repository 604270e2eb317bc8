"""What is left of a model that one engine refuses stays valid: OpenVINO converts no STFT whose step is computed.

Its refusal of a part says nothing of what that part has lost: without "l", the STFT has neither a window nor a length.
"""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest

from biopsy import errors, events
from biopsy.checks.outcome import Judged
from biopsy.comparison.mismatch import Mismatch
from biopsy.diagnosis.context import StepContext, TimeUpError
from biopsy.diagnosis.facts import KnownFacts
from biopsy.diagnosis.question import DiagnosisQuestion, Words, resolved_samples
from biopsy.diagnosis.steps.parts import _require_same_failure, may_vary, smallest_piece
from biopsy.engines.runner import Inputs
from biopsy.model.index import index_file
from biopsy.tensors.files import read_feeds, write_feeds
from support.diagnoses import facts, failure

TEXT = """<ir_version: 9, opset_import: ["" : 17]> spectrum (float[1,32,1] x, int64 step) => (float[1,5,5,2] y) {
  a = Relu(x)
  l = Constant<value = int64 {16}>()
  s = Identity(step)
  z = STFT(a, s, , l)
  y = Tanh(z)
}"""


def refused(tmp_path: Path) -> tuple[KnownFacts, DiagnosisQuestion]:
    """What is known of the model after OpenVINO has refused it."""
    path, inputs = tmp_path / "model.onnx", tmp_path / "inputs.safetensors"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    signal = np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 32, 1)
    write_feeds(inputs, [{"x": signal, "step": np.array(4)}])
    index, engines = index_file(path), ("onnxrt", "openvino")
    samples = resolved_samples(index, Inputs(), tmp_path, [inputs])
    question = DiagnosisQuestion(index=index, model=path, folder=tmp_path, engines=engines, samples=samples)
    seen = failure("OpConversionFailure", "load")
    check = question.original_words(["openvino"])
    seen = replace(seen, check=check, suspect="openvino", trusted="onnxrt")
    return facts(failure=seen, piece=None, rounding=None, layers=None), question


def test_the_piece_of_a_refusal_and_its_plain_form_run_in_the_other_engine(tmp_path: Path) -> None:
    known, question = refused(tmp_path)
    with StepContext(question, events.ignore) as context:
        for step in (smallest_piece, may_vary):
            known = step.answer(known, context).facts
    assert known.piece is not None and known.piece.plain is not None
    for part in (known.piece.path, known.piece.plain):
        assert [node.op_type for node in onnx.load(part).graph.node if node.op_type != "Constant"] == ["STFT"]
        (feed,) = read_feeds(Path(f"{part}.inputs.safetensors"))
        assert onnxruntime.InferenceSession(part).run(None, dict(feed))


class NoTimeForMore(StepContext):
    """The step's time is over once the search has ended."""

    def run(self, words: Words, model: Path, *, description: str = "", share: float = 1.0) -> Judged:
        raise TimeUpError


def test_a_piece_is_kept_for_which_the_time_of_the_step_has_sufficed(tmp_path: Path) -> None:
    known, question = refused(tmp_path)
    with NoTimeForMore(question, events.ignore) as context:
        known = smallest_piece.answer(known, context).facts
    assert known.piece is not None and known.piece.nodes == ("STFT #3",)


def test_a_piece_of_another_failure_is_none_of_the_model() -> None:
    crashed = Mock(error_after=None, signature="run · SIGABRT · onnxrt")
    _require_same_failure(failure("OpConversionFailure", "load"), crashed)
    seen = replace(failure(), mismatch=Mismatch(output="y"))
    with pytest.raises(errors.CheckError, match="met another failure first"):
        _require_same_failure(seen, crashed)
