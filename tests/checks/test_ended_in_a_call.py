"""A check that ends while an engine is at work: whoever runs it knows which engine that was, and in which stage."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from biopsy.checks.command import CommandCheck
from biopsy.checks.judge import Rules, Signature, judge, signature_of
from biopsy.checks.outcome import Evidence, Outcome
from biopsy.checks.verdict import VerdictFile
from biopsy.checks.warm import command_check
from biopsy.processes.engine_calls import SIZE, EngineCall, open_call
from support.models import chain, save
from support.planting import planted as planted

NAME = "polygraphy_debug.onnx"
CRASHES = ["build", "run"]


@pytest.fixture
def candidate(tmp_path: Path) -> Path:
    return save(chain(2), tmp_path / "candidate.onnx")


def by_script(candidate: Path, engine: str, *more: str, **limits: float) -> Evidence:
    """The evidence of a script that calls us."""
    script = candidate.with_name("check.py")
    lines = ["import sys, biopsy, numpy", "feed = {'t0': numpy.ones((2, 2), 'float32')}", *more]
    script.write_text("\n".join([*lines, "biopsy.run(sys.argv[1], sys.argv[2], feed)"]))
    return CommandCheck([sys.executable, str(script), "{}", engine], NAME, limits.get("timeout")).run(candidate)


def run_words(*engines: str) -> list[str]:
    return ["biopsy", "run", "{}", *(word for engine in engines for word in ("--engine", engine))]


def cold(candidate: Path, *engines: str, **limits: float) -> Evidence:
    return CommandCheck(run_words(*engines), NAME, limits.get("timeout")).run(candidate)


def warm(candidate: Path, *engines: str) -> Evidence:
    check = command_check(run_words(*engines), NAME)
    try:
        return check.run(candidate)
    finally:
        check.close()


def beside_another(candidate: Path, engine: str) -> Evidence:
    """The evidence of one of two warm runs at the same time, which agree."""
    check = command_check(run_words(engine), NAME, jobs=2)
    try:
        with ThreadPoolExecutor(2) as threads:
            one, other = threads.map(check.run, [candidate, candidate])
    finally:
        check.close()
    assert place(one) == place(other)
    return one


def place(evidence: Evidence) -> tuple[int, str, str, str]:
    """How a check ended, and where by its signature."""
    signature = signature_of(evidence)
    return signature.status, signature.engine, signature.stage, signature.kind


@pytest.mark.parametrize(
    ("way", "stage"),
    [
        pytest.param(way, stage, marks=[] if (number + index) % 2 else pytest.mark.slow)
        for number, way in enumerate((cold, warm, beside_another, by_script))
        for index, stage in enumerate(CRASHES)
    ],
)
def test_a_crash_has_the_same_engine_and_stage_however_the_check_is_run(
    way: Callable[..., Evidence], stage: str, candidate: Path
) -> None:
    assert place(way(candidate, f"fake:crash.Relu={stage}")) == (-11, "fake", stage, "SIGSEGV")


def test_of_two_engines_the_one_that_crashes_is_named(candidate: Path) -> None:
    evidence = cold(candidate, "reference", "fake:crash.Relu=run")
    assert place(evidence) == (-11, "fake", "run", "SIGSEGV")


def test_a_crash_between_two_calls_has_no_stage(candidate: Path) -> None:
    ends = "import atexit, os; atexit.register(os.kill, os.getpid(), 11)"
    assert place(by_script(candidate, "reference", ends)) == (-11, "", "", "")


def test_a_crash_of_a_process_that_the_script_survives_has_no_stage(candidate: Path) -> None:
    fork = "import os; child = os.fork(); engine = sys.argv[2] if not child else 'reference'"
    wait = "child and os.waitpid(child, 0); sys.argv[2] = engine"
    kill = "import atexit; child and atexit.register(os.kill, os.getpid(), 11)"
    assert place(by_script(candidate, "fake:crash.Relu=run", fork, wait, kill)) == (-11, "", "", "")


def test_a_signal_that_somebody_sends_has_no_stage(candidate: Path) -> None:
    assert place(cold(candidate, "fake:crash.Relu=run,signal=SIGTERM")) == (-15, "", "", "")


def test_a_hang_has_the_stage_that_does_not_end(candidate: Path, planted: Callable[..., str]) -> None:
    evidence = cold(candidate, planted({"op": "Relu", "does": "hang run"}), timeout=5.0)
    assert (evidence.timed_out, evidence.verdict.stage) == (True, "run")
    assert str(signature_of(evidence)) == "no answer in time when it runs · planted"


def test_where_nobody_reads_the_calls_nothing_is_left_behind(candidate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIOPSY_VERDICT", str(candidate.with_name("verdict.json")))
    with EngineCall("fake", "run", "it ran"):
        pass
    assert [path.name for path in candidate.parent.iterdir()] == ["candidate.onnx"]


@pytest.mark.parametrize("written", [b"", b"\xff" * 10, b"\xff" * SIZE, bytes(SIZE), bytes(10 * SIZE)])
def test_whatever_is_in_the_file_of_calls_tells_of_no_call(written: bytes, tmp_path: Path) -> None:
    (tmp_path / "verdict.json.calls").write_bytes(written)
    assert open_call(tmp_path / "verdict.json", os.getpid()) is None


def test_a_link_in_place_of_the_file_of_calls_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIOPSY_VERDICT", str(tmp_path / "verdict.json"))
    (tmp_path / "elsewhere").write_bytes(bytes(SIZE))
    (tmp_path / "verdict.json.calls").symlink_to(tmp_path / "elsewhere")
    with EngineCall("fake", "run", "it ran"):
        assert open_call(tmp_path / "verdict.json", os.getpid()) is None
    assert (tmp_path / "elsewhere").read_bytes() == bytes(SIZE)


def ended(stage: str, engine: str = "fake", **more: bool) -> Evidence:
    kind = "" if more else "SIGSEGV"
    return Evidence(status=-11, verdict=VerdictFile(engine=engine, stage=stage, kind=kind), **more)


@pytest.mark.parametrize("more", [{}, {"timed_out": True}, {"out_of_memory": True}])
def test_only_the_same_stage_and_engine_reproduce(more: dict[str, bool]) -> None:
    reference = signature_of(ended("build", **more))

    def outcome(evidence: Evidence, rules: Rules | None = None) -> Outcome:
        return judge(evidence, rules or Rules(), reference).outcome

    assert outcome(ended("build", **more)) is Outcome.REPRODUCES
    for other in (ended("run", **more), ended("build", "other", **more), ended("", "", **more)):
        assert outcome(other) is Outcome.OTHER_FAILURE
        assert outcome(other, Rules(match="any")) is Outcome.REPRODUCES


def test_a_crash_reads_like_a_crash() -> None:
    assert str(Signature(status=-11, engine="fake", stage="build", kind="SIGSEGV")) == (
        "crashes when it builds · SIGSEGV · fake"
    )
    assert str(Signature(status=-11)) == "signal SIGSEGV"
