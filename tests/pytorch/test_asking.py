import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import biopsy.torch  # noqa: E402
from biopsy import errors, events  # noqa: E402
from biopsy.torch.facts import GoldenCount  # noqa: E402
from support import pytorch_faults  # noqa: E402
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


def line_of(text: str) -> int:
    lines = Path(pytorch_faults.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


def test_an_operator_that_is_translated_wrongly_is_named_at_its_line(tmp_path: Path) -> None:
    found = biopsy.torch.diagnose(Mlp().eval(), (X,), export=WRONG_GELU, output=tmp_path / "found")
    assert (found.verdict.blame, found.verdict.part) == ("exporter", "translation")
    (place,) = found.places
    assert (place.file, place.line) == (pytorch_faults.__file__, line_of("hidden = functional.gelu(hidden)"))
    assert (place.code, place.operators) == ("hidden = functional.gelu(hidden)", ("aten.gelu.default",))
    assert found.values == GoldenCount(matched=3, of=3)
    assert found.piece is not None
    assert found.piece.nodes == ("Tanh 'node_gelu'",)
    assert found.piece.bundle == tmp_path / "found" / "bundle"
    issue = (tmp_path / "found" / "bundle" / "ISSUE.md").read_text()
    assert issue.startswith("# torch.onnx translates wrongly: aten.gelu.default")


def test_a_wrong_fusion_is_the_engines_fault_and_named_by_its_operators(tmp_path: Path) -> None:
    found = biopsy.torch.diagnose(NormalizationOfColumns().eval(), (SQUARE,), output=tmp_path / "found")
    assert (found.verdict.blame, found.suspect) == ("engine", "onnxrt")
    assert [place.line for place in found.places] == [
        line_of("mean = x.pow(2).mean(-1)"),
        line_of("return x / torch.sqrt(mean + 1e-5) * self.gain"),
    ]
    assert [place.operators for place in found.places] == [
        ("aten.pow.Tensor_Scalar", "aten.mean.dim"),
        ("aten.add.Tensor", "aten.sqrt.default", "aten.div.Tensor", "aten.mul.Tensor"),
    ]
    assert found.piece is not None
    script = found.piece.bundle / "reproduce.py"
    assert subprocess.run([sys.executable, script], capture_output=True, timeout=60).returncode == 1


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
