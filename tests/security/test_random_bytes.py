"""Random bytes, and valid files with random changes, given to every command that reads such files, for a minute.

A failure names its seed and case. ``BIOPSY_SEED=... pytest tests/security/test_random_bytes.py`` repeats all cases of a
seed, ``BIOPSY_CASE=N`` with it only that one; ``BIOPSY_SECONDS`` is how long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data

from biopsy.checks.journal import Journal
from biopsy.cli.app import main
from biopsy.engines.base import LayerRecord
from biopsy.tactics.record import TacticRecord, write_record
from biopsy.tensors.files import write_feeds, write_results
from biopsy.tensors.results import Iteration, RunnerResult
from support.models import chain, info, model, save, seeds_example, weight

TESTS = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to work in, one valid file of every form, and files beside it that nobody may touch."""
    for name in ("work", "examples", "home/.config", "tmp", "victims/deep"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("home/.profile", "home/.config/rc", "victims/secret", "victims/deep/model.onnx", "tmp/somebody's"):
        (tmp_path / name).write_text(f"victim {name}")
    examples(tmp_path / "examples", tmp_path / "made")
    return tmp_path


def examples(place: Path, scratch: Path) -> None:
    scratch.mkdir()
    save(chain(2), place / "m.onnx")
    save(seeds_example(), place / "model.onnx")
    save(bodied(), place / "bodied.onnx")
    external = model([onnx.helper.make_node("Add", ["x", "w"], ["y"])], [info("x")], [info("y")], [square()])
    convert_model_to_external_data(external, location="external.data", size_threshold=0)
    onnx.save_model(external, scratch / "external.onnx")
    for name in ("external.onnx", "external.data"):
        (place / name).write_bytes((scratch / name).read_bytes())
    value = np.float32([[1, -2], [0.5, 4]])
    feeds = [{"t0": value, "text": np.array(["a", "b"])}, {"t0": -value, "text": np.array(["c", "d"])}]
    for ending in ("json", "npz", "safetensors"):
        write_feeds(place / f"inputs.{ending}", [{"t0": value}] if ending == "npz" else feeds)
    np.save(place / "value.npy", value)
    write_results(place / "results.json", [RunnerResult("onnxrt", (Iteration({"t1": value, "t2": value}, 0.1),))])
    (place / "verdict.json").write_text(json.dumps({
        "outcome": "fails", "engine": "onnxrt", "stage": "compare", "kind": "mismatch", "outputs": ["y"], "status": 1,
        "mismatches": [{"output": "y", "kind": "mismatch", "elements": 8, "wrong": 3, "error": 0.5, "index": [1, 2]}],
        "rounding": {"verdict": "bug", "times": 20.0}, "looked": True,
    }))  # fmt: skip
    Journal.open(scratch / "journal", {"model": "m", "check": "c"}).close()
    (place / "journal").write_bytes((scratch / "journal").read_bytes())
    reduced(place, scratch)
    layers = tuple(
        LayerRecord(f"l{number}", "Conv", f"k{number}", "float32", "", (f"n{number}",)) for number in range(3)
    )
    write_record(
        TacticRecord("onnxrt", "1", "CPU", "m.onnx", "ab", {}, {}, (), 0, layers=layers), place / "tactics.json"
    )
    (place / "polygraphy.json").write_text(json.dumps({
        "__polygraphy_encoded_TacticReplayData": "TacticReplayData",
        "replay": {"conv": {"__polygraphy_encoded_Algorithm": "Algorithm", "implementation": 2147483657, "tactic": 6,
                            "inputs": [["TensorFormat.LINEAR", "DataType.FLOAT"]], "outputs": []}},
    }))  # fmt: skip


def reduced(place: Path, scratch: Path) -> None:
    """The replay of a real reduction."""
    words = ["debug", "reduce", str(place / "m.onnx"), "-o", str(scratch / "r.onnx"), "--jobs", "1"]
    replay = str(place / "replay.json")
    assert main([*words, "--save-debug-replay", replay, "--max-checks", "2", "--check", "/bin/false", "{}"]) in {
        0,
        4,
        5,
    }
    if not Path(replay).exists():
        Path(replay).write_text('{"biopsy_replay": 1, "identity": {}, "runs": [], "notes": {}}')


def square() -> onnx.TensorProto:
    return weight("w", 1, 2, 3, 4, shape=(2, 2))


def bodied() -> onnx.ModelProto:
    """A model with a body, a function and a weight."""
    body = onnx.helper.make_graph([onnx.helper.make_node("f", ["x"], ["b"], domain="own")], "body", [], [info("b")])
    chosen = onnx.helper.make_node("If", ["c"], ["t"], then_branch=body, else_branch=body)
    function = onnx.helper.make_function(
        "own", "f", ["a"], ["r"], [onnx.helper.make_node("Relu", ["a"], ["r"])], [onnx.helper.make_opsetid("", 17)]
    )
    last = onnx.helper.make_node("Add", ["t", "w"], ["y"])
    inputs = [info("x"), info("c", [], onnx.TensorProto.BOOL)]
    return model([chosen, last], inputs, [info("y")], [square()], functions=[function], domains=["own"])


def state(folder: Path) -> dict[str, tuple[int, ...]]:
    """What would show that somebody touched a file, or made one."""
    found = {}
    for name in ("home", "victims", "examples", "tmp/somebody's"):
        for path in (folder / name).rglob("*") if (folder / name).is_dir() else [folder / name]:
            seen = path.lstat()
            if ".cache" in path.parts:
                continue  # ONNX Runtime itself counts there what it runs
            found[str(path)] = (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_mode)
    return found


def attacked(folder: Path, script: list[str], *words: str, timeout: float) -> list[dict[str, Any]]:
    """What the attack found wrong, and at the end the number of its cases."""
    ended = subprocess.run(
        [sys.executable, *script, str(folder), *words],
        env={**os.environ, "PYTHONPATH": str(TESTS), "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"),
             "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def test_nothing_that_is_read_makes_a_traceback_a_hang_or_a_change_elsewhere(folder: Path) -> None:
    seed, case = os.environ.get("BIOPSY_SEED", str(time.time_ns())), os.environ.get("BIOPSY_CASE")
    seconds = float(os.environ.get("BIOPSY_SECONDS", "60"))
    before = state(folder)
    words = [seed, str(seconds), *([case] if case else [])]
    *wrong, last = attacked(folder, [str(TESTS / "support" / "attack.py")], *words, timeout=seconds + 100)
    summary = "\n".join(f"{one['number']} {one['line']} ({one['file']})\n{one['wrong'][-700:]}" for one in wrong[:8])
    assert not wrong, f"BIOPSY_SEED={seed}, {len(wrong)} cases are wrong:\n{summary}"
    assert state(folder) == before, f"BIOPSY_SEED={seed}"
    assert case or last["cases"] > 2 * seconds, "too few cases"


FAULTS = {
    "an exception": ("raise KeyError(path)", "KeyError"),
    "a way out": ("sys.exit(0)", "SystemExit"),
    "a hang": ("time.sleep(100)", "SIGALRM"),
    "a crash": ("os.abort()", "SIGABRT"),
    "a bomb": ("bytes(3 << 30)", "MemoryError"),
    "a file that is written": ("open('../victims/secret', 'a').close()", "touched outside"),
    "a file that is removed": ("os.remove('../victims/secret')", "touched outside"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_attack_would_see(folder: Path, fault: str) -> None:
    code, seen = FAULTS[fault]
    script = f"""
import os, sys, time
from support import attack
def read(path):
    {code}
attack.VICTIMS = (attack.Victim("m.onnx", call=read),)
attack.SECONDS_OF_A_CASE = attack.CASES_OF_A_FORK = 1
attack.main()
"""
    wrong = attacked(folder, ["-c", script], "1", "0.01", timeout=60)[0]
    assert seen in wrong["wrong"]
