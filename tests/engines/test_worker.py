"""One process that runs many models: it answers, dies with one of them, and starts again."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.tensors.files import write_feeds
from support.models import chain


@pytest.fixture
def feeds(tmp_path: Path) -> Path:
    path = tmp_path / "feeds.safetensors"
    write_feeds(path, [{"t0": np.full((2, 2), value, np.float32)} for value in (1, 2)])
    return path


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def model(operator: str) -> ModelInput:
    return ModelInput(chain(2, [operator]).SerializeToString(), Path())


@pytest.fixture
def crashing(scratch: Path) -> Iterator[Worker]:
    with Worker("fake:crash.Neg=run,refuse.Abs=build", scratch) as worker:
        yield worker


def test_one_process_runs_several_models_with_every_feed(scratch: Path, feeds: Path) -> None:
    with Worker("onnxrt", scratch) as worker:
        for operator, expected in (("Neg", 2), ("Exp", np.exp(np.exp(2)))):
            runs = worker.run(model(operator), feeds)
            assert [list(run) for run in runs] == [["t2"], ["t2"]]
            np.testing.assert_allclose(runs[1]["t2"], np.full((2, 2), expected), rtol=1e-6)


def test_tensors_are_marked_where_that_is_asked_for(scratch: Path, feeds: Path) -> None:
    with Worker("onnxrt", scratch) as worker:
        assert list(worker.run(model("Neg"), feeds, ["t1"])[0]) == ["t1"]


def test_a_model_that_kills_it_fails_and_the_next_one_runs(crashing: Worker, feeds: Path) -> None:
    with pytest.raises(errors.EngineFailure) as caught:
        crashing.run(model("Neg"), feeds)
    assert (caught.value.kind, caught.value.stage) == ("SIGSEGV", "run")
    assert crashing.run(model("Relu"), feeds)[0]["t2"][0, 0] == 1


def test_a_failure_of_the_engine_is_raised_as_one_and_the_process_stays(crashing: Worker, feeds: Path) -> None:
    with pytest.raises(errors.EngineFailure) as caught:
        crashing.run(model("Abs"), feeds)
    assert (caught.value.kind, caught.value.stage, caught.value.engine) == ("NotSupported", "build", "fake")
    crashing.run(model("Relu"), feeds)


def test_a_run_that_takes_too_long_is_ended(scratch: Path, feeds: Path) -> None:
    with Worker("fake:sleep_ms=60000", scratch, timeout=3) as worker:
        with pytest.raises(errors.EngineFailure) as caught:
            worker.run(model("Relu"), feeds)
        assert caught.value.kind == "Timeout"


def test_what_a_session_remarks_is_handed_on(scratch: Path, feeds: Path) -> None:
    with Worker("fake:scale.nobody=2", scratch) as worker:
        worker.run(model("Relu"), feeds)
        assert "scale.nobody" in worker.remarks[0]


def test_no_file_stays_behind(crashing: Worker, feeds: Path, scratch: Path) -> None:
    crashing.run(model("Relu"), feeds)
    with pytest.raises(errors.EngineFailure):
        crashing.run(model("Neg"), feeds)
    crashing.close()
    assert list(scratch.iterdir()) == []


def test_it_tells_the_version_of_its_engine_or_that_there_is_none(scratch: Path) -> None:
    import onnxruntime

    with Worker("onnxrt", scratch) as worker:
        worker.start()
        assert worker.version() == onnxruntime.__version__
    with Worker("nobodys", scratch) as worker, pytest.raises(errors.EngineMissing):
        worker.version()
