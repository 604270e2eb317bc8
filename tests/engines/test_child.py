"""One engine in a process of its own: results, failures, crashes and hangs of a real child."""

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
from biopsy.engines.child import run_in_child
from biopsy.tensors.files import read_results, write_feeds
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
    inputs, outputs = {}, ()

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
    """An installed plug-in, found by the child through its metadata like any other."""
    site = tmp_path / "site"
    (site / "deadly-1.dist-info").mkdir(parents=True)
    (site / "deadly-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: deadly\nVersion: 1\n")
    (site / "deadly-1.dist-info" / "entry_points.txt").write_text("[biopsy.engines]\ndeadly = deadly:Deadly\n")
    (site / "deadly.py").write_text(PLUG_IN)
    monkeypatch.setenv("PYTHONPATH", str(site))
    return monkeypatch


def in_memory(nodes: int = 2) -> ModelInput:
    return ModelInput(chain(nodes).SerializeToString(), Path())


def test_the_results_of_every_feed_are_written(tmp_path: Path, feeds: Path):
    output = run_in_child(in_memory(), "onnxrt:optimization=none", feeds, tmp_path / "out.safetensors")
    (result,) = read_results(output)
    assert result.runner == "onnxrt:optimization=none"
    assert [iteration.outputs["t2"][0, 0] for iteration in result.iterations] == [1, 0]


def test_a_model_file_is_run_where_it_stands_with_other_outputs_marked(tmp_path: Path, feeds: Path):
    path = save(chain(3), tmp_path / "m.onnx")
    (result,) = read_results(run_in_child(path, "reference", feeds, tmp_path / "out.npz", outputs="all"))
    assert sorted(result.iterations[0].outputs) == ["t1", "t2", "t3"]


def test_nothing_but_the_results_is_left_behind(tmp_path: Path, feeds: Path):
    run_in_child(in_memory(), "onnxrt", feeds, tmp_path / "out.safetensors")
    assert {path.name for path in tmp_path.iterdir()} == {"feeds.safetensors", "out.safetensors"}


def test_what_an_engine_refuses_is_raised_here(tmp_path: Path, feeds: Path):
    made = model([helper.make_node("Foo", ["t0"], ["y"])], [info("t0")], [info("y")])
    with pytest.raises(errors.EngineFailure, match="Foo") as caught:
        run_in_child(ModelInput(made.SerializeToString(), Path()), "onnxrt", feeds, tmp_path / "out.safetensors")
    assert (caught.value.engine, caught.value.stage, caught.value.kind) == ("onnxrt", "load", "InvalidGraph")
    assert not (tmp_path / "out.safetensors").exists()


def test_a_missing_engine_and_missing_inputs_are_raised_as_what_they_are(tmp_path: Path, feeds: Path):
    with pytest.raises(errors.EngineMissing):
        run_in_child(in_memory(), "abacus", feeds, tmp_path / "out.safetensors")
    write_feeds(feeds, [{"other": np.ones(1)}])
    with pytest.raises(errors.CannotCompare) as caught:
        run_in_child(in_memory(), "onnxrt", feeds, tmp_path / "out.safetensors")
    assert "to-input" in caught.value.next_steps[0]


@pytest.mark.parametrize(
    ("how", "stage", "kind"), [("abort at build", "build", "SIGABRT"), ("crash at run", "run", "SIGSEGV")]
)
def test_a_child_killed_by_a_signal_is_a_failure_of_that_kind(
    tmp_path: Path, feeds: Path, deadly: pytest.MonkeyPatch, how: str, stage: str, kind: str
):
    deadly.setenv("DEADLY", how)
    with pytest.raises(errors.EngineFailure, match=kind) as caught:
        run_in_child(in_memory(), "deadly", feeds, tmp_path / "out.safetensors")
    assert (caught.value.engine, caught.value.stage, caught.value.kind) == ("deadly", stage, kind)


def test_what_a_dying_child_printed_is_told(tmp_path: Path, feeds: Path, deadly: pytest.MonkeyPatch):
    deadly.setenv("DEADLY", "abort at build")
    with pytest.raises(errors.EngineFailure, match=r"free\(\): invalid pointer"):
        run_in_child(in_memory(), "deadly", feeds, tmp_path / "out.safetensors")


@pytest.mark.parametrize("how", ["exit", "defect"])
def test_a_child_that_ends_without_a_result_concludes_nothing(
    tmp_path: Path, feeds: Path, deadly: pytest.MonkeyPatch, how: str
):
    deadly.setenv("DEADLY", how)
    with pytest.raises(errors.BiopsyError, match=r"status 7|KeyError") as caught:
        run_in_child(in_memory(), "deadly", feeds, tmp_path / "out.safetensors")
    assert caught.value.status == 4


def test_a_hanging_child_is_stopped_at_the_timeout(tmp_path: Path, feeds: Path, deadly: pytest.MonkeyPatch):
    deadly.setenv("DEADLY", "hang")
    deadly.setenv("DEADLY_PID", str(tmp_path / "pid"))
    with pytest.raises(errors.EngineFailure) as caught:
        run_in_child(in_memory(), "deadly", feeds, tmp_path / "out.safetensors", timeout=5)
    assert (caught.value.stage, caught.value.kind) == ("run", "Timeout")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_child_ends_with_a_parent_that_is_interrupted(tmp_path: Path, feeds: Path, deadly: pytest.MonkeyPatch):
    deadly.setenv("DEADLY", "hang")
    deadly.setenv("DEADLY_PID", str(tmp_path / "pid"))
    code = (
        "from pathlib import Path; from biopsy.engines.child import run_in_child;"
        f"run_in_child(Path({str(save(chain(1), tmp_path / 'm.onnx'))!r}), 'deadly', Path({str(feeds)!r}),"
        f" Path({str(tmp_path / 'out.npz')!r}))"
    )
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
    run_in_child(in_memory(), "onnxrt", feeds, tmp_path / "out.safetensors")
