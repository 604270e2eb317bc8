"""Real releases from the package index: a failure that one has and a newer one has not, asked in every way."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import biopsy
from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from support.command_line import typed
from support.models import info, model, save

pytestmark = pytest.mark.slow

OLD = "onnxrt:release=1.20.1"
SHAPE = (1, 16, 5, 5)


def fused() -> onnx.ModelProto:
    """A convolution that adds a fourth input: microsoft/onnxruntime#23284."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal((16, 16, 1, 1), np.float32), "w"),
        numpy_helper.from_array(random.standard_normal(16, np.float32), "b"),
    ]
    attributes = {"domain": "com.microsoft", "activation": "Relu", "kernel_shape": [1, 1]}
    node = helper.make_node("FusedConv", ["x", "w", "b", "z"], ["y"], "f", **attributes)
    made = model([node], [info("x", SHAPE), info("z", SHAPE)], [info("y", SHAPE)], weights, opset=13)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    made.ir_version = 8
    return made


def values(spec: str) -> np.ndarray:
    random = np.random.default_rng(1)
    feed = {name: random.standard_normal(SHAPE, np.float32) for name in "xz"}
    return np.asarray(biopsy.run(fused(), spec, feed)[0].iterations[0].outputs["y"])


def test_a_release_is_wrong_where_a_newer_one_is_right() -> None:
    right = values(f"{OLD},optimization=none")
    np.testing.assert_allclose(values("onnxrt"), right, rtol=1e-5, atol=1e-5)
    assert np.abs(values(OLD) - right).max() > 0.1


def test_the_optimizer_that_is_to_blame_is_one_of_that_release(tmp_path: Path) -> None:
    save(fused(), tmp_path / "model.onnx")
    ran = typed("debug", "flags", "model.onnx", "--engine", OLD, "--check", "biopsy", "run", "{}", "--engine",
                f"{OLD},optimization=none", "--engine", OLD, folder=tmp_path)  # fmt: skip
    assert "It goes away when NchwcTransformer is disabled." in ran.told, ran.told


def test_a_reduction_finds_the_node_that_the_release_computes_wrongly(tmp_path: Path) -> None:
    made = fused()
    for number in range(5):
        made.graph.node.append(helper.make_node("Relu", [f"h{number}" if number else "y"], [f"h{number + 1}"]))
    made.graph.output[0].name = "h5"
    save(made, tmp_path / "model.onnx")
    ran = typed("debug", "reduce", "model.onnx", "-o", "reduced.onnx", "--package", "onnxruntime==1.20.1", "--check",
                "biopsy", "run", "{}", "--engine", "onnxrt:optimization=none", "--onnxrt", folder=tmp_path)  # fmt: skip
    assert ran.status == 0, ran.told
    assert [node.op_type for node in onnx.load(tmp_path / "reduced.onnx").graph.node] == ["FusedConv"]


@pytest.mark.parametrize("is_file", [True, False])
def test_weights_in_other_files_are_found_where_releases_want_them_beside_the_model(
    tmp_path: Path, is_file: bool
) -> None:
    weights = [numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")]
    made = model([helper.make_node("Add", ["x", "w"], ["y"])], [info("x", (4,))], [info("y", (4,))], weights, opset=13)
    made.ir_version = 8
    path = tmp_path / "model.onnx"
    onnx.save(made, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    given = ModelInput(path.read_bytes(), tmp_path, path if is_file else None)
    session = create(OLD).build(given)
    assert session.run({"x": np.ones(4, np.float32)})["y"].tolist() == [1, 2, 3, 4]


def test_what_a_release_cannot_do_is_said_and_is_no_wrong_answer() -> None:
    made = model([helper.make_node("Identity", ["x"], ["y"])], [info("x", (2,), 16)], [info("y", (2,), 16)], opset=16)
    made.ir_version = 8
    with pytest.raises(errors.EngineFailure, match=r"not tried: onnx 1.18.0 computes with the bits of bfloat16"):
        create("reference:release=1.18.0").build(ModelInput(made.SerializeToString(), Path()))
    with pytest.raises(errors.UsageError, match=r"onnxruntime 1.20.1 has no optimization level 'layout'"):
        create(f"{OLD},optimization=layout").build(ModelInput(fused().SerializeToString(), Path()))


@pytest.mark.parametrize("python", ["3.8", "3.9"])
def test_releases_that_no_python_of_ours_can_have_run(python: str) -> None:
    try:
        spec = f"onnxrt:release=1.15.1,with=numpy<2,python={python}"
        found = values(f"{spec},optimization=none")
    except errors.UsageError as error:
        pytest.skip(error.message)
    np.testing.assert_allclose(found, values("onnxrt"), rtol=1e-5, atol=1e-5)
    assert create(spec).imports.facts()["python"].startswith(python)
