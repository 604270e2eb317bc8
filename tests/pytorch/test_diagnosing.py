import json
import linecache
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import biopsy.torch  # noqa: E402
from biopsy import errors, events  # noqa: E402
from biopsy.torch import diagnosing, evaluation  # noqa: E402
from biopsy.torch.facts import GoldenCount  # noqa: E402
from support import pytorch_faults  # noqa: E402
from support.pytorch_faults import (  # noqa: E402
    Attention,
    Branches,
    BranchOnData,
    Counting,
    Deep,
    ForgottenTraining,
    Largest,
    Layers,
    LeftOutInCapture,
    Mlp,
    Nested,
    NormalizationOfColumns,
    OwnOperator,
    RoundedIntegers,
)

pytestmark = pytest.mark.torch

X = torch.linspace(-2, 2, 24).reshape(3, 8)
SQUARE = torch.from_numpy(np.random.default_rng(0).standard_normal((8, 8), dtype=np.float32))


NOTEBOOK = """import torch
class Varying(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.5)
"""


def wrong_gelu(x, approximate="none"):
    """An operator translated into another one."""
    from onnxscript import opset18

    return opset18.Tanh(x)


WRONG_GELU = {"custom_translation_table": {torch.ops.aten.gelu.default: wrong_gelu}}


def test_nothing_fails() -> None:
    found = biopsy.torch.diagnose(Mlp().eval(), (X,))
    assert (found.verdict.blame, found.failed, found.mismatches) == ("passes", False, ())


def test_dropout_without_training_is_named_at_its_line() -> None:
    found = biopsy.torch.diagnose(ForgottenTraining().eval(), (X,))
    assert (found.verdict.blame, found.failed) == ("varies", True)
    (place,) = found.places
    assert place.line == line_of("hidden = functional.dropout(self.first(x), 0.5)")
    assert place.operators == ("aten.bernoulli_.float",)
    assert found.error


def test_a_module_that_cannot_be_captured_says_what_torch_says() -> None:
    found = biopsy.torch.diagnose(BranchOnData().eval(), (X,))
    assert found.verdict.blame == "capture"
    assert "data-dependent" in found.verdict.text
    assert found.places[0].line == line_of("if self.first(x).sum() > 0:")


def test_what_is_captured_is_held_against_the_module() -> None:
    found = biopsy.torch.diagnose(LeftOutInCapture().eval(), (X,))
    assert (found.verdict.blame, found.failed) == ("capture", True)
    assert found.mismatches
    (place,) = found.places
    assert place.line == line_of("return x * (1.0 if torch.compiler.is_compiling() else 2.0)")
    assert place.operators == ("aten.mul.Tensor",)


def test_the_fast_path_of_attention_is_told_from_a_wrong_capture(tmp_path: Path) -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    padding = torch.tensor([[False, False, True]])
    module = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=True).eval()
    found = biopsy.torch.diagnose(
        module, (X.reshape(1, 3, 8),), {"src_key_padding_mask": padding}, output=tmp_path / "found"
    )
    assert found.verdict.blame == "capture"
    assert "set_fastpath_enabled(False)" in found.verdict.text
    assert found.places[0].operators == ("torch.nn.TransformerEncoder",)
    assert torch.backends.mha.get_fastpath_enabled()
    assert found.folder is None and not (tmp_path / "found").exists()  # there was nothing to keep


def test_a_part_in_training_mode_is_named() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).eval()
    module[1].train()
    found = biopsy.torch.diagnose(module, (X,))
    assert found.verdict.blame == "varies"
    assert "In training mode: 1; module.eval()" in found.verdict.text


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
    assert found.piece is not None and (found.piece.path, found.piece.inputs) == (None, None)  # nothing was kept
    code = found.places[0].code
    assert code is not None and code in found._repr_html_()


def test_a_cell_of_a_notebook_is_a_file_with_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, name = NOTEBOOK.splitlines(keepends=True), "/tmp/ipykernel_1/2.py"
    monkeypatch.setitem(linecache.cache, name, (len(NOTEBOOK), None, cell, name))
    held: dict[str, Any] = {}
    exec(compile(NOTEBOOK, name, "exec"), held)
    found = biopsy.torch.diagnose(held["Varying"]().eval(), X)
    (place,) = found.places
    assert (place.file, place.code) == (name, "return torch.nn.functional.dropout(x, 0.5)")
    assert place.code is not None and place.code in found._repr_html_()


def test_outputs_that_are_renamed_and_nested_inputs_are_told_apart() -> None:
    export = {
        **WRONG_GELU,
        "input_names": ["features", "first", "second"],
        "output_names": ["back", "values", "indices", "flags"],
    }
    given = X.clone()
    found = biopsy.torch.diagnose(Nested().eval(), (given,), {"pair": {"left": X, "right": X - 1}}, export=export)
    assert (found.verdict.blame, found.verdict.part) == ("exporter", "translation")
    assert found.mismatches[0].output == "values"
    assert found.places[0].line == line_of("top = functional.gelu(shifted).max(dim=1)")
    assert torch.equal(given, X), "the module changes its arguments: not those of the caller"


def test_nested_inputs_and_outputs_pass() -> None:
    found = biopsy.torch.diagnose(Nested().eval(), (X,), {"pair": {"left": X, "right": X - 1}, "scale": None})
    assert found.verdict.blame == "passes"


def test_a_loop_is_one_line_and_its_part_is_named() -> None:
    found = biopsy.torch.diagnose(Layers().eval(), (X,), export=WRONG_GELU)
    assert found.verdict.blame == "exporter"
    assert {place.line for place in found.places} == {line_of("x = functional.gelu(part(x))")}


def test_a_branch_is_measured_as_a_whole() -> None:
    found = biopsy.torch.diagnose(Branches().eval(), (-SQUARE.abs(),), export=WRONG_GELU)
    assert found.verdict.blame == "exporter"
    assert found.piece is not None
    assert found.piece.nodes == ("If 'node_cond__0'",)
    assert "higher_order.cond" in found.places[0].operators
    assert found.places[0].file == pytorch_faults.__file__


def test_the_other_branch_is_right() -> None:
    found = biopsy.torch.diagnose(Branches().eval(), (SQUARE.abs(),), export=WRONG_GELU)
    assert found.verdict.blame == "passes"


def test_an_operator_of_ones_own_is_translated_wrongly_at_its_line() -> None:
    from onnxscript import opset18

    def minus(x, by):
        return opset18.Sub(x, opset18.Constant(value_float=1.0))

    export = {"custom_translation_table": {torch.ops.biopsy_tests.shifted.default: minus}}
    found = biopsy.torch.diagnose(OwnOperator().eval(), (X,), export=export)
    assert (found.verdict.blame, found.verdict.part) == ("exporter", "translation")
    assert found.places[0].line == line_of("hidden = shifted(self.first(x), 1.0)")
    assert found.places[0].operators == ("biopsy_tests.shifted.default",)


def test_an_operator_without_a_translation_is_what_the_exporter_says() -> None:
    found = biopsy.torch.diagnose(OwnOperator().eval(), (X,))
    assert (found.verdict.blame, found.failed) == ("exporter", True)
    assert "biopsy_tests.shifted" in found.verdict.text
    assert "ConversionError" not in found.verdict.text  # what wraps the error is not told
    assert found.places[0].line == line_of("hidden = shifted(self.first(x), 1.0)")


def test_attention_with_a_row_that_is_masked_as_a_whole() -> None:
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()
    found = biopsy.torch.diagnose(Attention().eval(), (torch.arange(64.0).reshape(1, 2, 4, 8) / 64, mask))
    if found.verdict.blame == "passes":
        pytest.skip(f"torch {torch.__version__} translates it rightly")
    assert (found.verdict.blame, found.verdict.part) == ("exporter", "translation")
    assert found.places[0].operators == ("aten.scaled_dot_product_attention.default",)
    assert found.places[0].code == "return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)"


def test_sizes_that_are_open_are_tried_with_others() -> None:
    found = biopsy.torch.diagnose(Mlp().eval(), (X,), dynamic_shapes=({0: "batch"},))
    assert found.verdict.blame == "passes"
    assert "[4, 8]" in found.verdict.text


def test_rounding_of_half_precision_is_a_matter_of_tolerances() -> None:
    x = SQUARE.repeat(1, 4).half()
    for tolerances, blame in (({}, "passes"), ({"atol": 1e-5}, "tolerance"), ({"atol": 0.1, "rtol": 0.1}, "passes")):
        assert biopsy.torch.diagnose(Deep(torch.float16).eval(), (x,), **tolerances).verdict.blame == blame


def test_a_wrong_translation_shows_in_half_precision_too() -> None:
    x = SQUARE.repeat(1, 4).half()
    found = biopsy.torch.diagnose(Deep(torch.float16).eval(), (x,), export=WRONG_GELU)
    assert found.verdict.blame == "exporter"


def test_equal_values_in_another_order_are_nobodys_fault() -> None:
    ties = torch.tensor([[0.0, 1, 1, 0, 1, 1, 1, 0], [2, 2, 2, 2, 2, 2, 2, 2]])
    assert biopsy.torch.diagnose(Largest().eval(), (ties,)).verdict.blame == "passes"


def test_an_invalid_model_is_the_exporters_fault_whatever_an_engine_says() -> None:
    found = biopsy.torch.diagnose(RoundedIntegers().eval(), (torch.arange(8),))
    if found.verdict.blame == "passes":
        pytest.skip(f"torch {torch.__version__} translates it rightly")
    assert (found.verdict.blame, found.verdict.part) == ("exporter", "translation")
    assert "invalid" in found.verdict.text


def test_nan_and_infinity_are_values_like_others() -> None:
    class Logarithm(torch.nn.Module):
        def forward(self, x):
            return torch.log(x)

    found = biopsy.torch.diagnose(Logarithm().eval(), (torch.tensor([-1.0, 0.0, 1.0, float("inf")]),))
    assert found.verdict.blame == "passes"


def test_the_module_is_left_as_it_was() -> None:
    module = Counting().eval()
    module.norm.train()
    module.norm.weight.grad = gradient = torch.ones(8)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.random.get_rng_state()
    found = biopsy.torch.diagnose(module, (X,))
    assert found.verdict.blame in ("passes", "exporter", "capture")
    assert any("buffers" in remark for remark in found.remarks)
    after = module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (module.training, module.norm.training, module.norm.weight.grad is gradient) == (False, True, True)
    assert module.last is None
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(errors.UsageError, match="not empty"):
        biopsy.torch.diagnose(Mlp().eval(), (X,), output=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


@pytest.mark.parametrize(
    ("export", "said"),
    [
        ({"dynamo": False}, "older exporter"),
        ({"optimise": True}, "no such option"),
        ({"f": "x.onnx"}, "no such option"),
    ],
)
def test_options_that_the_exporter_does_not_take_are_not_its_fault(export: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.UsageError, match=said):
        biopsy.torch.diagnose(Mlp().eval(), (X,), export=export)


def test_an_engine_that_is_none_is_refused() -> None:
    with pytest.raises(errors.UnknownEngine):
        biopsy.torch.diagnose(Mlp().eval(), (X,), suspect="onnxruntine")


def test_what_the_time_does_not_suffice_for_is_open() -> None:
    found = biopsy.torch.diagnose(Mlp().eval(), (X,), export=WRONG_GELU, max_time=1e-6)
    assert (found.verdict.blame, found.failed) == ("unknown", None)
    assert found.verdict.reason.startswith("open, for the time was over: steady, capture, ")
    assert [step.outcome for step in found.steps] == ["stopped"]


def test_a_verdict_is_kept_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = False

    class Ending(evaluation.TimeLeft):
        @property
        def seconds(self) -> float | None:
            return 0.0 if is_over else None

    def told(event: events.Event) -> None:
        nonlocal is_over
        is_over |= isinstance(event, events.StepStarted) and event.name == "layers"

    monkeypatch.setattr(diagnosing, "TimeLeft", Ending)
    found = biopsy.torch.diagnose(Mlp().eval(), (X,), export=WRONG_GELU, listener=told)
    assert (found.verdict.blame, found.verdict.part, found.failed) == ("exporter", "translation", True)
    assert found.verdict.reason == "open, for the time was over: layers, piece, bundle, further"
    assert found.piece is None


def test_a_run_that_ends_with_the_time_is_nobodys_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ending(evaluation.TimeLeft):
        asked = 0

        @property
        def seconds(self) -> float | None:
            return 0.0 if self.asked > 0 else None

        def for_run(self, timeout: float | None) -> float | None:
            type(self).asked += 1
            return 1e-9

    monkeypatch.setattr(diagnosing, "TimeLeft", Ending)
    found = biopsy.torch.diagnose(Mlp().eval(), (X,))
    assert (found.verdict.blame, found.failed) == ("unknown", None)
    assert found.steps[-1].name == "engine"


class Seeded(torch.nn.Module):
    def forward(self, x):
        torch.manual_seed(0)
        return x + torch.rand(8)


def test_random_numbers_of_a_seed_of_ones_own_are_not_the_exporters_fault() -> None:
    found = biopsy.torch.diagnose(Seeded().eval(), (X,))
    assert (found.verdict.blame, found.failed) == ("varies", True)
    assert found.places[0].code == "return x + torch.rand(8)"


class TwoPlanes(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Planes(torch.nn.Module):
    def forward(self, planes):
        return TwoPlanes(planes.right * 2, planes.left - 1)


def test_named_tuples_are_arguments_like_others() -> None:
    found = biopsy.torch.diagnose(Planes().eval(), (TwoPlanes(X, X + 1),))
    assert found.verdict.blame == "passes"


@dataclass
class Held:
    values: torch.Tensor


class Changing(torch.nn.Module):
    def forward(self, held):
        return held.values.add_(1) * 2


def test_arguments_in_an_object_are_copied_too() -> None:
    held = Held(X.clone())
    found = biopsy.torch.diagnose(Changing().eval(), (held,))
    assert found.steps[0].answer == "yes"
    assert torch.equal(held.values, X)


def test_a_module_without_values_is_refused() -> None:
    with pytest.raises(errors.UsageError, match="meta"):
        biopsy.torch.diagnose(torch.nn.Linear(8, 8, device="meta").eval(), (X,))


def test_a_line_of_python_itself_is_never_told() -> None:
    class Raising(torch.nn.Module):
        def forward(self, x):
            if torch.compiler.is_exporting():
                statistics.mean([])
            return x

    found = biopsy.torch.diagnose(Raising().eval(), (X,))
    assert found.verdict.blame == "capture"
    assert [place.code for place in found.places] == ["statistics.mean([])"]


@pytest.mark.parametrize(("start", "is_told"), [(1, True), (1.5, True), (None, False)])
def test_a_number_that_the_module_changes_is_told(start: float | None, is_told: bool) -> None:
    class Counted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n, self.same = start, float("nan")

        def forward(self, x):
            if self.n is not None:
                self.n += 1
            return torch.tanh(x)

    found = biopsy.torch.diagnose(Counted().eval(), (X,))
    assert any("(n): an ONNX model does not keep that" in remark for remark in found.remarks) == is_told
