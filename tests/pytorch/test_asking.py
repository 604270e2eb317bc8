import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import biopsy.torch  # noqa: E402
from biopsy import errors, events  # noqa: E402
from support.pytorch_faults import (  # noqa: E402
    BranchOnData,
    ForgottenTraining,
    Mlp,
    NormalizationOfColumns,
)

pytestmark = pytest.mark.torch

X = torch.linspace(-2, 2, 24).reshape(3, 8)
SQUARE = torch.from_numpy(np.random.default_rng(0).standard_normal((8, 8), dtype=np.float32))


def wrong_gelu(x, approximate="none"):
    """An operator translated into another one."""
    from onnxscript import opset18

    return opset18.Tanh(x)


WRONG_GELU = {"custom_translation_table": {torch.ops.aten.gelu.default: wrong_gelu}}


def test_nothing_fails() -> None:
    found = biopsy.torch.diagnose(Mlp().eval(), (X,))
    assert (found.verdict.blame, found.failed, found.mismatches) == ("passes", False, ())


def test_dropout_without_training_is_the_modules_own_fault() -> None:
    found = biopsy.torch.diagnose(ForgottenTraining().eval(), (X,))
    assert (found.verdict.blame, found.failed) == ("varies", True)
    assert found.error


def test_a_module_that_cannot_be_captured_says_what_torch_says() -> None:
    found = biopsy.torch.diagnose(BranchOnData().eval(), (X,))
    assert found.verdict.blame == "capture"
    assert "data-dependent" in found.verdict.text


def test_an_operator_that_is_translated_wrongly_is_the_exporters_fault() -> None:
    found = biopsy.torch.diagnose(Mlp().eval(), (X,), export=WRONG_GELU)
    assert (found.verdict.blame, found.verdict.part) == ("exporter", "translation")


def test_a_wrong_fusion_is_the_engines_fault() -> None:
    found = biopsy.torch.diagnose(NormalizationOfColumns().eval(), (SQUARE,))
    assert found.verdict.blame == "engine"
    assert found.suspect == "onnxrt"


def test_training_mode_is_refused() -> None:
    with pytest.raises(errors.UsageError, match="training mode") as refused:
        biopsy.torch.diagnose(Mlp(), (X,))
    assert refused.value.next_steps == ("module.eval()",)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(errors.UsageError, match="Module"):
        biopsy.torch.diagnose(torch.sin, (X,))


def test_a_module_that_raises_is_no_verdict() -> None:
    with pytest.raises(errors.CannotCompare, match="RuntimeError: mat1 and mat2"):
        biopsy.torch.diagnose(Mlp().eval(), (torch.zeros(3, 5),))


def test_what_was_found_is_plain_json() -> None:
    told: list[events.Event] = []
    found = biopsy.torch.diagnose(Mlp().eval(), (X,), export=WRONG_GELU, listener=told.append)
    tree = json.loads(json.dumps(found.as_json()))
    assert tree["blame"] == "exporter"
    assert [step["name"] for step in tree["steps"]] == [e.name for e in told if isinstance(e, events.StepDone)]
