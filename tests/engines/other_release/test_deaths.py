"""A release that dies, hangs or takes all memory, in a check: warm or cold, it looks as if the engine had been here."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import biopsy
from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Evidence
from biopsy.checks.warm import command_check
from biopsy.engines.registry import create
from biopsy.processes.reaper import processes
from support.command_line import is_alive, started, typed, wait_until
from support.made_up_release import made_up_release
from support.models import chain, save

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of processes as these tests ask")

NAME = "polygraphy_debug.onnx"
MEMORY = 300 << 20


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_release(tmp_path_factory.mktemp("release") / "environment")


@pytest.fixture
def candidate(tmp_path: Path) -> Path:
    return save(chain(1, ("Identity",)), tmp_path / "candidate.onnx")


@pytest.fixture(params=["warm", pytest.param("cold", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def spec(python: Path, what: str) -> str:
    return f"onnxrt:python={python}" + (f",config.{what}" if what else "")


def helpers(python: Path) -> set[int]:
    """The processes of an interpreter that run now, whoever has started them."""
    return {number for number in processes() if is_alive(number) and _program(number) == str(python)}


def _program(number: int) -> str:
    try:
        return Path(f"/proc/{number}/cmdline").read_text().partition("\0")[0]
    except OSError:
        return ""


@pytest.fixture(autouse=True)
def nothing_left(python: Path) -> Iterator[None]:
    yield
    assert wait_until(lambda: not helpers(python), 10), "an interpreter has outlived its check"


def asked(python: Path, what: str, candidate: Path, kind: str, **limits: float) -> Evidence:
    words = ["biopsy", "run", "{}", "--engine", spec(python, what)]
    given = words, NAME, limits.get("timeout"), int(limits["memory"]) if "memory" in limits else None
    check = CommandCheck(*given) if kind == "cold" else command_check(*given)
    try:
        return check.run(candidate)
    finally:
        check.close()


@pytest.mark.parametrize("what", ["do.build=SIGSEGV", "do.run=SIGABRT"])
def test_a_crash_is_the_signal_of_the_check(python: Path, candidate: Path, kind: str, what: str) -> None:
    stage, name = what.removeprefix("do.").split("=")
    evidence = asked(python, what, candidate, kind)
    assert evidence.status == -signal.Signals[name]
    verdict = evidence.verdict
    assert (verdict.engine, verdict.stage, verdict.kind) == ("onnxrt", stage, name)


def test_a_release_that_ends_its_process_ends_the_check_alike(python: Path, candidate: Path, kind: str) -> None:
    evidence = asked(python, "do.run=exit3", candidate, kind)
    assert (evidence.status, evidence.verdict.stage, evidence.verdict.kind) == (3, "run", "exit status 3")


def test_a_failure_has_the_engine_the_stage_and_the_kind_of_one_here(python: Path, candidate: Path, kind: str) -> None:
    verdict = asked(python, "do.run=fail", candidate, kind).verdict
    assert (verdict.engine, verdict.stage, verdict.kind) == ("onnxrt", "run", "Fail")
    assert "it is made up" in verdict.message


def test_what_the_release_prints_is_output_of_the_check(python: Path, candidate: Path, kind: str) -> None:
    assert b"made up: printed" in asked(python, "do.run=print", candidate, kind).output


def test_a_hang_is_ended_with_the_check(python: Path, candidate: Path, kind: str) -> None:
    evidence = asked(python, "do.run=hang", candidate, kind, timeout=1.5)
    assert (evidence.timed_out, evidence.verdict.engine, evidence.verdict.stage) == (True, "onnxrt", "run")


def test_memory_of_the_release_is_memory_of_the_check(python: Path, candidate: Path, kind: str) -> None:
    evidence = asked(python, "do.run=memory", candidate, kind, memory=MEMORY, timeout=30)
    assert (evidence.out_of_memory, evidence.verdict.engine, evidence.verdict.stage) == (True, "onnxrt", "run")


def test_a_warm_check_asks_a_fork_of_a_loaded_interpreter(python: Path, candidate: Path) -> None:
    check = command_check(["biopsy", "run", "{}", "--engine", spec(python, "do.run=hang")], NAME, 1.0)
    try:
        check.start()
        assert wait_until(lambda: helpers(python)), "no interpreter is warm before a check is asked"
        (server,) = helpers(python)
        for _ in range(2):
            assert check.run(candidate).timed_out
            assert wait_until(lambda: helpers(python) == {server}), "a fork has outlived its check"
    finally:
        check.close()


def test_where_a_release_does_not_survive_a_fork_each_check_starts_one_of_its_own(
    python: Path, candidate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MADE_UP", "dies-in-forks")
    assert asked(python, "", candidate, "warm").status == 0


def test_a_command_tells_of_the_crash_as_of_one_here(python: Path, candidate: Path) -> None:
    ran = typed("run", candidate, "--engine", spec(python, "do.run=SIGSEGV"))
    assert ran.status == 1
    assert f"{spec(python, 'do.run=SIGSEGV')} ended with SIGSEGV while it ran the model" in ran.told


def test_a_killed_command_takes_the_interpreter_with_it(python: Path, candidate: Path) -> None:
    command = started("run", candidate, "--engine", spec(python, "do.run=hang"))
    assert wait_until(lambda: helpers(python))
    os.kill(command.pid, signal.SIGKILL)
    command.communicate()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("/bin/true", "the interpreter /bin/true cannot run an engine: it is not a Python that works"),
        ("/etc/passwd", "the interpreter /etc/passwd cannot be started: "),
        ("/no/such/python", "there is no interpreter /no/such/python"),
    ],
)
def test_a_program_that_is_no_interpreter_says_nothing_of_the_model(candidate: Path, program: str, said: str) -> None:
    ran = typed("run", candidate, "--engine", f"onnxrt:python={program}")
    assert ran.status in (2, 4)
    assert said in ran.told
    assert "FAILED" not in ran.told


def test_a_package_that_is_not_there_says_nothing_of_the_model(python: Path, candidate: Path) -> None:
    with pytest.raises(errors.EngineMissing) as raised:
        create(f"openvino:python={python},config.NO_HERE=1").imports.module("no_such_package")
    assert raised.value.message.startswith(f"no_such_package cannot be imported in the environment of {python}: ")
    create(f"openvino:python={python}").imports.close()


def test_a_program_that_uses_the_library_survives_the_crash(python: Path) -> None:
    made, feed = chain(1, ("Identity",)), {"x": np.ones(2, np.float32)}
    with pytest.raises(errors.EngineFailure) as raised:
        biopsy.run(made, spec(python, "do.run=SIGSEGV"), feed)
    assert (raised.value.stage, raised.value.kind) == ("run", "SIGSEGV")
    found = biopsy.run(made, spec(python, "plus=2"), feed)
    assert found[0].iterations[0].outputs["y"].tolist() == [3, 3]
    create(spec(python, "")).imports.close()
