"""Whether a wrong tensor inside a model with right outputs is hidden, or wrong only in the copy that is returned."""

from collections.abc import Callable

import onnx
import pytest

from support.examinations import Examine
from support.planting import planted as planted

HEAD = '<ir_version: 9, opset_import: ["" : 17]>'


def model(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEAD} g (float[4,8] x) => (float[4,8] y) {{ {body} }}")


HIDING = model("[square] a = Mul (x, x) [negative] b = Neg (a) [cut] c = Relu (b) [sum] y = Add (c, x)")
SHOWING = model("[square] a = Mul (x, x) [tanh] b = Tanh (a) [sum] y = Add (b, x)")


@pytest.mark.slow
def test_an_error_that_the_rest_of_the_model_hides_is_masked(examine: Examine, planted: Callable[..., str]) -> None:
    findings = examine(HIDING, planted({"op": "negative", "does": "scale"}))
    assert [suspect.labels for suspect in findings.suspects] == [("Neg 'negative'",)]
    assert findings.is_masked and not findings.wrong_if_marked


def test_a_wrong_copy_of_a_tensor_is_no_error_of_the_model(examine: Examine, planted: Callable[..., str]) -> None:
    """The engine returns a wrong value of an inner tensor, and goes on with the right one."""
    findings = examine(SHOWING, planted({"op": "tanh", "does": "scale", "copy": True}))
    assert [suspect.labels for suspect in findings.wrong_if_marked] == [("Tanh 'tanh'",)]
    assert not findings.is_masked


@pytest.mark.slow
def test_a_wrong_copy_of_an_output_is_wrong(examine: Examine, planted: Callable[..., str]) -> None:
    findings = examine(SHOWING, planted({"op": "sum", "does": "scale", "copy": True}))
    assert not findings.has_right_outputs and not findings.wrong_if_marked
