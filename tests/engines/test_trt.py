"""TensorRT: here for real without a GPU, as far as TensorRT for RTX goes; running where there is a GPU."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.models import transformer
from biopsy import errors
from biopsy.cli.app import main
from biopsy.engines import trt
from biopsy.engines.base import ModelInput, Session
from biopsy.engines.registry import create
from biopsy.engines.trt import TensorRt
from biopsy.engines.trt_execution import gpu_names
from biopsy.engines.trt_settings import load, plain_reason, profiles_of, shapes
from biopsy.model.tensor_type import TensorType
from support.models import FLOAT, chain, info, model, save, weight

pytestmark = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, ("tensorrt_rtx", "tensorrt_rtx_bindings"))),
    reason="tensorrt-rtx-cu13 is not installed (it has wheels for Linux on x86-64 and for Windows)",
)
needs_gpu = pytest.mark.skipif(not gpu_names(), reason="running an engine of TensorRT needs an NVIDIA GPU")
without_gpu = pytest.mark.skipif(bool(gpu_names()), reason="here is an NVIDIA GPU")

RTX = "trt:package=rtx"


def given(made: onnx.ModelProto, folder: Path = Path(), **shapes: list[tuple[int, ...]]) -> ModelInput:
    return ModelInput(made.SerializeToString(), folder, shapes=shapes)


def build(spec: str, made: onnx.ModelProto, **shapes: list[tuple[int, ...]]) -> Session:
    return create(spec).build(given(made, **shapes))


def dynamic() -> onnx.ModelProto:
    return model([helper.make_node("Relu", ["x"], ["y"])], [info("x", ("N", 2))], [info("y", ("N", 2))])


def with_det(place: int = 1, count: int = 3) -> onnx.ModelProto:
    """A chain of Relu whose node ``place`` is a Det, on one square matrix."""
    ops = ["Det" if number == place else "Relu" for number in range(count)]
    nodes = [helper.make_node(op, [f"t{i}"], [f"t{i + 1}"], name=f"{op} {i}") for i, op in enumerate(ops)]
    return model(nodes, [info("t0")], [info(f"t{count}", None)])


# Building


def test_a_model_is_built_and_saved_without_a_gpu(tmp_path: Path):
    session = build(RTX, transformer(48))
    assert list(session.inputs) == ["x"]
    assert [str(type_) for type_ in session.inputs.values()] == ["float32[16,16]"]
    assert session.remarks == ()
    session.save(tmp_path / "m.engine")
    assert (tmp_path / "m.engine").read_bytes()[:4] == bytes(build(RTX, chain(1))._plan[:4])  # type: ignore[attr-defined]


def test_an_engine_has_an_ending_of_its_own(tmp_path: Path):
    with pytest.raises(errors.UsageError, match=r"saves and loads \.engine, \.plan, \.trt files"):
        build(RTX, chain(1)).save(tmp_path / "m.onnx")


def test_external_weights_are_found(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    absent = TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    absent.external_data.add(key="location", value="sub/w.bin")
    made = model([helper.make_node("Add", ["x", "w"], ["y"])], [info("x", (4,))], [info("y", (4,))], [absent])
    assert create(RTX).build(given(made, tmp_path)).outputs == ("y",)
    (tmp_path / "sub" / "w.bin").unlink()
    with pytest.raises(errors.ModelError, match=r"w\.bin"):
        create(RTX).build(given(made, tmp_path))


@pytest.mark.parametrize("data", [b"no model", chain(3).SerializeToString()[:60]], ids=["text", "cut short"])
def test_damaged_bytes_are_the_models_fault(data: bytes):
    with pytest.raises(errors.ModelError):
        create(RTX).build(ModelInput(data, Path()))


def test_types_that_it_replaces_are_told():
    made = model([helper.make_node("Neg", ["x"], ["y"])], [info("x", (2,), 11)], [info("y", (2,), 11)])
    assert build(RTX, made).remarks == ("TensorRT-RTX computes the model's float64 tensors in float32",)


def test_the_version_names_the_package():
    assert re.fullmatch(r"[\d.]+ \(TensorRT(-RTX)?\)", type(create("trt")).version())
    assert load("rtx").name == "TensorRT-RTX"


def test_a_package_that_is_not_installed_is_missing():
    if importlib.util.find_spec("tensorrt") is not None:
        pytest.skip("tensorrt is installed here")
    with pytest.raises(errors.EngineMissing, match="TensorRT is not installed"):
        build("trt:package=tensorrt", chain(1))


# Failures


def test_an_operator_that_it_does_not_parse_fails_at_load_with_its_name():
    with pytest.raises(errors.EngineFailure, match="does not take Det 'Det 1': unsupported node") as caught:
        build(RTX, with_det())
    assert (caught.value.engine, caught.value.stage, caught.value.kind) == ("trt", "load", "UNSUPPORTED_NODE")


def test_an_unknown_operator_fails_at_load_and_prints_nothing(capfd: pytest.CaptureFixture[str]):
    told = "Foo #0: (Plugin not found|Op type Foo is not supported)"
    with pytest.raises(errors.EngineFailure, match=told) as caught:
        build(RTX, model([helper.make_node("Foo", ["x"], ["y"])], [info("x")], [info("y")]))
    assert caught.value.stage == "load"
    assert caught.value.kind in {"INVALID_NODE", "INTERNAL_ERROR"}  # the latter before 1.7
    assert capfd.readouterr() == ("", "")


def test_a_node_in_a_body_is_named_with_the_node_around_it():
    bodies = {
        "then_branch": helper.make_graph(
            [helper.make_node("Det", ["x"], ["a"], name="inner")], "a", [], [info("a", ())]
        ),
        "else_branch": helper.make_graph(
            [helper.make_node("ReduceSum", ["x"], ["b"], keepdims=0)], "b", [], [info("b", ())]
        ),
    }
    node = helper.make_node("If", ["c"], ["y"], name="outer", **bodies)
    made = model([node], [info("x"), info("c", (), 9)], [info("y", ())])
    with pytest.raises(errors.EngineFailure, match=r"Det 'inner' in outer \(If\)"):
        build(RTX, made)


def test_shapes_that_do_not_fit_are_told_without_places_in_its_source():
    made = model([helper.make_node("MatMul", ["a", "b"], ["y"], name="m")], [info("a"), info("b", (3, 3))], [info("y")])
    with pytest.raises(errors.EngineFailure) as caught:
        build(RTX, made)
    assert "must match" in caught.value.message
    assert "_src" not in caught.value.message
    assert "cuda" not in caught.value.message.lower()


def test_what_parses_and_cannot_be_built_fails_at_build():
    made = model([helper.make_node("MatMul", ["x", "x"], ["y"])], [info("x", (4, 4), 3)], [info("y", (4, 4), 3)])
    with pytest.raises(errors.EngineFailure) as caught:
        build(RTX, made)
    assert (caught.value.stage, caught.value.kind) == ("build", "Myelin")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("false", ""),
        ('creator && "Plugin not found"', "Plugin not found"),
        ("Assertion failed: a(b) == C::d: NonZero has no plug-in", "NonZero has no plug-in"),
        (
            "Invalid Node - m\nI::f: Error Code 4: API Usage Error (m: why. In v at /_src/a.cpp:1)\n[checkMacros]",
            "m: why.",
        ),
        (
            "Error Code 1: Cuda Runtime (In g at /_src/a.cpp:25 (cudaError 35: driver is too old))",
            "driver is too old",
        ),
        ("Error Code 1: Cuda Runtime (why. In g at /_src/a.cpp:25 (cudaError 35: too old a driver))", "why."),
    ],
)
def test_reasons_are_freed_from_what_is_about_the_source(text: str, told: str):
    assert plain_reason(text) == told


# Settings


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp8", "int8"])
def test_a_precision_that_its_generation_does_not_choose_names_the_alternative(precision: str):
    with pytest.raises(errors.UsageError, match=f"no flag for {precision}: its networks are strongly typed") as caught:
        build(f"{RTX},{precision}", chain(1))
    assert any("odel" in step for step in caught.value.next_steps)


def test_flags_limits_and_levels_are_handed_on():
    spec = f"{RTX},tf32,flags=refit+strip_plan,pool.workspace=16M,optimization=3,hardware_compatibility=ampere_plus"
    assert build(f"{spec},onnx_flags=native_instancenorm,compute=sm89+sm120", chain(1)).remarks == ()


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("flags=nope", "no BuilderFlag NOPE"),
        ("compute=sm1", "no ComputeCapability SM1"),
        ("optimization=9", "a level from 0 to 5 is wanted"),
        ("pool.workspace=much", "a size in bytes is wanted"),
        ("pool.lake=1", "no MemoryPoolType LAKE"),
        ("min_shapes=x:1", "shapes such as"),
        ("plugins=/no/such.so", "cannot load the plug-ins in /no/such.so"),
    ],
)
def test_a_setting_that_it_does_not_have_is_no_failure_of_the_model(setting: str, told: str):
    with pytest.raises(errors.UsageError, match=told):
        build(f"{RTX},{setting}", chain(1))


def test_a_timing_cache_is_kept_and_said_to_be_useless_to_rtx(tmp_path: Path):
    spec = f"{RTX},save_timing_cache={tmp_path / 'c'},load_timing_cache={tmp_path / 'none'}"
    told = build(spec, chain(1)).remarks
    assert (tmp_path / "c").stat().st_size > 0
    assert "changes nothing" in told[0]
    assert "there is no timing cache" in told[1]
    assert len(build(f"{RTX},load_timing_cache={tmp_path / 'c'}", chain(1)).remarks) == 1


def test_all_tensors_or_some_are_marked_in_its_network():
    assert build(f"{RTX},outputs=all", chain(3)).outputs == ("t3", "t1", "t2")
    assert build(f"{RTX},outputs=t1+t2", chain(3)).outputs == ("t1", "t2")
    with pytest.raises(errors.DoesNotFit, match="no tensor 'nope'"):
        build(f"{RTX},outputs=nope", chain(3))
    assert build(f"{RTX},outputs=all,exclude_outputs=t1", chain(3)).outputs == ("t3", "t2")
    assert build(f"{RTX},outputs=all,exclude_outputs=t3", chain(3)).outputs == ("t1", "t2")
    for unfit in ("exclude_outputs=t1", "exclude_outputs=t3", "outputs=t1+t2,exclude_outputs=t3"):
        with pytest.raises(errors.DoesNotFit):
            build(f"{RTX},{unfit}", chain(3))


# Dynamic shapes


def test_a_shape_that_nobody_gives_is_guessed_and_told():
    (told,) = build(RTX, dynamic()).remarks
    assert "nothing says the shape of input 'x': the engine is built for [1, 2]" in told


def test_shapes_that_nobody_gives_are_told_at_once():
    two = model(
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["z"], ["q"])],
        [info("x", ("N", 2)), info("z", ("M", 3))],
        [info("y", ("N", 2)), info("q", ("M", 3))],
    )
    (told,) = build(RTX, two).remarks
    assert "'x': the engine is built for [1, 2]; nor the shape of input 'z': the engine is built for [1, 3]" in told


def test_a_run_tells_open_shapes_once_whatever_engines_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = save(dynamic(), tmp_path / "m.onnx")
    main(["run", str(path), "--trt", "--onnxrt"])  # without a GPU TensorRT only builds
    assert capsys.readouterr().err.count("warning: ") == 1


def test_shapes_come_from_the_options_or_from_the_values_to_be_fed():
    assert build(rf"{RTX},min_shapes=x:[1\,2],max_shapes=x:[8\,2]", dynamic()).remarks == ()
    assert build(RTX, dynamic(), x=[(3, 2), (1, 2)]).remarks == ()


def test_every_optimization_profile_is_built():
    built = profiles_of(
        {"x": TensorType(1, ("N", 2)), "y": TensorType(1, ("M",))},
        {
            "min_shapes": shapes("x:[1,2]/x:[8,2]"),
            "opt_shapes": shapes("x:[2,2]+y:[3]/x:[9,2]/y:[4]"),
            "max_shapes": shapes("x:[4,2]"),
        },
        given(dynamic()),
        {"x": (1, 2), "y": (1,)},
    )
    spans = [{name: (span.least, span.best, span.most) for name, span in profile.items()} for profile in built]
    threes = ((3,),) * 3
    assert spans == [
        {"x": ((1, 2), (2, 2), (4, 2)), "y": threes},
        {"x": ((8, 2), (9, 2), (9, 2)), "y": threes},
        {"x": ((8, 2), (9, 2), (9, 2)), "y": ((4,),) * 3},
    ]


def test_options_that_are_repeated_make_several_profiles(monkeypatch: pytest.MonkeyPatch, here: Path):
    asked: list[int] = []
    found = TensorRt._set_shapes

    def counted(self, builder, network, config, index, model):  # type: ignore[no-untyped-def]
        told = found(self, builder, network, config, index, model)
        asked.append(config.num_optimization_profiles)
        return told

    monkeypatch.setattr(TensorRt, "_set_shapes", counted)
    save(dynamic(), here / "m.onnx")
    words = [word for size in (1, 8, 64) for word in ("--trt-min-shapes", f"x:[{size},2]", "--trt-max-shapes",
             f"x:[{2 * size},2]")]  # fmt: skip
    assert run("m.onnx", "--build-only", *words) == 0
    assert asked == [3]


def test_names_with_the_marks_of_a_list_are_names():
    assert shapes("a[0]/b+c:[1]+/q:[]/a:[2]") == ({"a[0]/b+c": (1,), "/q": ()}, {"a": (2,)})
    with pytest.raises(ValueError, match="two shapes"):
        shapes("a:[1]+a:[2]")


@pytest.mark.parametrize(
    "setting", [r"opt_shapes=x:[1\,3]", r"min_shapes=x:[9\,2],max_shapes=x:[8\,2]", r"opt_shapes=x:[1\,2\,3]"]
)
def test_shapes_that_contradict_the_model_or_each_other_do_not_fit(setting: str):
    with pytest.raises(errors.DoesNotFit):
        build(f"{RTX},{setting}", dynamic())


def test_shapes_for_an_input_that_a_candidate_lacks_are_passed_over():
    told = build(rf"{RTX},opt_shapes=q:[1\,2]", dynamic()).remarks
    assert "no input 'q'" in told[0]


# From the command line


def run(*words: str) -> int:
    return main(["run", *words])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_build_only_builds_saves_and_runs_nothing(here: Path, capsys: pytest.CaptureFixture[str]):
    save(chain(2), here / "m.onnx")
    assert run("m.onnx", "--trt", "--build-only", "--save-engine", "m.engine") == 0
    shown = capsys.readouterr()
    assert "TensorRT-RTX" in shown.out + shown.err
    assert "PASSED | trt built the model; nothing was run" in shown.out
    assert (here / "m.engine").stat().st_size > 1000


@without_gpu
def test_without_a_gpu_nothing_is_concluded_after_it_is_built(here: Path, capsys: pytest.CaptureFixture[str]):
    save(chain(2), here / "m.onnx")
    assert run("m.onnx", "--trt") == 4
    told = capsys.readouterr().err.splitlines()
    assert "has built the model; running it needs an NVIDIA GPU" in told[0]
    assert "--build-only" in told[1]


@without_gpu
@pytest.mark.parametrize("saved", [False, True], ids=["built", "saved"])
def test_a_driver_that_starts_no_engine_is_not_the_models_fault(
    saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trt, "require_gpu", lambda *words: None)  # as if there were a GPU with an old driver
    session = build(RTX, chain(2))
    session.save(tmp_path / "m.engine")
    with pytest.raises(errors.EngineMissing, match="runs nothing here, whatever the model: CUDA driver version"):
        create(RTX).load(tmp_path / "m.engine") if saved else session.run({"t0": np.ones((2, 2), np.float32)})


@without_gpu
def test_an_engine_cannot_be_read_without_a_gpu(here: Path, capsys: pytest.CaptureFixture[str]):
    (here / "m.engine").write_bytes(b"anything")
    assert run("m.engine", "--trt") == 4
    assert "m.engine is an engine of TensorRT: reading it needs an NVIDIA GPU" in capsys.readouterr().err


def test_what_is_refused_fails_even_without_a_gpu(here: Path, capsys: pytest.CaptureFixture[str]):
    save(with_det(), here / "m.onnx")
    assert run("m.onnx", "--trt") == 1
    assert "FAILED | trt failed to load the model" in capsys.readouterr().out


def test_flags_as_users_of_tensorrt_type_them(here: Path, capsys: pytest.CaptureFixture[str]):
    save(dynamic(), here / "m.onnx")
    words = (
        "m.onnx --trt --tf32 --workspace 1G --pool-limit workspace:16M --refittable --strip-plan --trt-outputs mark all"
    )
    shapes = "--trt-min-shapes x:[1,2] --trt-opt-shapes x:[2,2] --trt-max-shapes x:[8,2] --builder-optimization-level 2"
    caches = "--save-timing-cache c.bin --build-only"
    assert run(*words.split(), *shapes.split(), *caches.split()) == 0, capsys.readouterr().err
    assert (here / "c.bin").exists()


def test_flags_of_an_engine_are_refused_without_it(here: Path, capsys: pytest.CaptureFixture[str]):
    save(chain(2), here / "m.onnx")
    assert run("m.onnx", "--onnxrt", "--fp16") == 2
    assert "--fp16 is a setting of --trt" in capsys.readouterr().err


@pytest.mark.slow
def test_an_operator_inside_a_network_is_reduced_to_one_node(here: Path):
    made = with_det(place=40, count=60)
    save(made, here / "m.onnx")
    words = ["debug", "reduce", "m.onnx", "-o", "r.onnx", "--check", "biopsy", "run", "{}", "--trt", "--build-only"]
    code = "from biopsy.cli.app import main; import sys; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [node.op_type for node in onnx.load(here / "r.onnx").graph.node] == ["Det"]


# Running


@needs_gpu
def test_values_are_those_of_onnxruntime():
    made, feed = transformer(48), {"x": np.random.default_rng(1).normal(0, 1, (16, 16)).astype(np.float32)}
    expected = create("onnxrt").build(given(made)).run(feed)
    session = build("trt", made)
    for _ in range(2):
        for name, value in session.run(feed).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-3)


@needs_gpu
def test_a_saved_engine_is_loaded_and_run(tmp_path: Path):
    build("trt", chain(2)).save(tmp_path / "m.engine")
    session = create("trt").load(tmp_path / "m.engine")
    assert session.run({"t0": -np.ones((2, 2), np.float32)})["t2"].tolist() == [[0, 0], [0, 0]]


@needs_gpu
def test_shapes_and_sizes_that_depend_on_values_come_back():
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Concat", ["x", "w"], ["y"], axis=0)]
    made = model(
        nodes,
        [info("x", ("N", 2))],
        [info("s", (2,), TensorProto.INT64), info("y", None, FLOAT)],
        [weight("w", 1, 2, shape=(1, 2))],
    )
    found = build("trt", made, x=[(3, 2), (5, 2)]).run({"x": np.zeros((5, 2), np.float32)})
    assert found["s"].tolist() == [5, 2]
    assert found["y"].shape == (6, 2)
