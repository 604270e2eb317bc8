"""Builds in processes of their own."""

import os
import signal
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.questions.builds.building import Builder, BuildOrder
from biopsy.questions.builds.settings import changes, parse_variation
from support.models import chain, save


@pytest.fixture
def given(tmp_path: Path) -> ModelInput:
    path = save(chain(3, ("Relu", "Neg")), tmp_path / "model.onnx")
    return ModelInput(path.read_bytes(), tmp_path, path)


def test_a_crash_is_a_failure_and_the_next_build_goes_on(given: ModelInput, tmp_path: Path):
    with Builder(given) as builder:
        crashed = builder.build(BuildOrder("fake:crash.Neg=build"))
        assert crashed.failure is not None
        assert (crashed.failure.kind, crashed.failure.stage) == ("SIGSEGV", "build")
        built = builder.build(BuildOrder("onnxrt:threads=1", save_to=tmp_path / "out.ort"))
        assert built.failure is None
        assert (tmp_path / "out.ort").exists()
        assert [layer.nodes for layer in built.layers] == [("n0",), ("n1",), ("n2",)]


def test_times_are_measured_where_a_profile_is_asked_for(given: ModelInput):
    with Builder(given) as builder:
        layers = builder.build(BuildOrder("onnxrt:threads=1,profile")).layers
    assert all(layer.time_us is not None for layer in layers)


def test_a_build_that_takes_too_long_is_ended_and_the_next_one_goes_on(tmp_path: Path):
    path = save(chain(20_000), tmp_path / "large.onnx")
    with Builder(ModelInput(path.read_bytes(), tmp_path, path)) as builder:
        assert builder.build(BuildOrder("fake:refuse.Relu=load")).failure is not None, "it is warm now"
        builder._timeout = 0.3
        late = builder.build(BuildOrder("fake"))
        assert late.failure is not None
        assert late.failure.kind == "Timeout"
        builder._timeout = None
        assert builder.build(BuildOrder("fake:refuse.Relu=load")).failure.kind != "Timeout"


def test_what_ends_before_the_engine_has_the_model_is_no_failure_of_the_build(given: ModelInput, tmp_path: Path):
    (tmp_path / "broken" / "onnxruntime").mkdir(parents=True)
    (tmp_path / "broken" / "onnxruntime" / "__init__.py").write_text("import os\nos.abort()\n")
    with Builder(given) as builder, pytest.raises(errors.BiopsyError, match="before it looked at the model") as raised:
        builder.build(BuildOrder("onnxrt", {"PYTHONPATH": str(tmp_path / "broken")}))
    assert not isinstance(raised.value, errors.EngineFailure)
    with Builder(given, timeout=0.001) as builder, pytest.raises(errors.BiopsyError, match="took too long to start"):
        builder.build(BuildOrder("onnxrt"))


def test_a_variable_of_the_environment_is_that_of_one_build(given: ModelInput):
    with Builder(given) as builder:
        assert builder.build(BuildOrder("onnxrt", {"SOME_VARIABLE": "1"})).failure is None
    assert "SOME_VARIABLE" not in os.environ


def test_a_missing_engine_and_a_model_that_is_not_there_are_no_failures(given: ModelInput, tmp_path: Path):
    with Builder(given) as builder, pytest.raises(errors.UsageError):
        builder.build(BuildOrder("onnxrt:providers=nothing"))
    absent = ModelInput(b"", tmp_path, tmp_path / "absent.onnx")
    with Builder(absent) as builder, pytest.raises(errors.BiopsyError, match=r"absent\.onnx"):
        builder.build(BuildOrder("onnxrt"))


def test_the_names_of_engines_for_their_options_are_understood():
    assert parse_variation("INFERENCE_PRECISION_HINT=f32,bf16", "openvino").key == "precision"
    assert parse_variation("NUM_STREAMS=1,2", "openvino").key == "config.NUM_STREAMS"
    assert parse_variation("session.disable_prepacking=0,1", "onnxrt").key == "config.session.disable_prepacking"
    assert parse_variation("intra_op_num_threads=1,2", "onnxrt").key == "threads"
    assert parse_variation("env.A=1\\,2,3", "onnxrt").values == ("1,2", "3")


def test_all_combinations_come_before_one_comes_again():
    variations = [parse_variation("threads=1,2", "onnxrt"), parse_variation("env.A=x,y", "onnxrt")]
    texts = [drawn.change.text for drawn in changes(variations, 1, 4)]
    assert len(set(texts)) == len(texts) == 4


def test_all_combinations_come_equally_often_in_each_block_in_an_order_that_the_seed_tells():
    variations = [parse_variation("threads=1,2", "onnxrt"), parse_variation("env.A=x,y", "onnxrt")]
    endless = list(islice(changes(variations, 5), 40))
    for block in range(5):
        texts = [drawn.change.text for drawn in endless if drawn.block == block]
        assert sorted(Counter(texts).values()) == [2, 2, 2, 2]
    assert endless == list(islice(changes(variations, 5), 40))
    assert endless != list(islice(changes(variations, 6), 40))


def test_a_number_of_builds_that_is_no_multiple_has_all_combinations_as_equally_often_as_can_be():
    variations = [parse_variation("threads=1,2,3", "onnxrt")]
    for total in range(1, 60):
        drawn = list(changes(variations, total, total))
        counts = Counter(one.change.text for one in drawn)
        assert len(drawn) == total and max(counts.values()) - min(counts.get(f"threads={i}", 0) for i in (1, 2, 3)) <= 1


def test_where_the_warm_process_is_lost_each_build_is_a_process_of_its_own(given: ModelInput):
    with Builder(given) as builder:
        assert builder.build(BuildOrder("onnxrt")).failure is None
        assert builder._server is not None
        os.kill(builder._server.pid, signal.SIGKILL)
        for _ in range(2):
            assert builder.build(BuildOrder("onnxrt")).failure is None
        assert builder._server is None


def test_builds_of_an_engine_that_may_fork_are_forks_of_one_process(given: ModelInput):
    with Builder(given) as builder:
        for _ in range(2):
            assert builder.build(BuildOrder("onnxrt")).failure is None
            server = builder._server
        assert builder._server is server is not None
        builder.build(BuildOrder("onnxrt", {"SOME_VARIABLE": "1"}))
        assert builder._server is server
