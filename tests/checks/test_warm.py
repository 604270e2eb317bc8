"""Checks in forks of a warm process say what cold processes say; every process here is real."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import biopsy
from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Evidence
from biopsy.checks.warm import command_check
from biopsy.tensors.files import write_feeds, write_results
from support.command_line import children_of
from support.models import chain, info, model, save, weight

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork: checks are always cold")

NAME = "polygraphy_debug.onnx"


@pytest.fixture
def golden(tmp_path: Path) -> tuple[Path, Path]:
    """Inputs and golden values of a chain of six nodes, every tensor, in two files."""
    feed = {"t0": np.linspace(-1, 1, 4, dtype=np.float32).reshape(2, 2)}
    results = biopsy.run(chain(6, ("Neg", "Exp")), "onnxrt:threads=1", feed, outputs="all")
    write_feeds(tmp_path / "in.json", [{**feed, **results[0].iterations[0].outputs}])
    write_results(tmp_path / "golden.json", results)
    return tmp_path / "in.json", tmp_path / "golden.json"


def warm(*words: str, timeout: float | None = None) -> CommandCheck:
    return command_check(["biopsy", "run", "{}", *words], NAME, timeout)


def said(evidence: Evidence) -> tuple[object, ...]:
    """What a check says, without the times that it measured."""
    return evidence.status, evidence.verdict, re.sub(rb"[\d.]+ m?s\b", b"", evidence.output), evidence.timed_out


def candidates(folder: Path) -> list[Path]:
    """Models that pass, differ, cannot be compared, are refused, are damaged, and are missing."""
    made = [chain(count, ops) for count in range(1, 7) for ops in (("Neg", "Exp"), ("Exp", "Neg"), ("Neg",))]
    made += [model([helper.make_node("Relu", ["q"], ["r"])], [info("q")], [info("r")])]
    made += [model([helper.make_node("NoSuchOperator", ["t0"], ["t1"])], [info("t0")], [info("t1")])]
    made += [model([helper.make_node("Reshape", ["t0", "s"], ["t1"])], [info("t0")], [info("t1", None)],
                   [weight("s", 7, dtype="int64", shape=(1,))])]  # fmt: skip
    paths = [save(candidate, folder / f"c{number}.onnx") for number, candidate in enumerate(made)]
    (folder / "damaged.onnx").write_bytes(paths[0].read_bytes()[:-20])
    return [*paths, folder / "damaged.onnx", folder / "missing.onnx"]


@pytest.mark.slow
def test_outcome_and_output_are_those_of_a_cold_process(tmp_path: Path, golden: tuple[Path, Path]) -> None:
    inputs, outputs = map(str, golden)
    check = warm("--onnxrt", "--load-inputs", inputs, "--load-outputs", outputs)
    try:
        for path in candidates(tmp_path):
            assert said(check.run(path)) == said(check.cold().run(path)), path
        assert check.starter._server is not None
    finally:
        check.close()


def test_where_no_zygote_can_be_started_checks_are_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("biopsy.processes.warm.own_python", lambda module: ["/no/such/program"])
    candidate = save(chain(2), tmp_path / "m.onnx")
    check = warm("--reference")
    try:
        check.start()
        assert check.starter._server is None
        assert said(check.run(candidate)) == said(check.cold().run(candidate))
    finally:
        check.close()


@pytest.mark.slow
def test_a_hundred_checks_say_the_same_warm_and_cold(tmp_path: Path, golden: tuple[Path, Path]) -> None:
    inputs, outputs = map(str, golden)
    forms = [
        ["--onnxrt", "--load-inputs", inputs, "--load-outputs", outputs],
        ["--onnxrt", "--validate"],
        ["--reference", "--load-inputs", inputs, "--load-outputs", outputs, "--rtol", "1e-3"],
        ["--engine", "onnxrt:optimization=none", "--onnxrt"],
        ["--reference", "--onnxrt", "--fail-fast", "-q"],
    ]
    count = 0
    for form in forms:
        check = warm(*form)
        try:
            for path in candidates(tmp_path):
                assert said(check.run(path)) == said(check.cold().run(path)), (form, path)
                count += 1
            assert check.starter._server is not None, form
        finally:
            check.close()
    assert count >= 100


def test_a_wrong_option_is_told_by_the_check_itself(tmp_path: Path) -> None:
    check = warm("--onnxrt", "--no-such-option")
    evidence = check.run(save(chain(1), tmp_path / "m.onnx"))
    check.close()
    assert (evidence.status, evidence.verdict.outcome) == (2, "infrastructure")


def test_files_that_change_between_checks_are_read_anew(tmp_path: Path) -> None:
    path = save(chain(1, ("Neg",)), tmp_path / "m.onnx")
    inputs, outputs = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(inputs, t0=np.ones((2, 2), np.float32))
    np.savez(outputs, t1=-np.ones((2, 2), np.float32))
    check = warm("--onnxrt", "--load-inputs", str(inputs), "--load-outputs", str(outputs))
    try:
        assert check.run(path).status == 0
        np.savez(inputs, t0=np.full((2, 2), 3, np.float32))
        assert check.run(path).status == 1
    finally:
        check.close()


def crashing(folder: Path) -> Path:
    """A model whose Loop never ends: nothing but a timeout or a signal ends the process that runs it."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["v"], ["w"])],
        "body", [info("n", (), onnx.TensorProto.INT64), info("go", (), onnx.TensorProto.BOOL), info("v")],
        [info("on", (), onnx.TensorProto.BOOL), info("w")],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["", "yes", "x"], ["y"], body=body)
    made = model([loop], [info("x")], [info("y")], [weight("yes", True, dtype="bool", shape=())])
    return save(made, folder / "endless.onnx")


def test_a_check_that_hangs_is_ended_and_the_next_one_is_warm_again(tmp_path: Path) -> None:
    check = warm("--onnxrt", timeout=2.0)
    try:
        evidence = check.run(crashing(tmp_path))
        assert (evidence.timed_out, evidence.status) == (True, -signal.SIGKILL)
        zygote = check.starter._server
        assert check.run(save(chain(2), tmp_path / "m.onnx")).status == 0
        assert check.starter._server is zygote is not None
    finally:
        check.close()


def processor_seconds(pid: int) -> float:
    """What a process has used of processors; 0 if it is gone."""
    found = subprocess.run(["ps", "-o", "cputimes=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return float(found.stdout.strip() or 0)


@pytest.mark.skipif(subprocess.run(["which", "pgrep"], capture_output=True).returncode != 0, reason="needs pgrep")
def test_a_check_that_is_killed_ends_alone_and_a_killed_zygote_is_done_without(tmp_path: Path) -> None:
    import threading

    check = warm("--onnxrt")
    path = save(chain(2), tmp_path / "m.onnx")
    endless = crashing(tmp_path)
    try:
        assert check.run(path).status == 0
        assert check.starter._server is not None
        zygote = check.starter._server.pid

        def kill_child() -> None:
            """Kill the fork once it surely computes: one that ends before it has looked is asked again, cold."""
            while not (running := children_of(zygote)) or processor_seconds(running[0]) < 1:
                time.sleep(0.01)
            os.kill(running[0], signal.SIGSEGV)

        killer = threading.Thread(target=kill_child)
        killer.start()
        assert check.run(endless).status == -signal.SIGSEGV
        killer.join()
        os.kill(zygote, signal.SIGKILL)
        assert check.run(path).status == 0
        assert check.starter._server is None
    finally:
        check.close()


def test_nothing_is_left_when_the_one_who_asked_is_killed(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from biopsy.checks.command import CommandCheck
from biopsy.checks.warm import command_check
check = command_check(["biopsy", "run", "{{}}", "--onnxrt"], "{NAME}")
check.run(Path({str(save(chain(1), tmp_path / "m.onnx"))!r}))
print(check.starter._server.pid, flush=True)
check.run(Path({str(crashing(tmp_path))!r}))
"""
    asker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert asker.stdout is not None
    zygote = int(asker.stdout.readline())
    time.sleep(0.5)
    asker.kill()
    asker.communicate()
    for _ in range(100):
        if not Path(f"/proc/{zygote}").exists() or "zombie" in Path(f"/proc/{zygote}/status").read_text():
            break
        time.sleep(0.05)
    else:
        pytest.fail("the zygote outlives the one it served")
    assert "endless" not in subprocess.run(["ps", "ax"], capture_output=True, text=True, check=False).stdout
