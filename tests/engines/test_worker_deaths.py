"""An engine that dies, hangs or refuses in the process of a worker: what is told of it, and what is left."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.tensors.files import write_feeds
from support.models import chain, info, model, save

PLUG_IN = """
import os, signal, time
from biopsy.engines.base import Engine, Session

class Deadly(Engine):
    name, summary, package = "deadly", "an engine that dies", "deadly"

    @classmethod
    def version(cls):
        return "1"

    def build(self, model):
        kind = os.environ["DEADLY"]
        if kind == "abort at build":
            print("free(): invalid pointer", flush=True)
            os.abort()
        if kind == "exit":
            os._exit(7)
        return Run()

class Run(Session):
    inputs, outputs = {}, ("t2",)

    def run(self, feed):
        kind = os.environ["DEADLY"]
        if kind == "hang":
            open(os.environ["DEADLY_PID"], "w").write(str(os.getpid()))
            time.sleep(600)
        if kind == "defect":
            raise KeyError("oops")
        os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.fixture
def feeds(tmp_path: Path) -> Path:
    path = tmp_path / "feeds.safetensors"
    write_feeds(path, [{"t0": np.full((2, 2), value, np.float32)} for value in (1, -3)])
    return path


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An installed plug-in, found by the process through its metadata like any other."""
    site = tmp_path / "site"
    (site / "deadly-1.dist-info").mkdir(parents=True)
    (site / "deadly-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: deadly\nVersion: 1\n")
    (site / "deadly-1.dist-info" / "entry_points.txt").write_text("[biopsy.engines]\ndeadly = deadly:Deadly\n")
    (site / "deadly.py").write_text(PLUG_IN)
    monkeypatch.setenv("PYTHONPATH", str(site))
    return monkeypatch


def in_memory(nodes: int = 2) -> ModelInput:
    return ModelInput(chain(nodes).SerializeToString(), Path())


def run(engine: str, feeds: Path, given: ModelInput | None = None, timeout: float | None = None) -> None:
    with Worker(engine, feeds.parent, timeout) as worker:
        worker.run(in_memory() if given is None else given, feeds)


def test_what_an_engine_refuses_is_raised_here(tmp_path: Path, feeds: Path):
    made = model([helper.make_node("Foo", ["t0"], ["y"])], [info("t0")], [info("y")])
    with pytest.raises(errors.EngineFailure, match="Foo") as caught:
        run("onnxrt", feeds, ModelInput(made.SerializeToString(), Path()))
    assert (caught.value.engine, caught.value.stage, caught.value.kind) == ("onnxrt", "load", "InvalidGraph")
    assert [path.name for path in tmp_path.iterdir()] == ["feeds.safetensors"]


def test_a_missing_engine_and_missing_inputs_are_raised_as_what_they_are(tmp_path: Path, feeds: Path):
    with pytest.raises(errors.EngineMissing):
        run("abacus", feeds)
    write_feeds(feeds, [{"other": np.ones(1)}])
    with pytest.raises(errors.CannotCompare) as caught:
        run("onnxrt", feeds)
    assert "to-input" in caught.value.next_steps[0]


@pytest.mark.parametrize(
    ("how", "stage", "kind"), [("abort at build", "build", "SIGABRT"), ("crash at run", "run", "SIGSEGV")]
)
def test_a_worker_killed_by_a_signal_is_a_failure_of_that_kind(
    tmp_path: Path, feeds: Path, deadly: pytest.MonkeyPatch, how: str, stage: str, kind: str
):
    deadly.setenv("DEADLY", how)
    with pytest.raises(errors.EngineFailure, match=kind) as caught:
        run("deadly", feeds)
    assert (caught.value.engine, caught.value.stage, caught.value.kind) == ("deadly", stage, kind)


def test_what_a_dying_engine_printed_is_told(tmp_path: Path, feeds: Path, deadly: pytest.MonkeyPatch):
    deadly.setenv("DEADLY", "abort at build")
    with pytest.raises(errors.EngineFailure, match=r"free\(\): invalid pointer"):
        run("deadly", feeds)


@pytest.mark.parametrize("how", ["exit", "defect"])
def test_a_worker_that_ends_without_a_result_concludes_nothing(
    tmp_path: Path, feeds: Path, deadly: pytest.MonkeyPatch, how: str
):
    deadly.setenv("DEADLY", how)
    with pytest.raises(errors.BiopsyError, match=r"status 7|KeyError") as caught:
        run("deadly", feeds)
    assert caught.value.status == 4


@pytest.mark.slow
def test_a_hanging_worker_is_stopped_at_the_timeout(tmp_path: Path, feeds: Path, deadly: pytest.MonkeyPatch):
    deadly.setenv("DEADLY", "hang")
    deadly.setenv("DEADLY_PID", str(tmp_path / "pid"))
    with pytest.raises(errors.EngineFailure) as caught:
        run("deadly", feeds, timeout=5)
    assert (caught.value.stage, caught.value.kind) == ("run", "Timeout")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_worker_ends_with_a_parent_that_is_interrupted(tmp_path: Path, feeds: Path, deadly: pytest.MonkeyPatch):
    deadly.setenv("DEADLY", "hang")
    deadly.setenv("DEADLY_PID", str(tmp_path / "pid"))
    path = save(chain(2), tmp_path / "m.onnx")
    code = f"""
from pathlib import Path
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
path = Path({str(path)!r})
with Worker("deadly", path.parent) as worker:
    worker.run(ModelInput(path.read_bytes(), path.parent, path), Path({str(feeds)!r}))
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    pid_file = tmp_path / "pid"
    deadline = time.monotonic() + 30
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.send_signal(2)
    parent.wait(20)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_files_of_the_current_folder_are_not_imported(tmp_path: Path, feeds: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "random.py").write_text("raise SystemExit(3)")
    (tmp_path / "numpy.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    run("onnxrt", feeds)


ANSWERS_GARBAGE = """
import os
from biopsy.engines.base import Engine

class Deadly(Engine):
    name, summary, package = "deadly", "writes where only answers belong", "deadly"

    @classmethod
    def version(cls):
        return "1"

    def build(self, model):
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b"garbage\\n")
            except OSError:
                pass
        raise KeyError("oops")
"""


def test_a_worker_whose_answers_are_spoiled_is_ended_and_told_of(
    tmp_path: Path, feeds: Path, deadly: pytest.MonkeyPatch
):
    (tmp_path / "site" / "deadly.py").write_text(ANSWERS_GARBAGE)
    with pytest.raises(errors.BiopsyError, match="the process of deadly gave an answer that is not understood"):
        run("deadly", feeds)


def test_what_a_worker_prints_without_end_is_bounded_and_ended_at_the_timeout(
    tmp_path: Path, feeds: Path, deadly: pytest.MonkeyPatch
):
    (tmp_path / "site" / "deadly.py").write_text(
        PLUG_IN.replace('kind = os.environ["DEADLY"]', "while True: print('y' * 1000)", 1)
    )
    with pytest.raises(errors.BiopsyError, match="took too long"):
        run("deadly", feeds, timeout=2)
    assert {path.name for path in tmp_path.iterdir()} == {"site", "feeds.safetensors"}
