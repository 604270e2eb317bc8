"""ONNX Runtime: providers, optimization levels, settings."""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from benchmarks.models import inception, transformer
from biopsy import errors
from biopsy.engines import onnxrt
from biopsy.engines.base import ModelInput
from biopsy.engines.onnxrt_facts import read_profile
from biopsy.engines.registry import create
from biopsy.tensors.types import dtype_named
from support.models import chain, info, model, weight


def build(spec: str, data: bytes | None = None) -> onnxrt.OnnxRuntimeSession:
    session = create(spec).build(ModelInput(data or chain(3).SerializeToString(), Path()))
    assert isinstance(session, onnxrt.OnnxRuntimeSession)
    return session


@pytest.mark.parametrize("level", list(onnxrt.LEVELS))
def test_every_optimization_level_is_handed_on(level: str):
    options = build(f"onnxrt:optimization={level}")._session.get_session_options()
    assert options.graph_optimization_level == getattr(ort.GraphOptimizationLevel, onnxrt.LEVELS[level])


def test_threads_execution_mode_and_config_entries_are_handed_on():
    spec = "onnxrt:threads=2,inter_threads=3,execution=parallel,config.session.disable_prepacking=1"
    options = build(spec)._session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 3)
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert options.get_session_config_entry("session.disable_prepacking") == "1"


def test_a_disabled_optimizer_does_not_run(tmp_path: Path):
    def nodes_left(settings: str) -> int:
        path = tmp_path / f"{len(settings)}.onnx"
        nodes = [helper.make_node("Identity", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
        made = model(nodes, [info("x")], [info("y")])
        build(f"onnxrt:optimization=basic{settings}", made.SerializeToString()).save(path)
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


def with_unknown_operator() -> bytes:
    return model([helper.make_node("Foo", ["x"], ["y"])], [info("x")], [info("y")]).SerializeToString()


def test_a_provider_that_starts_with_no_model_is_missing_and_no_model_is_blamed(monkeypatch: pytest.MonkeyPatch):
    def fails(source: bytes, options: object = None, **more: object) -> None:
        del source, options, more
        raise RuntimeError(f"/src/cuda_call.cc:154 bool CudaCall(int) {failure} ; GPU=-1 ; hostname=here ;")

    failure = "CUDA failure 100: no CUDA-capable device is detected"
    monkeypatch.setattr(ort, "InferenceSession", fails)
    with pytest.raises(errors.EngineMissing) as caught:
        build("onnxrt:providers=azure,provider.azure.zone=1")
    assert caught.value.message.endswith(f"with provider.azure.zone=1, whatever the model: {failure}")


@pytest.mark.parametrize("provider", ["azure", "cpu"])
def test_a_model_that_fails_where_its_provider_starts_is_to_blame(provider: str):
    with pytest.raises(errors.EngineFailure, match="Foo"):
        build(f"onnxrt:providers={provider}", with_unknown_operator())


def sessions_begun(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The providers of each session that begins from now on."""
    begun: list[list[str]] = []

    class Session(ort.InferenceSession):  # type: ignore[misc]
        def __init__(self, *words: object, providers: list[str], **more: object) -> None:
            begun.append(providers)
            super().__init__(*words, providers=providers, **more)

    monkeypatch.setattr(ort, "InferenceSession", Session)
    return begun


def test_a_process_that_is_to_be_forked_starts_no_provider_but_the_cpu(monkeypatch: pytest.MonkeyPatch):
    begun = sessions_begun(monkeypatch)
    create("onnxrt:providers=azure+cpu,provider.azure.zone=1").warm_up()
    assert begun == [["CPUExecutionProvider"]]


@pytest.mark.parametrize(("provider", "times"), [("cuda", 1), ("tensorrt", 1), ("azure", 0)])
def test_cuda_as_pip_installs_it_is_found_and_what_it_lacks_is_not_printed(
    provider: str, times: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    every = ort.get_all_providers()
    monkeypatch.setattr(ort, "get_available_providers", lambda: every)
    monkeypatch.setattr(ort.InferenceSession, "get_providers", lambda self: ["CPUExecutionProvider"])
    loaded: list[str] = []

    def preload() -> None:
        sys.stdout.write("Failed to load libcublas.so")
        loaded.append(provider)

    monkeypatch.setattr(ort, "preload_dlls", preload)
    with pytest.raises(errors.EngineMissing) as caught:
        build(f"onnxrt:providers={provider}")
    assert loaded == [provider] * times
    assert ("onnxruntime-gpu[cuda,cudnn]" in str(caught.value.next_steps)) == bool(times)
    assert capsys.readouterr().out == ""


def test_a_provider_that_runs_no_node_is_told():
    told = build("onnxrt:providers=azure").remarks
    if hasattr(ort.InferenceSession, "get_provider_graph_assignment_info"):
        assert told == ("AzureExecutionProvider runs none of the 3 nodes: CPUExecutionProvider runs 3",)
    else:
        assert told == ("this version of ONNX Runtime does not tell which nodes AzureExecutionProvider really ran",)


def test_the_cpu_needs_no_remark():
    assert build("onnxrt").remarks == ()


def test_options_of_a_provider_are_handed_on_and_told_where_they_are_not_confirmed():
    told = build("onnxrt:provider.cpu.speed=11").remarks
    assert told == ("CPUExecutionProvider does not say whether it has an option 'speed': it may have ignored it",)


@pytest.mark.parametrize(("used", "told"), [("1", "uses speed=1 instead of speed=false"), ("0", None)])
def test_a_switch_of_a_provider_may_be_a_word(used: str, told: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        ort.InferenceSession, "get_provider_options", lambda self: {"CPUExecutionProvider": {"speed": used}}
    )
    remarks = build("onnxrt:provider.cpu.speed=false").remarks
    assert remarks == (() if told is None else (f"CPUExecutionProvider {told}",))


@pytest.mark.parametrize("setting", ["provider.cuda.device_id=1", "provider.cpu=1"])
def test_options_of_a_provider_that_is_not_in_use_are_refused(setting: str):
    with pytest.raises(errors.UsageError, match=r"provider\.NAME\.OPTION=VALUE; in use: CPUExecutionProvider"):
        build(f"onnxrt:{setting}")


# Precision


@pytest.mark.parametrize(
    ("op_type", "used", "is_told"), [("MatMul", "1", True), ("MatMul", "0", False), ("Add", "1", False)]
)
def test_tf32_is_told_where_cuda_uses_it_for_what_the_model_has(
    op_type: str, used: str, is_told: bool, monkeypatch: pytest.MonkeyPatch
):
    told_by_cuda = {"CUDAExecutionProvider": {"use_tf32": used}}
    monkeypatch.setattr(ort.InferenceSession, "get_provider_options", lambda self: told_by_cuda)
    made = model([helper.make_node(op_type, ["x", "x"], ["y"])], [info("x")], [info("y")])
    remarks = build("onnxrt", made.SerializeToString()).remarks
    assert [("TF32" in remark) for remark in remarks] == [True] * is_told


def in_halves(*, declared: bool) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=10, name="down"),
        helper.make_node("Tanh", ["h"], ["t"], name="tanh"),
        helper.make_node("Cast", ["t"], ["y"], to=1, name="up"),
    ]
    return model(nodes, [info("x")], [info("y")], value_info=[info("t", elem=10)] if declared else [])


@pytest.mark.parametrize("declared", [True, False])
def test_halves_are_computed_in_float32_on_the_cpu_and_that_is_told(declared: bool):
    told = build("onnxrt", in_halves(declared=declared).SerializeToString()).remarks
    assert told == (
        "ONNX Runtime computes most float16 nodes in float32 on the CPU, without the roundings between them",
    )


def test_rounding_by_casts_alone_needs_no_remark():
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=10, name="down"),
        helper.make_node("Cast", ["h"], ["r"], to=1, name="up"),
        helper.make_node("Tanh", ["r"], ["y"], name="tanh"),
    ]
    made = model(nodes, [info("x")], [info("y")], value_info=[info("h", elem=10)])
    assert build("onnxrt", made.SerializeToString()).remarks == ()


def test_bytes_that_only_look_like_halves_need_no_remark():
    made = model([helper.make_node("Neg", ["x"], ["y"])], [info("x")], [info("y")], opset=16)
    made.ir_version = 10
    assert build("onnxrt", made.SerializeToString()).remarks == ()


def test_the_layers_show_the_precision_that_is_used():
    layers = {layer.name: layer for layer in build("onnxrt", in_halves(declared=True).SerializeToString()).layers()}
    assert layers["tanh"].precision == "float32"
    assert layers["tanh"].device == "CPU"


# Layers


def test_a_layer_names_the_nodes_that_were_fused_into_it():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="matmul"),
        helper.make_node("Add", ["a", "b"], ["c"], name="bias"),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    weights = [weight("w", *range(4), shape=(2, 2)), weight("b", 1, 2)]
    layers = build("onnxrt", model(nodes, [info("x")], [info("y")], weights).SerializeToString()).layers()
    assert [(layer.kind, layer.nodes) for layer in layers] in (
        [("Gemm", ("matmul", "bias")), ("Relu", ("Relu #2",))],
        [("FusedGemm", ("matmul", "bias", "Relu #2"))],
    )
    assert {layer.precision for layer in layers} == {"float32"}
    assert {layer.time_us for layer in layers} == {None}


def test_every_node_of_a_transformer_is_in_one_layer_or_was_folded_into_one():
    made = transformer(96)
    layers = build("onnxrt", made.SerializeToString()).layers()
    found = [name for layer in layers for name in layer.nodes]
    assert len(layers) < 96
    assert sorted(set(found)) == sorted(node.name for node in made.graph.node)
    normalizations = [layer for layer in layers if layer.kind == "LayerNormalization"]
    assert {len(layer.nodes) for layer in normalizations} == {9}


def test_a_layout_of_its_own_is_named():
    layers = build("onnxrt", inception(34).SerializeToString()).layers()
    convolutions = [layer for layer in layers if layer.kind == "Conv"]
    if not any(layer.layout for layer in convolutions):
        pytest.skip("this processor gets no NCHWc convolutions")
    assert {layer.layout for layer in convolutions} <= {"NCHWc", ""}
    assert all(len(layer.nodes) == 2 for layer in convolutions)  # the convolution and its Relu
    assert all(layer.nodes == () for layer in layers if layer.kind.startswith("Reorder"))


def test_without_optimization_every_node_is_a_layer():
    layers = build("onnxrt:optimization=none", chain(3).SerializeToString()).layers()
    assert [(layer.name, layer.nodes) for layer in layers] == [("n0", ("n0",)), ("n1", ("n1",)), ("n2", ("n2",))]


@pytest.mark.parametrize("names", [True, False], ids=["named", "without names"])
def test_times_are_measured_when_a_profile_is_asked_for(names: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    made = chain(3, names=names)
    made.graph.node.insert(0, helper.make_node("Constant", [], ["c"], value_float=1.0))
    made.graph.node.append(helper.make_node("Mul", [made.graph.output[0].name, "c"], ["y"]))
    made.graph.output[0].name = "y"
    session = build("onnxrt:profile", made.SerializeToString())
    for _ in range(3):
        session.run({"t0": np.zeros((2, 2), np.float32)})
    assert all(layer.time_us is not None and layer.time_us >= 0 for layer in session.layers())
    assert session.layers() == session.layers()
    assert list(tmp_path.iterdir()) == []


def test_a_profile_that_is_not_json_tells_no_times(tmp_path: Path):
    (tmp_path / "profile.json").write_text('[{"cat": "Node", "name": "a "quoted" node_kernel_time", "dur": 5}]')
    assert read_profile(tmp_path / "profile.json") == {}


# Saving


@pytest.mark.parametrize("ending", [".onnx", ".ort"])
def test_what_was_built_is_saved_and_loaded(tmp_path: Path, ending: str):
    path = tmp_path / f"m{ending}"
    made = transformer(48)
    feed = {"x": np.random.default_rng(1).normal(0, 1, (16, 16)).astype(np.float32)}
    built = build("onnxrt", made.SerializeToString())
    built.save(path)
    loaded = create("onnxrt").load(path)
    assert dict(loaded.inputs) == dict(built.inputs)
    for name, value in built.run(feed).items():
        np.testing.assert_array_equal(loaded.run(feed)[name], value)


def test_what_is_loaded_is_not_optimized_again(tmp_path: Path):
    weights = [weight("w", *range(4), shape=(2, 2)), weight("b", 1, 2)]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "b"], ["y"])]
    made = model(nodes, [info("x")], [info("y")], weights)
    build("onnxrt:optimization=none", made.SerializeToString()).save(tmp_path / "m.onnx")
    assert [layer.kind for layer in create("onnxrt").load(tmp_path / "m.onnx").layers()] == ["MatMul", "Add"]


@pytest.mark.parametrize("ending", [".onnx", ".ort"])
@pytest.mark.parametrize("size", [4, 4096])
def test_weights_in_other_files_are_saved_too(tmp_path: Path, size: int, ending: str):
    (tmp_path / "w.bin").write_bytes(np.arange(size, dtype=np.float32).tobytes())
    absent = TensorProto(name="w", data_type=1, dims=[size], data_location=TensorProto.EXTERNAL)
    absent.external_data.add(key="location", value="w.bin")
    made = model([helper.make_node("Add", ["x", "w"], ["y"])], [info("x", (size,))], [info("y", (size,))], [absent])
    create("onnxrt").build(ModelInput(made.SerializeToString(), tmp_path)).save(tmp_path / f"m{ending}")
    (tmp_path / "w.bin").unlink()
    found = create("onnxrt").load(tmp_path / f"m{ending}").run({"x": np.zeros(size, np.float32)})
    assert found["y"].tolist() == list(range(size))


@pytest.mark.parametrize("data", [b"", b"nothing of the kind" * 9])
def test_a_damaged_file_does_not_load(tmp_path: Path, data: bytes):
    path = tmp_path / "m.ort"
    path.write_bytes(data)
    with pytest.raises((errors.EngineFailure, errors.ModelError), match=r"m\.ort|ORT model"):
        create("onnxrt").load(path)


def test_another_ending_is_a_usage_error(tmp_path: Path):
    with pytest.raises(errors.UsageError, match=r"onnxrt saves and loads \.onnx and \.ort files"):
        build("onnxrt").save(tmp_path / "m.engine")
    with pytest.raises(errors.UsageError, match=r"onnxrt saves and loads \.onnx and \.ort files"):
        create("onnxrt").load(tmp_path / "m.engine")


def test_an_ort_file_has_no_layers_to_tell(tmp_path: Path):
    build("onnxrt").save(tmp_path / "m.ort")
    with pytest.raises(errors.UsageError, match=r"m\.ort cannot be told in layers"):
        create("onnxrt").load(tmp_path / "m.ort").layers()


# What it cannot take


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


def test_a_scalar_of_a_type_that_numpy_lacks_is_fed_as_a_scalar():
    kind = onnx.TensorProto.BFLOAT16
    made = model([helper.make_node("Identity", ["x"], ["y"])], [info("x", (), kind)], [info("y", (), kind)])
    session = create("onnxrt").build(ModelInput(made.SerializeToString(), Path()))
    assert session.run({"x": np.array(2, dtype_named("bfloat16"))})["y"].shape == ()
