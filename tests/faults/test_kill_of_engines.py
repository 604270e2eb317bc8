"""biopsy ended by SIGKILL while engines work for it in processes of their own: no process and no folder is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import started, wait_until
from support.models import chain, save
from support.plug_ins import install

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")

LIMIT = 120
"""Seconds for anything to happen on a machine that has much else to do."""

STUCK = """
import os, subprocess, time
from biopsy.engines.base import Engine, Session
from biopsy.engines.registry import create

def hang(stage):
    if os.environ["STUCK"] == stage:
        sleeper = subprocess.Popen(["sleep", "600"])
        with open("stuck.txt", "a") as told:
            told.write(f"{os.getpid()}\\n{sleeper.pid}\\n")
        while True:
            time.sleep(1)

class Stuck(Engine):
    name, summary, package = "stuck", "stops in the middle", "stuck"
    forks_warm = bool(os.environ.get("STUCK_FORKS"))

    @classmethod
    def version(cls):
        return "1"

    def build(self, model):
        hang("build")
        return StuckSession(create("reference").build(model))

class StuckSession(Session):
    def __init__(self, inner):
        self._inner = inner

    inputs = property(lambda self: self._inner.inputs)
    outputs = property(lambda self: self._inner.outputs)

    def run(self, feed):
        hang("run")
        return self._inner.run(feed)
"""

HANGS = """
import os, sys, time
if any(MODULE in word for word in sys.orig_argv):
    with open("stuck.txt", "a") as told:
        told.write(f"{os.getpid()}\\n")
    while True:
        time.sleep(1)
"""
"""A sitecustomize: the process of one module of ours does not even come to its beginning."""


def begin(place, *words: str, **variables: str) -> subprocess.Popen[str]:
    """Type a line, and return when something in it is stuck."""
    environment = {**place.environment, "PYTHONPATH": str(place.folder / "site"), **variables}
    process = started(*words, folder=place.folder, env=environment)
    assert wait_until(lambda: place.told("stuck.txt") or process.poll() is not None, LIMIT)
    assert process.poll() is None, process.communicate()
    return process


def nothing_is_left_of(place, process: subprocess.Popen[str]) -> None:
    """Kill it, and wait until everyone and everything of it has gone, but for what ONNX Runtime leaves itself."""
    assert len(place.processes()) > 1
    process.kill()
    process.communicate(timeout=LIMIT)
    assert place.everyone_has_ended(LIMIT), [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in place.processes()]
    assert wait_until(lambda: {path.name for path in place.temporary.iterdir()} <= {".ses"}, LIMIT)


@pytest.fixture
def stuck(place):
    """A model, and an engine that stops in the middle where the variable STUCK says so."""
    save(chain(4), place.folder / "m.onnx")
    install(place.folder / "site", "stuck-engine", STUCK, "stuck = stuck_engine:Stuck")
    return place


@pytest.mark.parametrize("stage", ["build", "run"])
def test_of_an_examination_of_layers(stuck, stage: str) -> None:
    process = begin(stuck, "debug", "layers", "m.onnx", "--suspect", "stuck", STUCK=stage)
    nothing_is_left_of(stuck, process)


@pytest.mark.parametrize("forks", ["", "1"], ids=["cold", "warm"])
def test_of_repeated_builds(stuck, forks: str) -> None:
    words = ("debug", "build", "m.onnx", "--engine", "stuck", "--until", "2", "--check", "build")
    process = begin(stuck, *words, STUCK="build", STUCK_FORKS=forks)
    nothing_is_left_of(stuck, process)


def test_of_a_warm_process_for_builds_that_is_just_starting(stuck) -> None:
    (stuck.folder / "site" / "sitecustomize.py").write_text(
        HANGS.replace("MODULE", "'biopsy.questions.builds.build_process'")
    )
    words = ("debug", "build", "m.onnx", "--engine", "stuck", "--until", "2", "--check", "build")
    process = begin(stuck, *words, STUCK="", STUCK_FORKS="1")
    nothing_is_left_of(stuck, process)


def test_of_a_search_for_settings(stuck) -> None:
    """The process that is there is the one that finds out which optimizers run."""
    (stuck.folder / "site" / "sitecustomize.py").write_text(
        HANGS.replace("MODULE", "'biopsy.questions.builds.optimizers'")
    )
    (stuck.folder / "check.py").write_text("import sys\nsys.exit('optimization=none' not in sys.argv[1])\n")
    check = (sys.executable, "check.py", "{engine}", "{}")
    words = ("debug", "flags", "m.onnx", "--engine", "onnxrt", "--check", *check)
    process = begin(stuck, *words)
    nothing_is_left_of(stuck, process)


def test_of_a_warm_process_for_checks_that_is_just_starting(stuck) -> None:
    (stuck.folder / "site" / "sitecustomize.py").write_text(HANGS.replace("MODULE", "'biopsy.cli.zygote'"))
    process = begin(stuck, "debug", "reduce", "m.onnx", "-o", "r.onnx", "--check", "biopsy", "run", "{}", "--onnxrt")
    nothing_is_left_of(stuck, process)


def test_of_one_whose_child_is_stopped(stuck) -> None:
    """It sees no end of file and heeds no signal but the one that cannot be caught."""
    process = begin(stuck, "debug", "layers", "m.onnx", "--suspect", "stuck", STUCK="run")
    os.kill(int(stuck.told("stuck.txt")[0]), signal.SIGSTOP)
    nothing_is_left_of(stuck, process)


DIES_TOO_EARLY = """
import os, signal
from biopsy.processes import cleanup; from biopsy.processes import process
cleanup.group = lambda leader: os.kill(os.getpid(), signal.SIGKILL)
process.Process(["sleep", "600"])
"""


def test_between_the_start_of_a_process_and_the_news_of_its_number(place) -> None:
    ended = subprocess.run([sys.executable, "-c", DIES_TOO_EARLY], env=place.environment, timeout=LIMIT)
    assert ended.returncode == -signal.SIGKILL
    assert place.everyone_has_ended(10)
