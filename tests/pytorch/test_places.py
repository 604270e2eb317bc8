"""The printed place is the line that holds the fault, in modules that are written in many ways."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import biopsy.torch  # noqa: E402
from biopsy import errors  # noqa: E402
from biopsy.torch.calls import Arguments, preserved  # noqa: E402
from biopsy.torch.exporting import CannotCaptureError, capture  # noqa: E402
from biopsy.torch.facts import ModuleLine, place_of_node  # noqa: E402
from support.pytorch_faults import Mlp, shifted  # noqa: E402
from support.pytorch_places import BY_NAME, Planted  # noqa: E402

pytestmark = pytest.mark.torch

X = torch.linspace(-2, 2, 24).reshape(3, 8)


SHIFTED = partial(shifted, by=1.0)  # no function of a test is between the module and the operator


@torch.library.custom_op("biopsy_tests::uncaptured", mutates_args=())
def uncaptured(x: torch.Tensor) -> torch.Tensor:
    """An operator that torch.export knows nothing of."""
    return x + 1


def minus(x, by):
    """A wrong translation of ``shifted``."""
    from onnxscript import opset18

    return opset18.Sub(x, opset18.Constant(value_float=1.0))


TRANSLATED_WRONGLY = {"custom_translation_table": {torch.ops.biopsy_tests.shifted.default: minus}}


def printed(place: ModuleLine) -> tuple[str, int | None] | None:
    return None if place.file is None else (Path(place.file).name, place.line)


FAST = {"in another file", "behind a decorator", "in a hook", "in code without a file", "in a part of a library"}
EACH_WAY = [
    pytest.param(planted, id=name, marks=[] if name in FAST else pytest.mark.slow) for name, planted in BY_NAME.items()
]


@pytest.mark.parametrize("planted", EACH_WAY)
def test_a_captured_operator_is_at_its_line(tmp_path: Path, planted: Planted) -> None:
    module = planted.make(SHIFTED, tmp_path).eval()
    with preserved(module) as state:
        program = capture(module, state, Arguments(args=(X,)), None)
    nodes = [node for node in program.graph.nodes if "shifted" in str(node.target)]
    places = [place_of_node(node) for node in nodes]
    assert {printed(place) for place in places} == {planted.truth}
    assert all(place.kind and bool(place.file) != bool(place.unknown) for place in places)


@pytest.mark.parametrize("planted", EACH_WAY)
def test_an_operator_that_cannot_be_captured_is_at_its_line(tmp_path: Path, planted: Planted) -> None:
    module = planted.make(uncaptured, tmp_path).eval()
    with preserved(module) as state, pytest.raises(CannotCaptureError) as raised:
        capture(module, state, Arguments(args=(X,)), None)
    (place,) = raised.value.places
    assert (printed(place), bool(place.unknown)) == (planted.truth, planted.truth is None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operator", "export", "blamed"),
    [
        (uncaptured, {}, ("capture", None)),
        (SHIFTED, {}, ("exporter", "translation")),
        (SHIFTED, TRANSLATED_WRONGLY, ("exporter", "translation")),
    ],
    ids=["not captured", "not translated", "translated wrongly"],
)
@pytest.mark.parametrize("planted", BY_NAME.values(), ids=BY_NAME)
def test_a_diagnosis_names_the_line(
    tmp_path: Path, planted: Planted, operator: Any, export: dict[str, Any], blamed: tuple[str, str | None]
) -> None:
    found = biopsy.torch.diagnose(planted.make(operator, tmp_path).eval(), (X,), export=export)
    assert (found.verdict.blame, found.verdict.part) == blamed
    assert {printed(place) for place in found.places} == {planted.truth}


class OfThreeRows(torch.nn.Module):
    def forward(self, x):
        y = x + 1
        return y.reshape(3, 8)


def test_a_size_that_is_to_be_open_is_fixed_at_its_line() -> None:
    found = biopsy.torch.diagnose(OfThreeRows().eval(), (X,), dynamic_shapes=({0: "batch"},))
    assert (found.verdict.blame, [place.code for place in found.places]) == ("capture", ["return y.reshape(3, 8)"])


def test_a_decomposition_that_raises_is_at_the_line_of_its_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.onnx._internal.exporter import _decomp

    def raising(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("no such decomposition")

    table = _decomp.create_onnx_friendly_decomposition_table
    wrong = {torch.ops.aten.gelu.default: raising}
    monkeypatch.setattr(_decomp, "create_onnx_friendly_decomposition_table", lambda *args: {**table(*args), **wrong})
    found = biopsy.torch.diagnose(Mlp().eval(), (X,))
    assert (found.verdict.blame, found.verdict.part) == ("exporter", "decomposition")
    assert [place.code for place in found.places] == ["hidden = functional.gelu(hidden)"]
    assert "no such decomposition" in found.error


def test_an_optimizer_that_raises_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def optimize(program: Any) -> None:
        raise ValueError("no optimizer")

    monkeypatch.setattr(torch.onnx.ONNXProgram, "optimize", optimize)
    found = biopsy.torch.diagnose(Mlp().eval(), (X,))
    assert (found.verdict.blame, found.verdict.part) == ("exporter", "optimizer")
    assert [(place.file, bool(place.unknown)) for place in found.places] == [(None, True)]


def test_a_module_that_raises_itself_is_at_its_line() -> None:
    with pytest.raises(errors.CannotCompare, match=r"\.py:\d+ · module first: hidden = self\.first\(x\)"):
        biopsy.torch.diagnose(Mlp().eval(), (torch.zeros(3, 5),))
