"""Layers judged by golden values of some tensors, from a file, instead of a reference engine."""

import tempfile
from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import biopsy
from biopsy import errors
from biopsy.questions.layers.findings import LayerFindings
from biopsy.tensors.files import read_feeds, write_feeds
from support.examinations import growing, labels, verdicts
from support.exporters import copied
from support.models import info, model, save

PLAIN = "onnxrt:optimization=none"


def examined(made: onnx.ModelProto, folder: Path, known: Collection[str], suspect: str = PLAIN) -> LayerFindings:
    """What is found where the golden values of some tensors are known: those of an engine that is right."""
    path = save(made, folder / "model.onnx")
    fed = np.linspace(1, 2, 4, dtype=np.float32).reshape(2, 2)
    feeds = {value.name: fed for value in made.graph.input}
    (right,) = biopsy.run(path, PLAIN, [feeds], outputs="all")
    every = right.iterations[0].outputs
    write_feeds(folder / "golden.safetensors", [{**feeds, **{name: every[name] for name in known}}])
    return biopsy.layers(path, suspect, f"recorded:file={folder / 'golden.safetensors'}", [feeds])


@pytest.mark.slow
def test_a_wrong_layer_is_found_by_golden_values_alone(tmp_path: Path) -> None:
    found = examined(growing(6), tmp_path, [f"t{n}" for n in range(1, 7)], "fake:scale.n3=1.5")
    assert labels(found) == ["Relu 'n3'"]
    assert not found.passed


def test_layers_without_a_golden_value_are_measured_as_one_with_the_next_that_has_one(tmp_path: Path) -> None:
    found = examined(growing(6), tmp_path, ["t2", "t5", "t6"], "fake:scale.n3=1.5")
    (suspect,) = found.suspects
    assert (suspect.nodes, suspect.inputs, suspect.outputs) == ((2, 3, 4), ("t2",), ("t5",))
    assert [layer.within for layer in found.layers] == [(1,), (), (4,), (4,), (), ()]
    assert (
        found.layers[2].note == f"its outputs have no recorded value: measured as one piece with {suspect.labels[-1]}"
    )
    assert found.unmeasured == ()


def test_what_is_right_passes_with_the_outputs_alone(tmp_path: Path) -> None:
    found = examined(growing(4), tmp_path, ["t4"])
    assert found.passed
    assert found.layers[-1].nodes == (0, 1, 2, 3)


def branches() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="a"),
        helper.make_node("Abs", ["a"], ["y"], name="y"),
        helper.make_node("Neg", ["a"], ["z"], name="z"),
    ]
    return model(nodes, [info("x")], [info("y"), info("z")])


def test_layers_that_no_golden_value_judges_leave_the_answer_open(tmp_path: Path) -> None:
    found = examined(branches(), tmp_path, ["a", "y"])
    assert found.nothing_wrong and not found.passed
    assert found.unmeasured == (2,)
    assert "output 'z' has no golden value: it is not judged" in found.remarks


@pytest.mark.slow
def test_a_layer_that_two_pieces_need_is_in_both(tmp_path: Path) -> None:
    found = examined(branches(), tmp_path, ["y", "z"], "fake:scale.a=1.5")
    assert [suspect.nodes for suspect in found.suspects] == [(0, 1), (0, 2)]
    assert found.layers[0].within == (1, 2)


def test_a_random_layer_without_a_golden_value_is_no_part_of_a_piece(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["r"], name="r"),
        helper.make_node("Add", ["x", "r"], ["s"], name="s"),
        helper.make_node("Relu", ["x"], ["y"], name="y"),
    ]
    found = examined(model(nodes, [info("x")], [info("s"), info("y")]), tmp_path, ["s", "y"])
    assert verdicts(found)["y"] == "right"
    assert found.unmeasured == (1,)
    assert found.layers[1].note == "it needs an input that has no value"


def test_golden_values_of_another_model_are_refused(tmp_path: Path) -> None:
    path = save(growing(2), tmp_path / "model.onnx")
    write_feeds(tmp_path / "golden.npz", [{"other": np.ones(2)}])
    with pytest.raises(errors.CannotCompare, match="golden values of none of the model's tensors"):
        biopsy.layers(path, PLAIN, f"recorded:file={tmp_path / 'golden.npz'}")


def of_pytorch(name: str, folder: Path, suspect: str = PLAIN) -> LayerFindings:
    path, golden = copied(name, folder)
    return biopsy.layers(path, suspect, f"recorded:file={golden}", read_feeds(golden))


def test_a_right_export_of_pytorch_passes_beside_what_its_module_gave(tmp_path: Path) -> None:
    found = of_pytorch("mlp", tmp_path, "onnxrt")
    assert found.passed
    assert {layer.verdict for layer in found.layers} == {"right"}


def test_a_fault_of_the_exporter_is_one_of_the_model_and_has_its_line(tmp_path: Path) -> None:
    found = of_pytorch("attention", tmp_path)
    (wrong,) = [layer for layer in found.layers if layer.is_suspect]
    assert wrong.node.outputs == ("scaled_dot_product_attention",)
    assert wrong.piece is not None and len(wrong.piece.nodes) == 12
    assert set(wrong.piece.inputs) == {"mask", "unsqueeze", "unsqueeze_1"}
    assert wrong.is_of_model
    assert wrong.node.source is not None
    assert str(wrong.node.source) == "modules.py:37 in Attention.forward"
    assert wrong.introduced is not None and wrong.introduced.worst is not None
    assert wrong.introduced.worst.expected == 0
    assert found.unmeasured == ()


@pytest.mark.slow
def test_a_fault_of_the_engine_is_none_of_the_model(tmp_path: Path) -> None:
    found = of_pytorch("mlp", tmp_path, "fake:scale.node_gelu=1.5")
    (wrong,) = [layer for layer in found.layers if layer.is_suspect]
    assert (wrong.node.name, wrong.is_of_model) == ("node_gelu", False)


@pytest.mark.slow
def test_layers_behind_an_operator_that_nobody_can_run_are_measured(tmp_path: Path) -> None:
    found = of_pytorch("custom", tmp_path)
    assert verdicts(found) == {"node_sin": "right", "node_swish": "fails", "node_cos": "right", "node_mul": "right"}
    assert str(found.layers[1].node.source) == "modules.py:44 in Custom.forward"


def golden_of_mlp(folder: Path, **changed: np.ndarray | None) -> LayerFindings:
    """What is found with the golden values of a right export, some of them changed, or left out where None."""
    path, golden = copied("mlp", folder)
    (feed,) = read_feeds(golden)
    kept = {name: value for name, value in {**feed, **changed}.items() if value is not None}
    write_feeds(golden, [kept])
    return biopsy.layers(path, PLAIN, f"recorded:file={golden}", read_feeds(golden))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.zeros((2, 7), np.float32), "it is float32[2,7], and the model computes float32[2,8]"),
        pytest.param(
            np.zeros((2, 8), np.int64),
            "it is int64[2,8], and the model computes float32[2,8]",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_golden_value_that_does_not_fit_is_no_error_of_the_layer(
    tmp_path: Path, value: np.ndarray, told: str
) -> None:
    found = golden_of_mlp(tmp_path, gelu=value)
    (remark,) = found.remarks
    assert remark.startswith(f"{tmp_path / 'golden.safetensors'}: the golden value of 'gelu' does not fit: {told} (")
    assert "(Gelu 'node_gelu', modules.py:13 in Block.forward: " in remark
    assert found.nothing_wrong and not found.passed
    assert found.misfits == ("gelu",)
    assert next(layer for layer in found.layers if layer.node.name == "node_gelu").within == (3,)


@pytest.mark.slow
def test_golden_values_that_hold_nan_are_not_those_of_the_model(tmp_path: Path) -> None:
    found = golden_of_mlp(tmp_path, gelu=np.full((2, 8), np.nan, np.float32), linear_1=None, add=None)
    assert not found.nothing_wrong
    assert next(layer.node.name for layer in found.layers if layer.is_suspect) == "node_gelu"


def test_if_no_golden_value_fits_that_is_told_of_each(tmp_path: Path) -> None:
    path = save(growing(2), tmp_path / "model.onnx")
    write_feeds(tmp_path / "golden.npz", [{"t0": np.ones((2, 2), np.float32), "t1": np.ones(2), "t2": np.ones(3)}])
    with pytest.raises(errors.CannotCompare, match="none of the model's tensors that fits") as raised:
        biopsy.layers(path, PLAIN, f"recorded:file={tmp_path / 'golden.npz'}")
    assert [line.partition(":")[0] for line in raised.value.details] == [
        "the golden value of 't1' does not fit",
        "the golden value of 't2' does not fit",
    ]


@pytest.mark.slow
@settings(max_examples=12)
@given(known=st.sets(st.integers(1, 6)), wrong=st.integers(0, 5))
def test_every_layer_is_measured_by_itself_in_a_piece_or_told_as_unmeasured(known: set[int], wrong: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        names = [f"t{n}" for n in sorted(known | {6})]
        found = examined(growing(6), Path(folder), names, f"fake:scale.n{wrong}=1.5")
    assert found.unmeasured == ()
    assert all(layer.introduced is not None or layer.within for layer in found.layers)
    (suspect,) = found.suspects
    assert wrong in suspect.nodes
    assert not set(suspect.inputs) - {"t0", *names}


@pytest.mark.slow
def test_a_layer_that_is_wrong_in_one_of_several_samples_is_found(tmp_path: Path) -> None:
    path = save(growing(3), tmp_path / "model.onnx")
    feeds = [{"t0": np.full((2, 2), number, np.float32)} for number in (1, 2, 3)]
    (right,) = biopsy.run(path, PLAIN, feeds, outputs="all")
    golden = [{**feed, **each.outputs} for feed, each in zip(feeds, right.iterations, strict=True)]
    golden[1]["t2"] = golden[1]["t2"] + 1
    write_feeds(tmp_path / "golden.safetensors", golden)
    found = biopsy.layers(path, PLAIN, f"recorded:file={tmp_path / 'golden.safetensors'}", feeds)
    wrong = [layer.introduced for layer in found.layers if layer.is_suspect]
    assert [(error.tensor, error.sample) for error in wrong if error is not None] == [("t2", 1), ("t3", 1)]
