"""Failures of two releases: the same one in other words, another one, and a release that cannot read the model."""

import pytest

from biopsy.checks.judge import Signature, signature_of
from biopsy.checks.outcome import Evidence
from biopsy.checks.verdict import VerdictFile
from biopsy.questions.releases.probe import is_too_old, same_across_releases

# As ONNX Runtime has reported microsoft/onnxruntime#23116 up to 1.23.2, and since 1.24.
PLACE = (
    "Exception during initialization: /onnxruntime_src/onnxruntime/core/optimizer/relu_clip_fusion.cc:{line} virtual "
    "onnxruntime::common::Status onnxruntime::FuseReluClip::Apply(onnxruntime::Graph&, onnxruntime::Node&, "
    "onnxruntime::RewriteRule::RewriteRuleEffect&, const onnxruntime::logging::Logger&) const "
    "Unexpected data type for Clip 'min' input of 6"
)
OLD = "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : " + PLACE.format(line=77)
NEW = "[ONNXRuntimeError] : 1 : FAIL : " + PLACE.format(line=83)
OPERATORS = ("Relu", "Clip", "Conv")


def failure(message: str = "", *, stage: str = "build", kind: str = "Fail", status: int = 1) -> Signature:
    verdict = VerdictFile(outcome="fails", engine="onnxrt", stage=stage, kind=kind, message=message, status=status)
    return signature_of(Evidence(status=status, verdict=verdict))


def died(*lines: str, kind: str, said: str) -> Signature:
    traceback = ["Traceback (most recent call last):", '  File "check.py", line 3, in main', *lines, f"{kind}: {said}"]
    return signature_of(Evidence(status=1, output="\n".join(traceback).encode(), scripts=("check.py",)))


def test_a_refusal_is_the_same_although_its_code_its_class_and_its_line_of_the_source_changed() -> None:
    old, new = failure(OLD, kind="RuntimeException"), failure(NEW)
    assert same_across_releases(old, new, OPERATORS)
    assert same_across_releases(new, old, OPERATORS)


def test_it_is_the_same_in_a_script_that_died_of_it_at_the_same_line() -> None:
    line = "    session = onnxruntime.InferenceSession(path)"
    old = died(line, kind="onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException", said=OLD)
    new = died(line, kind="onnxruntime.capi.onnxruntime_pybind11_state.Fail", said=NEW)
    assert same_across_releases(old, new, OPERATORS)
    assert not same_across_releases(old, died("    session.run(None, feed)", kind="Fail", said=NEW), OPERATORS)


@pytest.mark.parametrize(
    "other",
    [
        failure(NEW.replace("Clip", "Relu")),
        failure("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Conv(11) node"),
        failure(NEW, stage="run"),
        failure(NEW, status=-11),
        failure(stage="compare", kind="mismatch"),
        signature_of(Evidence(status=1)),
    ],
    ids=["another operator", "another sentence", "another stage", "a signal", "wrong values", "nothing said"],
)
def test_other_failures_stay_others(other: Signature) -> None:
    assert not same_across_releases(other, failure(OLD, kind="RuntimeException"), OPERATORS)


@pytest.mark.parametrize(
    "message",
    [
        "[ONNXRuntimeError] : 1 : FAIL : Load model failed: ONNX Runtime only *guarantees* support for models stamped "
        "with official released onnx opset versions. Opset 21 is under development and support for this is limited.",
        "[ONNXRuntimeError] : 1 : FAIL : Load model failed: Unsupported model IR version: 10, max supported: 9",
        "[ONNXRuntimeError] : 1 : FAIL : Fatal error: com.microsoft:FusedConv(-1) is not a registered function/op",
    ],
    ids=["opset", "IR version", "operator"],
)
def test_a_release_from_before_the_model_cannot_tell(message: str) -> None:
    found = failure(message)
    assert is_too_old(found, failure(stage="compare", kind="mismatch"))
    assert is_too_old(found, failure(NEW))
    assert is_too_old(found, None)
    assert not is_too_old(found, found)


def test_a_wrong_result_is_never_a_release_that_is_too_old() -> None:
    assert not is_too_old(failure(stage="compare", kind="mismatch"), failure(NEW))
    assert not is_too_old(failure(NEW), failure(stage="compare", kind="mismatch"))
