"""Float64 is the code of onnx's reference evaluator: alone, it shows of no other engine that it is wrong."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from biopsy import events
from biopsy.diagnosis.context import StepContext
from biopsy.diagnosis.facts import Diagnosis, RoundingFacts
from biopsy.diagnosis.following import bundle_job
from biopsy.diagnosis.question import DiagnosisQuestion, resolved_samples
from biopsy.diagnosis.steps import rounding
from biopsy.diagnosis.steps.rounding import judged_by_float64
from biopsy.diagnosis.verdict import verdict_of
from biopsy.engines.registry import PLAIN
from biopsy.engines.runner import Inputs
from biopsy.model.index import index_file
from biopsy.tensors.files import write_feeds
from support.diagnoses import facts, failure, piece
from support.planting import planted as planted

# The standard does not say whether the greatest or the greatest absolute value is meant.
NORMALIZER = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]> g (float[3,2] x) => (float[3,2] y)
{ y = ai.onnx.ml.Normalizer<norm = "MAX">(x) }"""
SOFTMAX = """<ir_version: 8, opset_import: ["" : 17]> g (float[3,2] x) => (float[3,2] y) { y = Softmax(x) }"""


def asked(text: str, folder: Path) -> DiagnosisQuestion:
    path, inputs = folder / "model.onnx", folder / "inputs.safetensors"
    onnx.save(onnx.parser.parse_model(text), path)
    write_feeds(inputs, [{"x": np.array([[1, -2], [-3, -4], [0.5, 0.25]], np.float32)}])
    index = index_file(path)
    samples = resolved_samples(index, Inputs(), folder, [inputs])
    return DiagnosisQuestion(index=index, model=path, folder=folder, engines=("onnxrt",), samples=samples)


def test_where_no_other_engine_agrees_with_float64_nobody_is_wrong_and_no_issue_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounding, "_WITNESSES", PLAIN[:1])  # as where OpenVINO, which sides with onnx, is not installed
    question = asked(NORMALIZER, tmp_path)
    seen = replace(failure(), check=question.original_words(["reference", "onnxrt"]), trusted="reference")
    with StepContext(question, events.ignore) as context:
        wrong, right = judged_by_float64(seen, context)
    assert (wrong, right) == ((), ())
    judged = RoundingFacts(verdicts=("bug",), wrong=wrong, right=right)
    known = facts(failure=seen, rounding=judged, piece=replace(piece("Normalizer"), path=str(question.model)))
    verdict = verdict_of(known, (), question)
    job = bundle_job(
        tmp_path / "bundle",
        question,
        Diagnosis(facts=known, verdict=verdict, steps=(), folder=str(tmp_path), seconds=0),
        b"{}",
    )
    assert "which of the two is wrong is not known" in verdict.text
    assert job is not None and "only the reference evaluator differs" in job.no_issue


@pytest.mark.parametrize("trusted", ["reference", "onnxrt:optimization=none"])
def test_where_another_engine_agrees_with_float64_the_third_is_wrong(
    trusted: str, planted: Callable[..., str], tmp_path: Path
) -> None:
    question, suspect = asked(SOFTMAX, tmp_path), planted({"op": "Softmax", "does": "scale", "by": 1.5})
    with StepContext(question, events.ignore) as context:
        seen = replace(failure(), suspect=suspect, trusted=trusted)
        assert judged_by_float64(seen, context) == ((suspect,), (trusted,))
