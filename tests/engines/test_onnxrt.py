"""ONNX Runtime: providers, optimization levels, settings."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from biopsy import errors
from biopsy.engines import onnxrt
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from support.models import chain, info, model


def build(spec: str, data: bytes | None = None) -> onnxrt.OnnxRuntimeSession:
    session = create(spec).build(ModelInput(data or chain(3).SerializeToString(), Path()))
    assert isinstance(session, onnxrt.OnnxRuntimeSession)
    return session


@pytest.mark.parametrize("level", list(onnxrt.LEVELS))
def test_every_optimization_level_is_handed_on(level: str):
    options = build(f"onnxrt:optimization={level}")._session.get_session_options()
    assert options.graph_optimization_level == getattr(ort.GraphOptimizationLevel, onnxrt.LEVELS[level])


def test_threads_execution_mode_and_config_entries_are_handed_on():
    spec = "onnxrt:threads=2,execution=parallel,config.session.disable_prepacking=1"
    options = build(spec)._session.get_session_options()
    assert options.intra_op_num_threads == 2
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert options.get_session_config_entry("session.disable_prepacking") == "1"


def test_a_disabled_optimizer_does_not_run(tmp_path: Path):
    def nodes_left(settings: str) -> int:
        path = tmp_path / f"{len(settings)}.onnx"
        nodes = [helper.make_node("Identity", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
        made = model(nodes, [info("x")], [info("y")])
        engine = create(f"onnxrt:optimization=basic{settings}")
        assert isinstance(engine, onnxrt.OnnxRuntime)
        options = engine._session_options(ort, ModelInput(b"", tmp_path))
        options.optimized_model_filepath = str(path)
        ort.InferenceSession(
            made.SerializeToString(), options, disabled_optimizers=list(engine.options["disabled_optimizers"])
        )
        return len(onnx.load(path).graph.node)

    assert nodes_left("") == 1
    assert nodes_left(",disabled_optimizers=EliminateIdentity") == 2


@pytest.mark.parametrize("word", ["cpu", "CPU", "CPUExecutionProvider"])
def test_a_provider_may_be_named_in_short(word: str):
    assert build(f"onnxrt:providers={word}")._session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.skipif("CUDAExecutionProvider" in ort.get_available_providers(), reason="this onnxruntime has CUDA")
def test_a_provider_that_is_not_in_the_package_is_missing_and_never_replaced():
    with pytest.raises(errors.EngineMissing, match="has no CUDAExecutionProvider"):
        build("onnxrt:providers=cuda+cpu")


def test_a_provider_that_nobody_knows_is_a_usage_error():
    with pytest.raises(errors.UsageError, match="no execution provider 'abacus'"):
        build("onnxrt:providers=abacus")


def test_a_provider_that_does_not_start_is_missing_and_never_replaced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ort.InferenceSession, "get_providers", lambda self: ["OtherExecutionProvider"])
    with pytest.raises(errors.EngineMissing, match="would have used OtherExecutionProvider instead"):
        build("onnxrt")


def test_types_that_cannot_be_fed_from_python_say_so():
    int4 = int(TensorProto.INT4)
    node = helper.make_node("DequantizeLinear", ["x", "s"], ["y"])
    made = model([node], [info("x", (2,), int4), info("s", ())], [info("y", (2,))], opset=21)
    made.ir_version = 10
    session = build("onnxrt", made.SerializeToString())
    with pytest.raises(errors.EngineFailure, match="int4 cannot be fed") as caught:
        session.run({"x": np.zeros(2, np.int8), "s": np.ones((), np.float32)})
    assert caught.value.kind == "UnsupportedType"


def test_a_node_without_a_kernel_fails_at_build():
    made = model([helper.make_node("Det", ["x"], ["y"])], [info("x", (2, 2), 1)], [info("y", (), 1)], opset=11)
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    with pytest.raises(errors.EngineFailure) as caught:
        build("onnxrt", made.SerializeToString())
    assert caught.value.stage in {"load", "build"}
