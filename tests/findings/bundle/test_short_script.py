"""The script of a bundle is what a maintainer would write: the model as text, one call, one assertion."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from biopsy.tensors.files import write_feeds
from support.bundles import bundle_of, run_script
from support.models import chain, info, model, save
from support.real_failures import normalization_of_columns, product_and_slopes_of_channels

MOST_LINES = 15


def script_of(folder: Path) -> str:
    return (folder / "reproduce.py").read_text()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_wrong_value_is_shown_by_the_model_as_text_its_inputs_and_what_is_expected(here: Path) -> None:
    save(chain(2), here / "model.onnx")
    np.savez("in.npz", t0=np.array([[0, 1], [2, 3]], np.float32))
    np.savez("golden.npz", t2=np.array([[0, 1.5], [2, 3]], np.float32))
    loaded = ["--load-inputs", "in.npz", "--load-outputs", "golden.npz"]
    made = bundle_of(here / "model.onnx", here / "bundle", "biopsy", "run", "{}", "--onnxrt", *loaded)
    assert made.reproduced == "alone"
    script = script_of(here / "bundle")
    assert 'feeds = {"t0": np.array([[0, 1], [2, 3]], np.float32)}' in script
    assert "expected = np.array([[0, 1.5], [2, 3]], np.float32)" in script
    assert len(script.splitlines()) <= MOST_LINES + 2


@pytest.mark.parametrize("elem", [TensorProto.FLOAT8E4M3FN, TensorProto.BFLOAT16], ids=["float8", "bfloat16"])
@pytest.mark.parametrize("is_read", [True, False], ids=["as input", "as output"])
def test_types_that_numpy_lacks_are_cast_in_the_model_that_is_shown(here: Path, elem: int, is_read: bool) -> None:
    ends = [("t0", TensorProto.FLOAT), ("t1", elem)][:: -1 if is_read else 1]
    (read, from_type), (written, to_type) = ends
    nodes = [onnx.helper.make_node("Cast", [read], [written], to=to_type)]
    made = model(nodes, [info(read, (2, 2), from_type)], [info(written, (2, 2), to_type)], opset=19)
    onnx.save(made, "model.onnx")
    x, wrong = np.array([[0, 1], [2, 3]], np.float32), np.array([[0, 1.5], [2, 3]], np.float32)
    exotic = onnx.helper.tensor_dtype_to_np_dtype(elem)
    write_feeds(here / "in.safetensors", [{read: x.astype(exotic if is_read else np.float32)}])
    write_feeds(here / "golden.safetensors", [{written: wrong.astype(np.float32 if is_read else exotic)}])
    loaded = ["--load-inputs", "in.safetensors", "--load-outputs", "golden.safetensors"]
    made = bundle_of(here / "model.onnx", here / "bundle", "biopsy", "run", "{}", "--onnxrt", *loaded)
    script = script_of(here / "bundle")
    assert made.reproduced == "alone" and not made.needs_biopsy
    assert "np.array([[0, 1], [2, 3]], np.float32)" in script and "np.array([[0, 1.5], [2, 3]], np.float32)" in script
    assert "ml_dtypes" not in script and f"{written if not is_read else read}_cast" in script
    assert "Mismatched elements: 1 / 4" in made.output


@pytest.mark.slow
def test_a_model_that_does_not_build_is_shown_by_building_it(here: Path) -> None:
    onnx.save(product_and_slopes_of_channels(), "model.onnx")
    made = bundle_of(here / "model.onnx", here / "bundle", "biopsy", "run", "{}", "--openvino")
    script = script_of(here / "bundle")
    assert made.reproduced == "alone"
    assert "core.compile_model(" in script and "feeds" not in script
    assert len(script.splitlines()) <= MOST_LINES + 3


@pytest.mark.slow
def test_measured_values_stay_in_files_beside_the_script(here: Path) -> None:
    model, random = normalization_of_columns(72), np.random.default_rng(0)
    (gain,) = [weight for weight in model.graph.initializer if weight.name == "gain"]
    gain.CopyFrom(numpy_helper.from_array(random.normal(size=72).astype(np.float32), "gain"))
    onnx.save(model, "model.onnx")
    check = ("biopsy", "run", "{}", "--engine", "onnxrt:optimization=none", "--onnxrt")
    made = bundle_of(here / "model.onnx", here / "bundle", *check)
    script = script_of(here / "bundle")
    assert made.reproduced == "alone"
    assert "# ReduceMean" in script.replace("m = ", "") and "keepdims: int = 0" in script
    assert '"model.onnx"' in script and 'np.load("inputs.npz")' in script and 'np.load("expected.npz")' in script
    assert run_script(here / "bundle").status == 1


@pytest.mark.parametrize(
    "name",
    [
        "coding:utf-7 +ACIAXQA7-print(4711)+ADs-+ACM-",
        "openvino.x",
        'q"""',
        "new\nline",
        "ünïcode",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("a/b.0", "back\\slash", "{}", "'''")),
    ],
)
def test_any_name_is_only_a_name(here: Path, name: str) -> None:
    model = chain(1)
    for node in model.graph.node:
        node.input[0], node.output[0] = name, f"{name} out"
    model.graph.input[0].name, model.graph.output[0].name = name, f"{name} out"
    onnx.save(model, "model.onnx")
    np.savez("in.npz", **{name: np.full((2, 2), 3, np.float32)})
    np.savez("golden.npz", **{f"{name} out": np.zeros((2, 2), np.float32)})
    loaded = ["--load-inputs", "in.npz", "--load-outputs", "golden.npz"]
    made = bundle_of(here / "model.onnx", here / "bundle", "biopsy", "run", "{}", "--onnxrt", *loaded)
    assert made.reproduced == "alone"
    assert "Mismatched elements: 4 / 4" in made.output and "\n4711" not in made.output
    assert "import openvino" not in script_of(here / "bundle").splitlines()
