"""The fake engine: right but for the faults that are asked for."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks.models import control_flow, transformer
from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from biopsy.engines.worker import Worker
from biopsy.model.extract import mark_outputs
from biopsy.tensors.files import write_feeds
from support.models import FLOAT, INT64, chain, info, model, save

Arrays = Mapping[str, np.ndarray]
RIGHT = "onnxrt:optimization=none,threads=1"
X = np.array([[1, -2], [3, -4]], np.float32)


def run(spec: str, made: onnx.ModelProto, feed: Arrays, outputs: Sequence[str] | str | None = None) -> Arrays:
    data = made.SerializeToString() if outputs is None else mark_outputs(made.SerializeToString(), outputs)
    session = create(spec).build(ModelInput(data, Path()))
    return session.run({name: feed[name] for name in session.inputs})


def build(spec: str, made: onnx.ModelProto | None = None) -> None:
    create(spec).build(ModelInput((made or chain(3, ("Neg", "Abs"))).SerializeToString(), Path()))


def test_without_faults_all_is_right():
    made, feed = transformer(48), {"x": np.ones((16, 16), np.float32)}
    for name, value in run(RIGHT, made, feed, "all").items():
        np.testing.assert_array_equal(run("fake", made, feed, "all")[name], value)


# Wrong layers


def test_a_layer_is_multiplied_and_what_comes_after_is_computed_from_that():
    found = run("fake:scale.n1=2", chain(4, ("Neg",)), {"t0": X}, "all")
    for number, factor in enumerate([-1, 2, -2, 2], 1):
        np.testing.assert_array_equal(found[f"t{number}"], factor * X)


def test_it_is_wrong_whether_or_not_it_is_marked():
    made = chain(4, ("Neg",))
    np.testing.assert_array_equal(run("fake:scale.n1=2", made, {"t0": X})["t4"], 2 * X)
    np.testing.assert_array_equal(run("fake:scale.n1=2", made, {"t0": X}, ["t2"])["t2"], 2 * X)


def test_something_is_added():
    np.testing.assert_array_equal(run("fake:offset.n0=0.5", chain(2, ("Neg",)), {"t0": X})["t2"], X - np.float32(0.5))


def test_faults_on_the_same_layer_add_up():
    np.testing.assert_array_equal(run("fake:scale.n0=2,offset.n0=1", chain(1, ("Neg",)), {"t0": X})["t1"], -2 * X + 1)


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("n1", {"t2"}),
        ("t2", {"t2"}),
        ("Abs", {"t2", "t4"}),
        (r"n[23]", {"t3", "t4"}),
        (r"n\d", {"t1", "t2", "t3", "t4"}),
        ("Neg~Abs", {"t2", "t4"}),
        ("Abs~Neg", {"t3"}),
        ("Neg~Abs~Neg", {"t3"}),
        ("n0~n2", set()),
        ("nobody", set()),
    ],
)
def test_layers_are_named_by_name_output_operator_pattern_or_who_reads_whom(key: str, wrong: set[str]):
    made = chain(4, ("Neg", "Abs"))
    for tensor in ("t1", "t2", "t3", "t4"):
        feed = {"t0": X}
        part = run(f"fake:scale.{key}=2", made, feed, [tensor])[tensor] / run(RIGHT, made, feed, [tensor])[tensor]
        expected = 2 ** len({one for one in wrong if one <= tensor})
        np.testing.assert_array_equal(part, np.full((2, 2), expected))


def test_noise_is_relative_and_the_same_for_the_same_seed():
    made, feed = chain(1, ("Neg",)), {"t0": np.full((100, 100), 7, np.float32)}
    made.graph.input[0].CopyFrom(info("t0", (100, 100)))
    made.graph.output[0].CopyFrom(info("t1", (100, 100)))
    one, same, other = (run(f"fake:noise.n0=0.01,seed={seed}", made, feed)["t1"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    assert 0.009 < (one / -7 - 1).std() < 0.011


def test_a_share_of_the_elements_becomes_nan():
    made = model([helper.make_node("Neg", ["x"], ["y"])], [info("x", (100, 100))], [info("y", (100, 100))])
    found = run("fake:nan.Neg=0.1", made, {"x": np.ones((100, 100), np.float32)})["y"]
    assert 0.08 < np.isnan(found).mean() < 0.12
    assert (found[~np.isnan(found)] == -1).all()


@pytest.mark.parametrize(("elem", "dtype"), [(10, np.float16), (11, np.float64)])
@pytest.mark.parametrize("fault", ["scale.Neg=2", "offset.Neg=-1", "noise.Neg=1e-20", "nan.Neg=0"])
def test_every_floating_type_can_be_made_wrong(fault: str, elem: int, dtype: type):
    made = model([helper.make_node("Neg", ["x"], ["y"])], [info("x", (1,), elem)], [info("y", (1,), elem)])
    found = run(f"fake:{fault}", made, {"x": np.ones(1, dtype)})["y"]
    assert found.dtype == dtype
    assert found.tolist() == [-1.0 if fault.startswith("n") else -2.0]


def test_integers_stay_right():
    made = model([helper.make_node("Neg", ["x"], ["y"])], [info("x", (1,), INT64)], [info("y", (1,), INT64)])
    assert run("fake:scale.Neg=2", made, {"x": np.array([3])})["y"].tolist() == [-3]


def test_two_wrong_layers_in_a_network_are_the_only_ones_that_introduce_an_error():
    made, feed = transformer(300), {"x": np.random.default_rng(1).normal(0, 1, (16, 16)).astype(np.float32)}
    first, second = 105, 201
    spec = f"fake:scale.{made.graph.node[first].name}=1.1,offset.{made.graph.node[second].name}=0.5"
    found, right = run(spec, made, feed, "all"), run(RIGHT, made, feed, "all")
    for number in range(first):
        np.testing.assert_array_equal(found[f"t{number}"], right[f"t{number}"])
    np.testing.assert_allclose(found[f"t{first}"], right[f"t{first}"] * np.float32(1.1), rtol=1e-6)
    for start, end in ((first + 1, second), (second + 1, 300)):
        for name, value in run(RIGHT, make_part(made, start, end), {**feed, **found}).items():
            np.testing.assert_array_equal(found[name], value)
    alone = run(RIGHT, make_part(made, second, second + 1), {**feed, **found})[f"t{second}"]
    np.testing.assert_allclose(found[f"t{second}"], alone + np.float32(0.5), rtol=1e-6)


def test_a_setting_for_a_layer_that_is_not_there_is_told():
    session = create("fake:scale.n9=2,scale.n0=2,crash.Conv=run").build(
        ModelInput(chain(2).SerializeToString(), Path())
    )
    assert session.remarks == [
        "the model has no layer for scale.n9: nothing goes wrong there",
        "the model has no layer for crash.Conv: nothing goes wrong there",
    ]


def make_part(made: onnx.ModelProto, first: int, end: int) -> onnx.ModelProto:
    """The nodes from one to before another, fed with whatever they read."""
    nodes = made.graph.node[first:end]
    weights = {one.name: one for one in made.graph.initializer}
    written = {node.output[0] for node in nodes}
    read = dict.fromkeys(name for node in nodes for name in node.input if name not in written)
    kept = [weights[name] for name in read if name in weights]
    inputs = [info(name, None, FLOAT) for name in read if name not in weights]
    return model(nodes, inputs, [info(name, None) for name in written], kept)


# Failing


@pytest.mark.parametrize("stage", ["load", "build", "run"])
def test_a_layer_is_refused_in_the_stage_that_is_asked_for(stage: str):
    with pytest.raises(errors.EngineFailure, match="Abs 'n1' is refused") as caught:
        run(f"fake:refuse.Abs={stage}", chain(3, ("Neg", "Abs")), {"t0": X})
    assert (caught.value.stage, caught.value.engine, caught.value.kind) == (stage, "fake", "NotSupported")


def test_layers_may_fail_in_different_stages():
    with pytest.raises(errors.EngineFailure, match="Abs 'n1' is refused"):
        build("fake:refuse.n0=run,refuse.n1=build")


def test_two_layers_may_be_needed():
    build("fake:refuse.Abs~Relu=build")
    with pytest.raises(errors.EngineFailure, match="Neg 'n2' is refused"):
        build("fake:refuse.Abs~Neg=build")


def test_a_layer_in_a_body_is_found():
    with pytest.raises(errors.EngineFailure, match="Relu"):
        build("fake:refuse.Relu=build", control_flow(16))


@pytest.mark.parametrize(("setting", "kind"), [("", "SIGSEGV"), (",signal=SIGABRT", "SIGABRT")])
@pytest.mark.parametrize("stage", ["build", "run"])
def test_a_layer_ends_the_process(tmp_path: Path, stage: str, setting: str, kind: str):
    path = save(chain(2, ("Neg",)), tmp_path / "m.onnx")
    write_feeds(tmp_path / "feeds.safetensors", [{"t0": X}])
    with (
        Worker(f"fake:crash.n1={stage}{setting}", tmp_path) as worker,
        pytest.raises(errors.EngineFailure) as caught,
    ):
        worker.run(ModelInput(path.read_bytes(), tmp_path, path), tmp_path / "feeds.safetensors")
    assert (caught.value.stage, caught.value.kind) == (stage, kind)


def test_a_wrong_expression_is_a_usage_error():
    with pytest.raises(errors.UsageError, match=r"'n\[' is not a regular expression"):
        build("fake:scale.n[=2")


# When


def test_a_fault_may_go_away_when_a_tensor_is_marked():
    made, spec = chain(3, ("Neg",)), "fake:scale.n1=2,unless_marked=t1+t2"
    np.testing.assert_array_equal(run(spec, made, {"t0": X})["t3"], -2 * X)
    np.testing.assert_array_equal(run(spec, made, {"t0": X}, ["t2", "t3"])["t3"], -X)


def test_a_flaky_fault_happens_in_its_share_of_the_builds():
    found = [run("fake:scale.n0=2,flaky=0.3", chain(1, ("Neg",)), {"t0": X})["t1"][0, 0] for _ in range(200)]
    assert 30 <= found.count(-2) <= 90
    assert found.count(-2) + found.count(-1) == 200


def test_with_a_seed_the_same_model_always_fails_or_never():
    def fails(length: int, seed: int) -> bool:
        made = chain(length, ("Neg",))
        return bool(abs(run(f"fake:scale.n0=2,flaky=0.5,seed={seed}", made, {"t0": X})[f"t{length}"][0, 0]) == 2)

    found = {(length, seed): fails(length, seed) for length in range(1, 6) for seed in range(4)}
    assert found == {(length, seed): fails(length, seed) for length, seed in found}
    assert set(found.values()) == {True, False}


@pytest.mark.parametrize(
    "fault", ["flaky=1.5", "nan.n0=-1", "noise.n0=0", "scale.n0=much", "refuse.n0=later", "sleep_ms"]
)
def test_values_that_make_no_sense_are_refused(fault: str):
    with pytest.raises(errors.UsageError):
        build(f"fake:{fault}")


def test_a_run_takes_longer():
    session = create("fake:sleep_ms=50").build(ModelInput(chain(1).SerializeToString(), Path()))
    start = time.perf_counter()
    session.run({"t0": X})
    assert time.perf_counter() - start >= 0.05


# With biopsy


def test_a_reduction_finds_the_wrong_layer(tmp_path: Path):
    made = save(transformer(100), tmp_path / "m.onnx")
    wrong = onnx.load(made).graph.node[57].name
    words = f"debug reduce m.onnx -o r.onnx --check biopsy run {{}} --engine fake --engine fake:scale.{wrong}=1.5"
    command = [sys.executable, "-m", "biopsy", *words.split(), "--rtol", "1e-3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [node.name for node in onnx.load(tmp_path / "r.onnx").graph.node] == [wrong]
