"""Who is blamed for modules of which that is known."""

from collections.abc import Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import biopsy.torch  # noqa: E402
from biopsy import errors  # noqa: E402
from biopsy.torch.calls import arguments_of  # noqa: E402
from biopsy.torch.exporting import export  # noqa: E402
from biopsy.torch.facts import TorchDiagnosis, rounding_text  # noqa: E402
from support.pytorch_planted import CORRECT, WRONG, Planted, Words, exporter_of  # noqa: E402

pytestmark = pytest.mark.torch

FAST = ("layer norm of 1000", "ties of topk, gathered", "steps")
FAST_WRONG = ("quick gelu in float16, before a softmax", "halves rounded up", "gelu and a fusion")


def diagnosis_of(planted: Planted) -> TorchDiagnosis:
    with exporter_of(planted):
        return biopsy.torch.diagnose(planted.make().eval(), planted.args(), **planted.options)


def names(fast: tuple[str, ...], table: Mapping[str, Planted]) -> list[object]:
    return [pytest.param(name, marks=[] if name in fast else pytest.mark.slow) for name in table]


@pytest.mark.parametrize("name", names(FAST, CORRECT))
def test_rounding_and_equal_values_blame_nobody(name: str) -> None:
    found = diagnosis_of(CORRECT[name])
    assert (found.verdict.blame, found.failed, found.places) == ("passes", False, ())
    if found.rounding is not None:
        assert found.rounding.verdict == "rounding"
        assert rounding_text("onnxrt", found.rounding) in found.verdict.text


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECT)
def test_tolerances_of_zero_accuse_nobody(name: str) -> None:
    planted = CORRECT[name]
    found = biopsy.torch.diagnose(planted.make().eval(), planted.args(), atol=0, rtol=0)
    assert found.verdict.blame in ("passes", "tolerance")


@pytest.mark.parametrize("name", names(FAST_WRONG, WRONG))
def test_a_planted_fault_is_blamed_at_its_operator(name: str) -> None:
    planted = WRONG[name]
    found = diagnosis_of(planted)
    assert (found.verdict.blame, found.verdict.part) == (planted.blame, planted.part)
    places = [*found.places, *(place for fault in found.further for place in fault.places)]
    assert {operator for place in places for operator in place.operators} >= set(planted.operators)


def test_the_tolerances_that_a_user_gives_are_kept_and_found_too_narrow() -> None:
    planted = CORRECT["layer norm of 1000"]
    found = biopsy.torch.diagnose(planted.make().eval(), planted.args(), atol=1e-5, rtol=1e-5)
    assert (found.verdict.blame, found.failed) == ("tolerance", True)


def test_a_fault_of_the_engine_behind_one_of_the_exporter_is_found_too() -> None:
    found = diagnosis_of(WRONG["gelu and a fusion"])
    assert [found.verdict.blame, *(fault.verdict.blame for fault in found.further)] == ["exporter", "engine"]


def test_an_optimizer_that_drops_a_small_number_is_blamed_though_rounding_hides_it() -> None:
    class Inverse(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.rsqrt(x.var(-1) + 1e-12)

    x = 300 + 1e-3 * torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    found = biopsy.torch.diagnose(Inverse().eval(), (x,), atol=0, rtol=0)
    assert (found.verdict.blame, found.verdict.part) == ("exporter", "optimizer")


def silu_of_few(x: Any) -> Any:
    from onnxscript import opset18

    many = opset18.Cast(opset18.Greater(opset18.Size(x), opset18.Constant(value_int=100)), to=1)
    return opset18.Add(opset18.Mul(x, opset18.Sigmoid(x)), many)


def test_a_failure_with_much_larger_sizes_only_is_told_with_its_size() -> None:
    class Silu(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.silu(x)

    export = {"custom_translation_table": {torch.ops.aten.silu.default: silu_of_few}}
    found = biopsy.torch.diagnose(
        Silu().eval(), (torch.linspace(-2, 2, 24).reshape(3, 8),), dynamic_shapes=({0: "batch"},), export=export
    )
    assert (found.verdict.blame, found.verdict.part) == ("exporter", "translation")
    assert "with sizes [48, 8], and not with [3, 8]" in found.verdict.text


NO_NAME = "object has no attribute 'name'"


class Counted(torch.nn.Module):
    """Numbers, a switch and None among the outputs."""

    def forward(self, x: torch.Tensor) -> object:
        return {"twice": x * 2, "rows": x.shape[0], "half": 0.5, "on": True, "none": None, "area": x.shape[0] * 2.5}


@pytest.mark.parametrize("shapes", [None, ({0: "batch"},)])
def test_an_exporter_that_raises_for_numbers_and_switches_is_blamed_and_the_tensors_are_judged(shapes: object) -> None:
    found = biopsy.torch.diagnose(Counted().eval(), (torch.ones(3, 4),), dynamic_shapes=shapes)
    assert (found.verdict.blame, found.failed, NO_NAME in found.error) == ("exporter", True, True)
    assert "['half'] = 0.5; ['on'] = True" in found.verdict.text or "['rows'] = 3; ['half'] = 0.5" in found.verdict.text
    assert "Without that: onnxrt gives what the module gives" in found.verdict.text


def test_an_exporter_that_raises_for_a_switch_is_told_beside_another_fault() -> None:
    class Switched(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return torch.nn.functional.silu(x), True

    export = {"custom_translation_table": {torch.ops.aten.silu.default: silu_of_few}}
    found = biopsy.torch.diagnose(Switched().eval(), (torch.ones(20, 8),), export=export)
    assert found.verdict.blame == "exporter" and found.places[0].operators == ("aten.silu.default",)
    assert [(fault.verdict.blame, "[1] = True" in fault.verdict.text) for fault in found.further] == [
        ("exporter", True)
    ]


def test_what_the_exporter_raises_for_is_not_left_out_of_a_recorded_model() -> None:
    with pytest.raises(errors.EngineFailure, match=NO_NAME):
        export(Counted().eval(), arguments_of((torch.ones(3, 4),), None))


def test_a_float16_module_without_a_fault_passes() -> None:
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)).half()
    assert biopsy.torch.diagnose(Words(torch.float16).eval(), (x,)).verdict.blame == "passes"
