"""``biopsy inspect model`` as it is typed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from biopsy.cli.app import main
from support.models import chain, save


@pytest.fixture
def model(tmp_path: Path) -> Path:
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2], [1, 2])
    nodes = [helper.make_node("Mul", ["x", "w"], ["m"], name="mul0"), helper.make_node("Softmax", ["m"], ["y"], axis=0)]
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(helper.make_graph(nodes, "g", [info], [], [weight])).SerializeToString())
    return path


@pytest.mark.parametrize(
    ("options", "nodes", "attributes", "weights"),
    [
        ([], False, False, False),
        (["--mode=none"], False, False, False),
        (["--mode=basic"], True, False, False),
        (["--mode", "attrs"], True, True, False),
        (["--mode=full"], True, True, True),
        (["--show", "layers"], True, False, False),
        (["--show", "layers", "attrs"], True, True, False),
        (["--show", "weights"], False, False, True),
        (["--show", "layers", "attrs", "weights"], True, True, True),
    ],
)
def test_modes_and_show_choose_what_is_shown(model, capsys, options, nodes, attributes, weights) -> None:
    assert main(["inspect", "model", str(model), *options]) == 0
    out = capsys.readouterr().out
    assert "2 nodes · 1 initializer" in out
    assert ("mul0 [Op: Mul]" in out) == nodes
    assert ("axis = 0" in out) == attributes
    assert ("Initializer | w [dtype=float32, shape=[2]] | Values:\n        [1. 2.]" in out) == weights


def test_what_is_grepped_of_polygraphy_is_there(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "model", str(model), "--show", "layers", "--model-type", "onnx"]) == 0
    lines = capsys.readouterr().out.split("\n")
    for line in (
        "[I] ==== ONNX Model ====",
        "    ---- 1 Graph Input(s) ----",
        "    {x [dtype=float32, shape=(2,)]}",
        "    ---- 1 Initializer(s) ----",
        "    ---- 2 Node(s) ----",
        "    Node 0    | mul0 [Op: Mul]",
        "         Initializer | w [dtype=float32, shape=(2,)]}",
        "         -> {m}",
    ):
        assert line in lines


def test_statistics_of_saved_outputs_stand_behind_the_types(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = model.with_name("outputs.npz")
    np.savez(saved, m=np.array([1.0, 3.0]), y=np.array([np.nan, 1.0]))
    assert main(["inspect", "model", str(model), "--show", "layers", "--combine-tensor-info", str(saved)]) == 0
    shown = capsys.readouterr().out
    assert "-> {m | Stats: min=1, max=3, mean=2}" in shown
    assert "-> {y | Stats: min=nan, max=nan, mean=nan}" in shown


UNBOUNDED = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[N] x, int64[1] bound) => (float[K] y, float[L] z, float[N] u)
{
   count = NonZero(x)
   size = Shape<start = 1>(count)
   limited = Min(size, bound)
   one = Constant<value = float[1] {1}>()
   y = Expand(one, size)
   z = Expand(one, limited)
   known = Shape(x)
   u = Expand(one, known)
}"""


def test_sizes_without_a_bound_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(onnx.parser.parse_model(UNBOUNDED), tmp_path / "m.onnx")
    assert main(["inspect", "model", str(path), "--list-unbounded-dds"]) == 0
    assert "Found tensors with unbounded DDS: ['size']" in capsys.readouterr().out


def test_the_network_of_tensorrt_is_shown(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx-cu13 is not installed")
    save(chain(3), model)
    assert main(["inspect", "model", str(model), "--display-as", "trt", "--show", "layers"]) == 0
    shown = capsys.readouterr().out
    assert "[I] ==== TensorRT Network ====" in shown
    assert "---- 1 Network Input(s) ----\n    {t0 [dtype=float32, shape=(2, 2)]}" in shown
    assert "Layer 0    | n0 [Op: LayerType.ACTIVATION]" in shown


def test_an_engine_whose_file_says_nothing_is_wrong_usage(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "model", str(model.rename(model.with_suffix(".bin"))), "--model-type", "engine"]) == 2
    assert "which engine has built it" in capsys.readouterr().err


def test_a_damaged_model_is_one_message_and_status_4(tmp_path: Path, capsys) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    assert main(["inspect", "model", str(tmp_path / "bad.onnx")]) == 4
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "bad.onnx" in seen.err
    assert "Traceback" not in seen.err


def test_a_missing_model_is_status_2(tmp_path: Path, capsys) -> None:
    assert main(["inspect", "model", str(tmp_path / "gone.onnx")]) == 2
    assert "gone.onnx" in capsys.readouterr().err


def test_an_unknown_mode_is_status_2(model: Path, capsys) -> None:
    assert main(["inspect", "model", str(model), "--mode=loud"]) == 2
    assert "loud" in capsys.readouterr().err


def test_the_help_has_examples(capsys) -> None:
    assert main(["inspect", "model", "--help"]) == 0
    assert "--mode=basic" in capsys.readouterr().out


# What an engine has saved


def test_what_onnxruntime_has_saved_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(chain(3), tmp_path / "m.onnx")
    built = str(tmp_path / "m.ort")
    assert main(["run", str(tmp_path / "m.onnx"), "--onnxrt", "--build-only", "--save-engine", built]) == 0
    for option in (["--list-unbounded-dds"], ["--display-as", "trt"]):
        assert main(["inspect", "model", built, *option]) == 2
        assert "needs an ONNX model" in capsys.readouterr().err
    assert main(["inspect", "model", built]) == 0
    shown = capsys.readouterr().out
    assert "built by onnxrt" in shown
    assert "---- 1 Engine Input(s) ----\n    {t0 [dtype=float32, shape=(2, 2)]}" in shown


def test_the_layers_of_what_openvino_has_saved_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openvino", reason="openvino is not installed: pip install 'biopsy[openvino]'")
    save(chain(3), tmp_path / "m.onnx")
    assert main(["run", str(tmp_path / "m.onnx"), "--openvino", "--save-engine", str(tmp_path / "m.blob")]) == 0
    assert main(["inspect", "model", str(tmp_path / "m.blob"), "--show", "layers"]) == 0
    shown = capsys.readouterr().out
    assert "---- 1 Engine Output(s) ----\n    {t3" in shown
    assert "float32" in shown[shown.index("Layer 0  ") :]


def test_a_built_file_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "model", str(tmp_path / "no.engine")]) == 2
    assert "no.engine" in capsys.readouterr().err
