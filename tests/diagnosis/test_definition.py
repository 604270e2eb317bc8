"""What the definitions of operators say of a shape that the model does not declare, and of NaN.

The shape is that of a pooling which OpenVINO makes one window larger: before opset 22, the text of MaxPool, and so
shape inference, counts a window that begins behind the input. ONNX Runtime's MeanVarianceNormalization lacks the
epsilon of the function by which ONNX defines it.
"""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import pytest

from biopsy import events
from biopsy.comparison.mismatch import ErrorSize, Mismatch
from biopsy.diagnosis.context import StepContext
from biopsy.diagnosis.facts import DefinitionFacts, Diagnosis, KnownFacts
from biopsy.diagnosis.following import bundle_job
from biopsy.diagnosis.question import DiagnosisQuestion, resolved_samples
from biopsy.diagnosis.steps.rest import rest_of_model
from biopsy.diagnosis.steps.undefined import body_value, definition
from biopsy.diagnosis.verdict import verdict_of
from biopsy.diagnosis.ways_out import ways_out
from biopsy.engines.runner import Inputs
from biopsy.model.index import index_file
from biopsy.questions.variation.features import FedModel
from biopsy.questions.variation.plain import in_newest_opset
from biopsy.tensors.files import write_feeds
from support.diagnoses import TRUSTED, facts, failure, piece, question

TEXT = """<ir_version: 9, opset_import: ["" : 18]> pooled (float[1,1,4,4] x) => (float[1,1,h,w] z) {
  ["first"] a = Relu(x)
  ["pool"] y = MaxPool<ceil_mode = 1, kernel_shape = [1, 1], strides = [2, 2]>(a)
  ["last"] z = Neg(y)
}"""
FORMS = {"form": "[1, 1, 3, 3]", "expected_form": "[1, 1, 2, 2]"}


def known_of(model: onnx.ModelProto, folder: Path) -> tuple[KnownFacts, DiagnosisQuestion]:
    """What is known of the model in OpenVINO after its pooling was found."""
    path, part = folder / "model.onnx", folder / "piece.onnx"
    onnx.save(model, path)
    onnx.utils.extract_model(str(path), str(part), ["a"], ["y"])
    inputs = part.with_name("piece.onnx.inputs.safetensors")
    write_feeds(inputs, [{"a": np.ones((1, 1, 4, 4), np.float32)}])
    index = index_file(path)
    engines = (TRUSTED, "openvino")
    samples = resolved_samples(index, Inputs(), folder)
    asked = DiagnosisQuestion(index=index, model=path, folder=folder, engines=("openvino",), samples=samples)
    seen = replace(failure("shape-mismatch"), check=asked.original_words(engines), suspect="openvino")
    seen = replace(
        seen, report=replace(seen.report, engine="openvino"), mismatch=Mismatch(output="z", kind="shape-mismatch")
    )
    error = ErrorSize(Mismatch(output="y", kind="shape-mismatch", **FORMS))
    found = replace(piece("MaxPool 'pool'"), path=str(part), inputs=str(inputs), kept=(1,), error=error)
    return facts(failure=seen, rounding=None, piece=found, layers=None), asked


def asked_of(known: KnownFacts, question: DiagnosisQuestion) -> KnownFacts:
    with StepContext(question, events.ignore) as context:
        assert definition.reason_to_skip(known, context) is None
        return definition.answer(known, context).facts


def test_the_text_of_a_later_opset_decides_and_another_engine_is_a_way_out(tmp_path: Path) -> None:
    known, question = known_of(onnx.parser.parse_model(TEXT), tmp_path)
    part = known.piece
    assert part is not None
    raised = in_newest_opset(FedModel(onnx.load(part.path)))
    assert raised is not None and in_newest_opset(raised) is None
    raised.model.graph.output[0].type.tensor_type.ClearField("shape")
    plain = tmp_path / "plain.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(raised.model), plain)
    write_feeds(plain.with_name("plain.onnx.inputs.safetensors"), [{"a": np.ones((1, 1, 4, 4), np.float32)}])
    known = asked_of(replace(known, piece=replace(part, plain=str(plain))), question)
    assert known.definition is not None and known.definition.right == "trusted"
    assert any(way.text.startswith("Another engine: ONNX Runtime runs the model") for way in ways_out(known, question))
    assert verdict_of(known, (), question).reasons[0] == (
        "It fails in opset 22 as in opset 18. In opset 22, the shape inference of onnx gives the shape of ONNX Runtime "
        "(all graph optimizations disabled), and so does its reference evaluator; in opset 18, inference gives the "
        "shape of OpenVINO."
    )


def test_what_inference_and_the_evaluator_of_onnx_dispute_is_called_open(tmp_path: Path) -> None:
    known = asked_of(*known_of(onnx.parser.parse_model(TEXT), tmp_path))
    assert known.definition is not None and known.definition.right == ""
    assert known.definition.sentence == (
        "Which of the two shapes is right is not decided. In opset 18, the shape inference of onnx gives the shape of "
        "OpenVINO, and its reference evaluator the shape of ONNX Runtime (all graph optimizations disabled)."
    )


def test_the_reference_evaluator_is_no_witness_of_its_own_shape(tmp_path: Path) -> None:
    text = TEXT.replace("18", "22", 1)
    known, question = known_of(onnx.parser.parse_model(text), tmp_path)
    known = asked_of(replace(known, failure=replace(known.known_failure, trusted="reference")), question)
    told = "In opset 22, the shape inference of onnx gives the shape of the reference evaluator of onnx."
    assert known.definition == DefinitionFacts(right="trusted", sentence=told)


def test_no_issue_is_written_about_an_engine_whose_shape_is_right(tmp_path: Path) -> None:
    known, question = known_of(onnx.parser.parse_model(TEXT), tmp_path)
    known = replace(known, definition=DefinitionFacts(right="suspect", sentence="It is."))
    verdict = verdict_of(known, (), question)
    diagnosis = Diagnosis(verdict=verdict, steps=(), facts=known, folder=str(tmp_path), seconds=1.0)
    job = bundle_job(tmp_path / "bundle", question, diagnosis, b"{}")
    assert job is not None and job.no_issue == "the shape that OpenVINO gives is right"


def test_the_rest_is_fed_with_a_value_whose_shape_inference_denies(tmp_path: Path) -> None:
    known, question = known_of(onnx.parser.parse_model(TEXT), tmp_path)
    with StepContext(question, events.ignore) as context:
        rest = rest_of_model.answer(known, context).facts.rest
    assert rest is not None and (rest.answer, rest.fed_by) == ("passes", TRUSTED), rest


def test_nan_is_held_against_float64_and_the_body_of_the_function(tmp_path: Path) -> None:
    text = '<ir_version: 9, opset_import: ["" : 18]> g (float[1,1,2,2] x) => (float[1,1,2,2] y)'
    part = tmp_path / "piece.onnx"
    onnx.save(onnx.parser.parse_model(f"{text} {{ y = MeanVarianceNormalization<axes = [2, 3]>(x) }}"), part)
    inputs = tmp_path / "inputs.safetensors"
    write_feeds(inputs, [{"x": np.ones((1, 1, 2, 2), np.float32)}])
    error = ErrorSize(Mismatch(output="y", kind="nan-mismatch"))
    found = replace(piece("MeanVarianceNormalization 'n'"), path=str(part), inputs=str(inputs), error=error)
    seen = replace(failure("nan-mismatch"), trusted="reference")
    known = asked_of(facts(failure=seen, piece=found), question())
    assert known.definition is not None and known.definition.sentence == (
        "With inputs that are all 1, float64 gives 0 at [0, 0, 0, 0], where ONNX Runtime gives nan. ONNX defines "
        "MeanVarianceNormalization as a function, and the body of that gives 0 there."
    )
    assert not definition.unless(known, Mock())["neither NaN nor a shape that the model does not declare"]


@pytest.mark.parametrize(
    ("opset", "node", "expected"),
    [
        (18, "y = MeanVarianceNormalization(x)", [[[[0.0, 0.0]]]]),
        (13, "y = Softmax<axis = 3>(x)", [[[[0.5, 0.5]]]]),  # its body depends on its inputs
        (12, "y = Softmax<axis = 3>(x)", None),
        (13, "y = Clip(x, , x)", [[[[3.0, 3.0]]]]),  # the second input is left out
        (18, "y = Cos(x)", None),
    ],
)
def test_the_body_of_a_function_is_evaluated_with_the_defaults_of_its_attributes(
    opset: int, node: str, expected: list[object] | None
) -> None:
    text = f'<ir_version: 9, opset_import: ["" : {opset}]> g (float[1,1,1,2] x) => (float[1,1,1,2] y) {{ {node} }}'
    value = body_value(onnx.parser.parse_model(text), {"x": np.full((1, 1, 1, 2), 3, np.float32)})
    assert (None if value is None else value.tolist()) == expected
