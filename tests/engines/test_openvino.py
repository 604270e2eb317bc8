"""OpenVINO: devices, precisions, properties, layers, saving; and a real bug of it, reduced."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks.models import inception, transformer
from biopsy import errors
from biopsy.checks.outcome import Evidence
from biopsy.checks.warm import command_check
from biopsy.engines.base import ModelInput, Session
from biopsy.engines.openvino import OpenVino
from biopsy.engines.registry import create
from biopsy.model.tensor_type import TensorType
from support.models import chain, info, model, save, weight

openvino = pytest.importorskip("openvino", reason="openvino is not installed: pip install 'biopsy[openvino]'")

RANDOM = np.random.default_rng(1)


def build(spec: str, made: onnx.ModelProto) -> Session:
    return create(spec).build(ModelInput(made.SerializeToString(), Path()))


def test_a_device_that_is_not_there_is_missing():
    with pytest.raises(errors.EngineMissing, match="no device 'NPU7' here, only CPU"):
        build("openvino:device=NPU7", chain(1))


def test_a_device_may_be_one_that_chooses_among_others():
    assert build("openvino:device=HETERO:CPU", chain(1)).run({"t0": np.ones((2, 2), np.float32)})["t1"].shape == (2, 2)
    with pytest.raises(errors.EngineMissing, match=r"no device 'HETERO:NPU7,CPU' here"):
        build(r"openvino:device=HETERO:NPU7\,CPU", chain(1))


@pytest.mark.parametrize("precision", ["f32", "bf16", "f16"])
def test_a_precision_that_is_not_used_is_told(precision: str):
    properties = {"INFERENCE_PRECISION_HINT": precision}
    compiled = openvino.Core().compile_model(
        openvino.Core().read_model(chain(1).SerializeToString()), "CPU", properties
    )
    used = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    remarks = build(f"openvino:precision={precision}", chain(1)).remarks
    told = f"{precision} was asked for, and OpenVINO computes in {used} on CPU here"
    assert (told in remarks) == (used != precision)


@pytest.mark.parametrize(("elem", "name"), [(10, "f16"), (11, "f64")])
def test_types_it_replaces_while_it_computes_are_told(elem: int, name: str):
    made = model([helper.make_node("Neg", ["x"], ["y"])], [info("x", (2,), elem)], [info("y", (2,), elem)])
    assert build("openvino", made).remarks == (f"OpenVINO computes the model's {name} tensors in f32",)


def test_float32_models_need_no_remark():
    assert build("openvino", chain(2)).remarks == ()


def test_a_name_that_the_engine_changes_while_it_reads_still_finds_its_input():
    node = helper.make_node("Dropout", ["x"], ["y"])
    made = model([node], [info("unused", (3,)), info("x", (2,))], [info("y", (2,))])
    found = build("openvino", made).run({"x": np.ones(2, np.float32), "unused": np.zeros(3, np.float32)})
    assert found["y"].tolist() == [1, 1]


def test_strings_are_refused_because_they_end_the_process():
    made = model([helper.make_node("Identity", ["x"], ["y"])], [info("x", (2,), 8)], [info("y", (2,), 8)])
    with pytest.raises(errors.EngineFailure, match="strings") as caught:
        build("openvino", made)
    assert caught.value.kind == "UnsupportedType"


def test_a_layer_that_does_not_compile_fails_at_build():
    weight = onnx.numpy_helper.from_array(np.ones((4, 6), np.float32), "w")
    slope = onnx.numpy_helper.from_array(np.ones((3, 1, 1), np.float32), "slope")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("PRelu", ["a", "slope"], ["y"])]
    made = model(nodes, [info("x", (1, 3, 5, 4))], [info("y", (1, 3, 5, 6))], [weight, slope])
    try:
        build("openvino", made)
    except errors.EngineFailure as failure:
        assert (failure.stage, failure.kind) == ("build", "RuntimeError")
        assert "src/inference/src/cpp" not in failure.message
    else:
        pytest.skip("this OpenVINO no longer has the bug")


# Properties


def test_any_property_is_handed_on():
    session = build("openvino:config.EXECUTION_MODE_HINT=ACCURACY,config.NUM_STREAMS=2,threads=2", chain(1))
    compiled = session._compiled  # type: ignore[attr-defined]
    assert str(compiled.get_property("EXECUTION_MODE_HINT")) == "ExecutionMode.ACCURACY"
    assert compiled.get_property("NUM_STREAMS") == 2
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 2
    assert "CACHE_DIR" not in compiled.get_property("SUPPORTED_PROPERTIES") or not compiled.get_property("CACHE_DIR")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("config.NOPE=1", "config.NOPE=1: .*NOPE"),
        ("config.NUM_STREAMS=many", "config.NUM_STREAMS=many: .*many"),
        ("config.PERF_COUNT=YES", "PERF_COUNT is set by its option 'profile'"),
    ],
)
def test_a_wrong_property_is_no_failure_of_the_model(setting: str, told: str):
    with pytest.raises(errors.UsageError, match=told):
        build(f"openvino:{setting}", chain(1))


# Layers


def test_a_layer_tells_its_kernel_precision_layout_and_the_nodes_fused_into_it():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="the conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    kernel = numpy_helper.from_array(RANDOM.normal(size=(8, 8, 3, 3)).astype(np.float32), "w")
    session = build("openvino", model(nodes, [info("x", (1, 8, 6, 6))], [info("y", (1, 8, 6, 6))], [kernel]))
    (layer,) = [layer for layer in session.layers() if layer.kind == "Convolution"]
    assert layer.nodes == ("the conv", "Relu #1")
    assert (layer.precision, layer.device, layer.time_us) == ("float32", "CPU", None)
    assert layer.implementation
    assert layer.layout


def test_what_depends_on_weights_alone_is_no_layer():
    nodes = [helper.make_node("Transpose", ["w"], ["t"]), helper.make_node("MatMul", ["x", "t"], ["y"])]
    made = model(nodes, [info("x")], [info("y")], [weight("w", 1, 2, 3, 4, shape=(2, 2))])
    assert [layer.nodes for layer in build("openvino", made).layers() if layer.nodes] == [("MatMul #1",)]


def test_times_are_measured_when_a_profile_is_asked_for():
    session = build("openvino:profile", inception(34))
    assert all(layer.time_us is None for layer in session.layers())
    for _ in range(3):
        session.run({"x": RANDOM.normal(size=(1, 8, 8, 8)).astype(np.float32)})
    timed = [layer for layer in session.layers() if layer.time_us is not None]
    assert {"Convolution", "Pooling"} <= {layer.kind for layer in timed}


# Saving


def test_what_was_built_is_saved_and_loaded(tmp_path: Path):
    path = tmp_path / "m.blob"
    feed = {"x": RANDOM.normal(0, 1, (16, 16)).astype(np.float32)}
    built = build("openvino:threads=1", transformer(48))
    built.save(path)
    loaded = create("openvino:threads=1").load(path)
    assert dict(loaded.inputs) == {"x": TensorType(1, (16, 16))}
    assert list(loaded.outputs) == list(built.outputs)
    for name, value in built.run(feed).items():
        np.testing.assert_array_equal(loaded.run(feed)[name], value)
    assert loaded.layers()


@pytest.mark.parametrize("data", [b"", b"nothing of the kind" * 30])
def test_a_damaged_file_does_not_load(tmp_path: Path, data: bytes):
    path = tmp_path / "m.blob"
    path.write_bytes(data)
    with pytest.raises(errors.EngineFailure) as caught:
        create("openvino").load(path)
    assert caught.value.stage == "load"


def test_another_ending_is_a_usage_error(tmp_path: Path):
    with pytest.raises(errors.UsageError, match=r"openvino saves and loads \.blob and \.xml files"):
        build("openvino", chain(1)).save(tmp_path / "m.onnx")


# Checks in forks of a warm process


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork: checks are always cold")
def test_checks_in_forks_say_what_cold_ones_say_every_time(tmp_path: Path):
    made = [
        chain(1),
        chain(5, ("Neg", "Exp")),
        model([helper.make_node("Foo", ["x"], ["y"])], [info("x")], [info("y")]),
    ]
    made += [model([helper.make_node("Reshape", ["x", "s"], ["y"])], [info("x")], [info("y", None)],
                   [weight("s", 7, dtype="int64", shape=(1,))])]  # fmt: skip
    paths = [save(candidate, tmp_path / f"{number}.onnx") for number, candidate in enumerate(made)]
    check = command_check(["biopsy", "run", "{}", "--openvino", "--onnxrt"], "polygraphy_debug.onnx", timeout=60)

    def said(evidence: Evidence) -> tuple[object, ...]:
        return evidence.status, evidence.verdict, re.sub(rb"[\d.]+ m?s\b", b"", evidence.output), evidence.timed_out

    try:
        cold = [said(check.cold().run(path)) for path in paths]
        for _ in range(5):
            assert [said(check.run(path)) for path in paths] == cold
        assert check.starter._server is not None  # they were forks
    finally:
        check.close()


# A real bug: MatMul with a weight, then PRelu with a slope per channel, where there are not as many columns


def transformer_with_the_bug(count: int) -> onnx.ModelProto:
    """``count`` nodes, of which four in the middle split the rows into two channels and join them again."""
    made = transformer(count - 4)
    middle = next(number for number in range(count // 2, count) if made.graph.node[number].op_type == "MatMul")
    old = made.graph.node[middle].output[0]
    apart = weight("apart", 1, 2, 8, 16, dtype="int64")
    joined = weight("joined", 16, 16, dtype="int64")
    matrix = numpy_helper.from_array(RANDOM.normal(0, 0.25, (16, 16)).astype(np.float32), "matrix")
    for node in made.graph.node:
        node.input[:] = ["mended" if name == old else name for name in node.input]
    extra = [
        helper.make_node("Reshape", [old, "apart"], ["split"], name="split"),
        helper.make_node("MatMul", ["split", "matrix"], ["product"], name="culprit0"),
        helper.make_node("PRelu", ["product", "slope"], ["bent"], name="culprit1"),
        helper.make_node("Reshape", ["bent", "joined"], ["mended"], name="join"),
    ]
    nodes = [*made.graph.node[: middle + 1], *extra, *made.graph.node[middle + 1 :]]
    made.graph.ClearField("node")
    made.graph.node.extend(nodes)
    made.graph.initializer.extend([apart, joined, matrix, weight("slope", 0.1, 0.2, shape=(2, 1, 1))])
    return made


@pytest.mark.slow
def test_a_bug_in_a_transformer_of_400_nodes_is_reduced_to_its_two(tmp_path: Path):
    made = transformer_with_the_bug(400)
    assert len(made.graph.node) == 400
    try:
        build("openvino", made)
    except errors.EngineFailure as failure:
        assert failure.stage == "build"
    else:
        pytest.skip(f"OpenVINO {openvino.__version__} no longer has the bug")
    save(made, tmp_path / "m.onnx")
    command = ["debug", "reduce", "m.onnx", "-o", "r.onnx", "--check", "biopsy", "run", "{}", "--openvino"]
    code = "from biopsy.cli.app import main; import sys; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, *command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [node.name for node in onnx.load(tmp_path / "r.onnx").graph.node] == ["culprit0", "culprit1"]


def test_a_signal_after_a_core_was_freed_in_another_thread_ends_nothing(tmp_path: Path) -> None:
    """OpenVINO frees there the stack on which the thread that made the core handles signals."""
    code = """
import signal, sys, threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from biopsy.engines.base import ModelInput
from biopsy.engines.openvino import OpenVino
from biopsy.engines.registry import create
sessions = [create("openvino").build(ModelInput(Path(sys.argv[1]).read_bytes(), Path()))]
thread = threading.Thread(target=sessions.clear)
thread.start()
thread.join()
signal.signal(signal.SIGALRM, lambda *_: print("handled", flush=True))
signal.raise_signal(signal.SIGALRM)
"""
    path = save(chain(1), tmp_path / "m.onnx")
    ran = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "handled\n"), ran.stderr


def test_a_release_that_reads_arrays_from_wrong_memory_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old releases do so beside NumPy 2, and do not notice."""
    old = ModuleType("openvino")
    vars(old).update(
        __version__="2023.3.0-13775",
        Core=openvino.Core,
        Tensor=lambda array: SimpleNamespace(data=np.zeros_like(array)),
    )
    monkeypatch.setitem(sys.modules, "openvino", old)
    with pytest.raises(errors.EngineMissing, match=r"openvino 2023\.3\.0 reads arrays of NumPy .* from wrong memory"):
        OpenVino.package_imported()


@pytest.mark.parametrize("elem", [onnx.TensorProto.INT4, onnx.TensorProto.UINT4, onnx.TensorProto.FLOAT4E2M1])
def test_outputs_with_several_elements_in_a_byte_have_the_shape_and_values_of_the_model(elem: int):
    made = model(
        [helper.make_node("Cast", ["x"], ["y"], to=elem)], [info("x", (3, 3))], [info("y", (3, 3), elem)], opset=23
    )
    given = {"x": np.array([[0, 1, 2], [3, 4, 6], [2, 1, 0]], np.float32)}
    made.ir_version = 11
    (expected,) = build("reference", made).run(given).values()
    (computed,) = build("openvino", made).run(given).values()
    assert computed.dtype == expected.dtype and np.array_equal(computed, expected)
