"""``biopsy convert``: what is written can be loaded and computes the same; what is refused leaves nothing behind."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from biopsy.cli.app import main
from support.models import info, model, save, seeds_example, weight

needs_trt = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, ("tensorrt_rtx", "tensorrt_rtx_bindings"))),
    reason="tensorrt-rtx-cu13 is not installed (it has wheels for Linux on x86-64 and for Windows)",
)
needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="openvino is not installed: pip install 'biopsy[openvino]'"
)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return save(seeds_example(), tmp_path / "m.onnx")


def convert(made: Path, name: str, *words: str) -> int:
    return main(["convert", str(made), "-o", str(made.with_name(name)), *words])


def outputs(path: Path, *words: str) -> np.ndarray:
    saved = path.with_name("outputs.npz")
    assert main(["run", str(path), *words, "--save-outputs", str(saved), "-q", "-q"]) == 0
    with np.load(saved) as found:
        return next(found[name] for name in found.files if "out" in name)


@pytest.mark.parametrize(
    ("name", "words", "engine"),
    [
        pytest.param("m.xml", [], "--openvino", marks=needs_openvino),
        pytest.param("m.blob", [], "--openvino", marks=needs_openvino),
        ("m.ort", [], "--onnxrt"),
        ("optimized.onnx", ["--onnxrt"], "--onnxrt"),
        ("copy.onnx", [], "--onnxrt"),
    ],
)
def test_what_is_written_computes_the_same(
    made: Path, name: str, words: list[str], engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(made, name, *words) == 0
    assert "again" in capsys.readouterr().out
    assert np.allclose(outputs(made.with_name(name), engine), outputs(made, "--onnxrt"), atol=1e-5)
    left = {path.name for path in made.parent.iterdir()} - {"m.onnx", "outputs.npz", "m.bin"}
    assert left == {name}


@needs_trt
def test_an_engine_of_tensorrt_is_written_and_a_missing_gpu_is_told(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(made, "m.engine") == 0
    said = capsys.readouterr()
    assert made.with_name("m.engine").stat().st_size > 1000
    assert "NOT loaded again" not in said.out or "needs an NVIDIA GPU" in said.err


def test_layers_in_fp16_are_close_and_inputs_keep_their_types(made: Path) -> None:
    assert convert(made, "half.onnx", "--fp-to-fp16") == 0
    half = onnx.load(made.with_name("half.onnx"))
    assert {value.type.tensor_type.elem_type for value in (*half.graph.input, *half.graph.output)} == {1}
    assert "Cast" in {node.op_type for node in half.graph.node}
    expected = outputs(made, "--onnxrt")
    assert np.allclose(outputs(made.with_name("half.onnx"), "--reference"), expected, atol=1e-2)


def test_a_weight_that_fp16_cannot_hold_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    huge = save(model([node], [info("x")], [info("y")], [weight("w", 1e30, shape=[1])]), tmp_path / "m.onnx")
    assert convert(huge, "half.onnx", "--fp-to-fp16") == 0
    assert "fp16 cannot hold all values of 'w': 1 of 1 value become infinite" in capsys.readouterr().err


def test_all_nodes_that_are_in_fp16_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Neg", ["e"], ["y"])]
    made = save(model(nodes, [info("x")], [info("y")]), tmp_path / "m.onnx")
    assert convert(made, "half.onnx", "--fp-to-fp16") == 0
    assert "2 nodes in fp16" in capsys.readouterr().out


def test_a_result_that_no_engine_would_load_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = save(model([helper.make_node("Exp", ["x"], ["y"])], [info("x")], [info("y")]), tmp_path / "m.onnx")
    broken = model([helper.make_node("Exp", ["x", "x"], ["y"], name="e")], [info("x")], [info("y")])
    whole = "biopsy.cli.convert.in_fp16"
    monkeypatch.setattr(whole, lambda *_: (broken.SerializeToString(), 1, ()))
    assert convert(made, "half.onnx", "--fp-to-fp16") == 1
    assert "refuses it at 'e'" in capsys.readouterr().err
    assert not made.with_name("half.onnx").exists()
    assert convert(made, "half.onnx", "--fp-to-fp16", "--allow-invalid") == 0


def test_what_the_engine_refuses_is_status_1_and_leaves_what_was_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = save(model([helper.make_node("Nothing", ["x"], ["y"])], [info("x")], [info("y")]), tmp_path / "m.onnx")
    made.with_name("m.ort").write_bytes(b"before")
    assert convert(made, "m.ort") == 1
    assert "onnxrt cannot load the model" in capsys.readouterr().err
    assert {path.name: path.read_bytes()[:6] for path in tmp_path.iterdir() if path != made} == {"m.ort": b"before"}


def test_a_link_is_replaced_and_not_followed(made: Path) -> None:
    other = made.with_name("other")
    other.write_bytes(b"precious")
    made.with_name("m.ort").symlink_to(other)
    assert convert(made, "m.ort") == 0
    assert other.read_bytes() == b"precious"
    assert not made.with_name("m.ort").is_symlink()


def test_what_is_written_has_the_rights_that_the_umask_leaves(made: Path) -> None:
    before = os.umask(0o077)
    try:
        assert convert(made, "m.ort") == 0
    finally:
        os.umask(before)
    assert made.with_name("m.ort").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("m.bin", [], "--convert-to"),
        ("m.xml", ["--onnxrt"], "onnxrt writes .onnx and .ort files"),
        ("m.ort", ["--onnxrt", "--reference"], "one engine"),
        ("m.onnx", [], "given twice"),
        ("m.engine", ["--convert-to", "onnxrt"], "writes"),
        ("m.ort", ["--save-external-data"], "--save-external-data has no effect"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(
    made: Path, name: str, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(made, name, *words) == 2
    assert told in capsys.readouterr().err


def test_what_is_built_already_is_not_converted(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(made, "m.ort") == 0
    assert main(["convert", str(made.with_name("m.ort")), "-o", str(made.with_name("again.onnx"))]) == 2
    assert "only those can be converted" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("convert", "-o"), ("run", "--onnxrt", "-q", "--save-onnx")], ids=lambda words: words[0]
)
def test_a_model_that_is_written_with_other_outputs_tells_their_types(made: Path, words: tuple[str, ...]) -> None:
    command, *rest = words
    written = made.with_name("o.onnx")
    assert main([command, str(made), *rest, str(written), "--onnx-outputs", "mark", "all"]) == 0
    found = onnx.load(written)
    onnx.checker.check_model(found, full_check=True)
    assert {info.type.tensor_type.elem_type for info in found.graph.output} == {onnx.TensorProto.FLOAT}
    assert len(found.graph.output) == len(found.graph.node)
