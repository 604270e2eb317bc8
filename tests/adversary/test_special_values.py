"""Failures that need the values that tensors really have: random ones, or a constant that is folded away, hide them."""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from packaging.version import Version

from biopsy import errors
from biopsy.cli.app import main
from biopsy.tensors.files import read_feeds
from support.models import BOOL, INT64, info, model, save, weight
from support.predicates import names


def counting() -> onnx.ModelProto:
    """Something is divided by the number of elements above 100, of which the inputs have none."""
    nodes = [
        helper.make_node("Greater", ["x", "hundred"], ["g"], name="greater"),
        helper.make_node("Cast", ["g"], ["c"], name="cast", to=INT64),
        helper.make_node("ReduceSum", ["c"], ["s"], name="sum", keepdims=0),
        helper.make_node("Div", ["i", "s"], ["q"], name="div"),
        helper.make_node("Abs", ["q"], ["y"], name="abs"),
    ]
    inner = [info("g", elem=BOOL), *(info(name, elem=INT64) for name in "cq"), info("s", (), INT64)]
    inputs = [info("x"), info("i", elem=INT64)]
    return model(nodes, inputs, [info("y", elem=INT64)], [weight("hundred", 100.0)], value_info=inner)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez("in.npz", x=np.ones((2, 2), np.float32), i=np.array([[1, 2], [3, 4]]))
    return tmp_path


RUN = ("biopsy", "run", "{}", "--onnxrt")


@pytest.mark.slow
def test_a_division_by_zero_ends_at_the_division_fed_with_the_zero_that_was_recorded(here: Path) -> None:
    """Frozen, the zero is refused when the model is loaded, which is another failure; a random one divides well."""
    save(counting(), here / "m.onnx")
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx", "--check", *RUN, "--load-inputs", "in.npz"]) == 0
    assert names(onnx.load("r.onnx")) == ["div"]
    (feed,) = read_feeds(here / "r.onnx.inputs.safetensors")
    assert {name: value.tolist() for name, value in feed.items()} == {"i": [[1, 2], [3, 4]], "s": 0}
    assert main(["run", "r.onnx", "--onnxrt", "--load-inputs", "r.onnx.inputs.safetensors"]) == 1


@pytest.mark.slow
def test_a_result_that_is_fed_only_what_the_user_has_gets_no_file_of_inputs(here: Path) -> None:
    made = counting()
    np.savez("in.npz", x=np.ones((2, 2), np.float32), i=np.zeros((2, 2), np.int64))
    made.graph.node[3].input[1] = "i"
    save(made, here / "m.onnx")
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx", "--check", *RUN, "--load-inputs=in.npz"]) == 0
    assert names(onnx.load("r.onnx")) == ["div"]
    assert not (here / "r.onnx.inputs.safetensors").exists()


def test_the_users_own_check_is_shown_with_the_values_that_the_result_needs(here: Path) -> None:
    from biopsy.checks.command import CommandCheck

    check = CommandCheck(["biopsy", "run", "{}", "--load-input-data", "a.npz", "b.npz", "--onnxrt"], "c.onnx")
    assert check.fed(Path("v.safetensors")).words == (
        "biopsy", "run", "{}", "--onnxrt", "--load-inputs", "v.safetensors",
    )  # fmt: skip
    spelled = CommandCheck(["biopsy", "run", "{}", "--load-inputs=a.npz", "--onnxrt"], "c.onnx")
    assert spelled.fed(Path("v")).words == ("biopsy", "run", "{}", "--onnxrt", "--load-inputs", "v")


def masked_softmax() -> onnx.ModelProto:
    """A row of a mask that lets nothing through, as in attention: its greatest element is minus infinity."""
    nodes = [
        helper.make_node("Where", ["m", "zero", "low"], ["b"], name="where"),
        helper.make_node("Add", ["x", "b"], ["s"], name="add"),
        helper.make_node("ReduceMax", ["s"], ["g"], name="max", axes=[1]),
        helper.make_node("Sub", ["s", "g"], ["d"], name="sub"),
        helper.make_node("Exp", ["d"], ["y"], name="exp"),
    ]
    inner = [info(name, (2, 4)) for name in "bsd"] + [info("g", (2, 1))]
    weights = [weight("zero", 0.0), weight("low", -np.inf)]
    return model(
        nodes, [info("x", (2, 4)), info("m", (2, 4), BOOL)], [info("y", (2, 4))], weights, value_info=inner
    )  # fmt: skip


@pytest.mark.slow
def test_an_infinity_that_one_engine_makes_finite_ends_at_one_node(here: Path) -> None:
    pytest.importorskip("openvino")
    mask = np.array([[False] * 4, [True] * 4])
    np.savez("in.npz", x=np.ones((2, 4), np.float32), m=mask)
    save(masked_softmax(), here / "m.onnx")
    check = [*RUN, "--openvino", "--load-inputs", "in.npz"]
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx", "--check", *check]) == 0
    assert len(onnx.load("r.onnx").graph.node) == 1


def _begun(here: Path, *options: str) -> list[str]:
    """Begin a reduction whose cuts are fed with recorded values, and stop it soon; the words that go on with it."""
    save(counting(), here / "m.onnx")
    words = ["debug", "reduce", "m.onnx", "-o", "r.onnx"]
    check = ["--check", *RUN, "--load-inputs", "in.npz"]
    assert main([*words, *options, *check]) == 5
    assert (here / "r.onnx.journal").exists()
    return [*words, *check]


def _refused(*_: object) -> bool:
    raise errors.DataError("no room for values")


@pytest.mark.slow
@pytest.mark.parametrize("recorded_first", [True, False])
def test_answers_about_other_inputs_are_not_gone_on_with(
    recorded_first: bool, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether values could be recorded decides what candidates were fed: recorded values, or random ones."""
    with monkeypatch.context() as patch:
        if not recorded_first:
            patch.setattr("biopsy.reduction.recorded_values.write_all", _refused)
        words = _begun(here, "--max-checks", "4")
    if recorded_first:
        monkeypatch.setattr("biopsy.reduction.recorded_values.write_all", _refused)
    capsys.readouterr()
    assert main(words) == 2
    told = capsys.readouterr().err
    then, now = ("recorded", "random") if recorded_first else ("random", "recorded")
    assert f"fed with {then} values, and now they would be fed with {now} ones" in told
    assert "--fresh" in told
    assert (here / "r.onnx.journal").exists()


@pytest.mark.skipif(
    Version(version("onnxruntime")) < Version("1.24"), reason="1.23 ends with SIGFPE, whatever feeds the zero"
)
@pytest.mark.parametrize("inputs_fail", [False, True])
def test_an_interrupted_reduction_tells_of_the_inputs_of_its_result(
    inputs_fail: bool, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("biopsy.reduction.reduce.ReductionTask._refine", interrupted)
    if inputs_fail:
        monkeypatch.setattr("biopsy.reduction.recorded_values.write_inputs", _refused)
    _begun(here)
    told = capsys.readouterr().err
    assert "kept  r.onnx, which fails in the same way with " in told
    assert ("could not be written: no room for values" in told) is inputs_fail
    assert ("with the inputs r.onnx.inputs.safetensors" in told) is not inputs_fail
    assert (here / "r.onnx.inputs.safetensors").exists() is not inputs_fail
    assert not list(here.glob(".r.onnx.inputs.*.part"))
