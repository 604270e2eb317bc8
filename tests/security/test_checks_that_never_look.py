"""A check of ours that dies before it looks at the model says nothing of it: status 4, never a failure.

The faults are real: Python itself ends our children early, by what stands in PYTHONPATH, as a broken environment would.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.tensors.files import write_feeds
from support.command_line import BIN, Ran, typed
from support.models import chain, save, seeds_example

OURS = "import os, sys\nif 'FAULT' in os.environ and not {'debug', 'inspect', 'surgeon'} & {*sys.orig_argv[:3]}:\n    "
"""The beginning of a sitecustomize.py that meets the children which we start, and not the command that was typed."""

DEATHS = {
    "status 1": "os._exit(1)",
    "status 0": "os._exit(0)",
    "a signal": "os.abort()",
    "a missing package": "sys.modules['numpy'] = sys.modules['onnx'] = sys.modules['onnxruntime'] = None",
    "a broken package": "sys.meta_path.insert(0, type('Broken', (), {'find_spec': lambda name, *_: "
    "os.abort() if name == 'onnxruntime' else None}))",
    "a full disk": "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
    "little memory": "import resource; resource.setrlimit(resource.RLIMIT_AS, (120 << 20, 120 << 20))",
}


@dataclass(frozen=True)
class Broken:
    """A folder with a model that passes, and an environment in which our children die."""

    folder: Path

    def dies(self, how: str) -> None:
        (self.folder / "site").mkdir()
        (self.folder / "site" / "sitecustomize.py").write_text(f"{OURS}{how}\n")

    def type(self, *words: str, **variables: str) -> Ran:
        """Type a line of ``biopsy``."""
        alone = {"PYTHONPATH": str(self.folder / "site"), "PATH": f"{BIN}:/usr/bin:/bin"}
        return typed(*words, folder=self.folder, variables={**alone, **variables})

    def made(self) -> set[str]:
        given = {"site", "m.onnx", "p.onnx", "inputs.json", "check.sh", "biopsy"}
        return {path.name for path in self.folder.iterdir()} - given


@pytest.fixture
def broken(tmp_path: Path) -> Broken:
    save(chain(3, ("Relu", "Neg")), tmp_path / "m.onnx")
    save(seeds_example(), tmp_path / "p.onnx")
    return Broken(tmp_path)


RUN = ("biopsy", "run", "{}", "--onnxrt")
REDUCE = ("debug", "reduce", "m.onnx", "-o", "r.onnx")


QUICK = {"status 0", "a broken package", "little memory"}


@pytest.mark.parametrize("how", [pytest.param(how, marks=[] if how in QUICK else pytest.mark.slow) for how in DEATHS])
@pytest.mark.parametrize("cold", [(), pytest.param(("--cold-checks",), marks=pytest.mark.slow)], ids=["warm", "cold"])
def test_a_model_that_passes_is_never_reduced(broken: Broken, how: str, cold: tuple[str, ...]) -> None:
    broken.dies(DEATHS[how])
    ran = broken.type(*REDUCE, *cold, "--check", *RUN, FAULT="1")
    assert ran.status == 4, ran.told
    assert "the check could not be run" in ran.told
    assert not broken.made()


COMMANDS = {
    "reduce with codes": (*REDUCE, "--allow-vacuous-check", "--fail-code", "0", "1", "250", "--check", *RUN),
    "reduce with the alias": (*REDUCE, "--allow-vacuous-check", "--check", "polygraphy", *RUN[1:]),
    "inspect": (*REDUCE, "--allow-vacuous-check", "--check", "biopsy", "inspect", "model", "{}"),
    "repeat": ("debug", "repeat", "--until", "3", "--check", "biopsy", "run", "m.onnx", "--onnxrt"),
    "precision": ("debug", "precision", "p.onnx", "-o", "r.onnx", "--check", *RUN),
    "flags": ("debug", "flags", "m.onnx", "--check", *RUN),
    "layers": ("debug", "layers", "m.onnx", "--suspect", "onnxrt"),
    "capability": ("inspect", "capability", "m.onnx", "--onnxrt"),
    "build": ("debug", "build", "m.onnx", "--until", "2", "--onnxrt", "--check", *RUN[:2], "m.onnx", "--onnxrt"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_that_it_could_not_be_run(broken: Broken, command: str) -> None:
    broken.dies("os._exit(1)")
    ran = broken.type(*COMMANDS[command], FAULT="1")
    assert ran.status == 4, ran.told
    assert not broken.made() - {"polygraphy_debug.ort"}


def test_the_message_has_the_last_words(broken: Broken) -> None:
    broken.dies("print('no\\nlibfoo.so: cannot open shared object'); sys.stdout.flush(); os._exit(1)")
    ran = broken.type(*REDUCE, "--check", *RUN, FAULT="1")
    assert "the check ended before it looked at the model (exit status 1)" in ran.told
    assert "libfoo.so: cannot open shared object" in ran.told


def test_a_limit_that_is_met_before_it_looks_is_no_failure_of_the_model(broken: Broken) -> None:
    broken.dies("import time; time.sleep(100)")
    ran = broken.type(*REDUCE, "--cold-checks", "--check-timeout", "0.5", "--check", *RUN, FAULT="1")
    assert ran.status == 4, ran.told
    assert "before it looked at the model (no answer in time)" in ran.told
    assert not broken.made()


@pytest.mark.parametrize(
    ("stage", "cold"), [("build", ()), ("run", ()), pytest.param("build", ("--cold-checks",), marks=pytest.mark.slow)]
)
def test_what_an_engine_does_with_the_model_is_the_failure_as_ever(
    broken: Broken, stage: str, cold: tuple[str, ...]
) -> None:
    ran = broken.type(*REDUCE, *cold, "--check", "biopsy", "run", "{}", "--engine", f"fake:crash.n1={stage}")
    assert ran.status == 0, ran.told
    assert "SIGSEGV" in ran.told
    assert "1 node" in ran.told


@pytest.mark.parametrize("answer", ['{"outcome": "fails", "kind": "mismatch"}', ""])
def test_another_biopsy_must_say_more_than_its_status(broken: Broken, answer: str) -> None:
    other = broken.folder / "biopsy"
    other.write_text(
        f'#!/bin/sh\ngrep -q n1 "$2" || exec "{BIN}/biopsy" "$@"\necho \'{answer}\' > $BIOPSY_VERDICT\nexit 1\n'
    )
    other.chmod(0o755)
    ran = broken.type(*REDUCE, "--check", str(other), "run", "{}", "--onnxrt")
    assert ran.status == (0 if answer else 4), ran.told
    assert answer or "an older biopsy" in ran.told


@pytest.mark.slow
def test_the_status_of_a_script_that_calls_biopsy_decides_as_ever(broken: Broken) -> None:
    script = broken.folder / "check.sh"
    script.write_text('#!/bin/sh\ngrep -q n1 "$1" || exit 0\nbiopsy run "$1" --onnxrt --validate\nexit 1\n')
    script.chmod(0o755)
    ran = broken.type(*REDUCE, "--check", "./check.sh", "{}")
    assert ran.status == 0, ran.told


def test_an_engine_that_cannot_be_loaded_in_a_child_does_not_fail_on_the_model(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.dies(DEATHS["a broken package"])
    write_feeds(broken.folder / "inputs.json", [{}])
    monkeypatch.setenv("PYTHONPATH", str(broken.folder / "site"))
    monkeypatch.setenv("FAULT", "1")
    model = broken.folder / "m.onnx"
    with (
        Worker("onnxrt", broken.folder) as worker,
        pytest.raises(errors.BiopsyError, match="before it looked at the model") as raised,
    ):
        worker.run(ModelInput(model.read_bytes(), broken.folder, model), broken.folder / "inputs.json")
    assert not isinstance(raised.value, errors.EngineFailure)


SAFE = {
    "reduce": (0, *REDUCE, "--check", "biopsy", "run", "{}", "--engine", "fake:refuse.n1=build"),
    "reduce, cold": (0, *REDUCE, "--cold-checks", "--check", "biopsy", "run", "{}", "--engine", "fake:refuse.n1=build"),
    "reduce with the alias": (3, *COMMANDS["reduce with the alias"]),
    "inspect": (3, *COMMANDS["inspect"]),
    "repeat": (0, *COMMANDS["repeat"]),
    "precision": (0, *COMMANDS["precision"]),
    "flags": (3, *COMMANDS["flags"]),
    "layers": (0, *COMMANDS["layers"]),
    "capability": (0, *COMMANDS["capability"]),
    "build": (0, *COMMANDS["build"]),
    "sanitize": (0, "surgeon", "sanitize", "m.onnx", "-o", "s.onnx", "--force-fallback-shape-inference"),
    "a passing model": (3, *REDUCE, "--check", *RUN),
}


QUICK = {"reduce", "precision"}  # a warm check, and cold ones


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in SAFE]
)
def test_python_that_leaves_out_the_current_folder_makes_no_difference(broken: Broken, command: str) -> None:
    status, *words = SAFE[command]
    ran = broken.type(*words, PYTHONSAFEPATH="1")
    assert ran.status == status, ran.told
