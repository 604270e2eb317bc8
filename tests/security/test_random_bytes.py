"""Random bytes, and valid files with random changes, given to every command that reads such files, for a minute.

A failure names its seed and case. ``BIOPSY_SEED=... pytest tests/security/test_random_bytes.py`` repeats all cases of a
seed, ``BIOPSY_CASE=N`` with it only that one; ``BIOPSY_SECONDS`` is how long.
"""

from __future__ import annotations

import json
import os
import shutil
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
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.engines.base import LayerRecord
from biopsy.questions.builds.record import TacticRecord, write_record
from biopsy.questions.known_failures.catalogue import OWN_FOLDER
from biopsy.tensors.files import write_feeds, write_results
from biopsy.tensors.results import Iteration, RunnerResult
from support import attack
from support.command_line import started, typed
from support.models import chain, info, model, save, seeds_example, weight

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One valid file of every form."""
    place = tmp_path_factory.mktemp("examples")
    examples(place, tmp_path_factory.mktemp("made"))
    return place


@pytest.fixture
def folder(tmp_path: Path, valid: Path) -> Path:
    """A folder to work in, one valid file of every form, and files beside it that nobody may touch."""
    for name in ("work", "home/.config", "tmp", "victims/deep"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("home/.profile", "home/.config/rc", "victims/secret", "victims/deep/model.onnx", "tmp/somebody's"):
        (tmp_path / name).write_text(f"victim {name}")
    shutil.copytree(valid, tmp_path / "examples")
    return tmp_path


def examples(place: Path, scratch: Path) -> None:
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
    (place / "known.yaml").write_text((OWN_FOLDER / "onnxruntime-23116-relu-clip.yaml").read_text())
    remembered(place / "journal")
    reduced(place, scratch)
    recorded(place, scratch)
    layers = tuple(
        LayerRecord(
            name=f"l{number}",
            kind="Conv",
            implementation=f"k{number}",
            precision="float32",
            layout="",
            nodes=(f"n{number}",),
        )
        for number in range(3)
    )
    write_record(
        TacticRecord(
            engine="onnxrt",
            version="1",
            device="CPU",
            model="m.onnx",
            model_digest="ab",
            settings={},
            environment={},
            varied=(),
            iteration=0,
            layers=layers,
        ),
        place / "tactics.json",
    )
    (place / "polygraphy.json").write_text(json.dumps({
        "__polygraphy_encoded_TacticReplayData": "TacticReplayData",
        "replay": {"conv": {"__polygraphy_encoded_Algorithm": "Algorithm", "implementation": 2147483657, "tactic": 6,
                            "inputs": [["TensorFormat.LINEAR", "DataType.FLOAT"]], "outputs": []}},
    }))  # fmt: skip


def remembered(path: Path) -> None:
    """A journal that has a line of every kind."""
    journal = Journal.open(path, {"model": "m", "check": "c"})
    for number, outcome in enumerate((Outcome.REPRODUCES, Outcome.PASSES, Outcome.INVALID, Outcome.PASSES)):
        judged = Judged(outcome, f"exit status {number}", Evidence(status=number, seconds=0.25))
        journal.add(bytes([number % 3]), judged, stage="bisect", description="the first half", nodes=number)
    journal.note("signature", '{"status": 1}')
    journal.forget(b"\0")
    journal.close()


def reduced(place: Path, scratch: Path) -> None:
    """The journal and the replay of a real reduction that was stopped, by the very line that is given them again."""
    (scratch / "m.onnx").write_bytes((place / "m.onnx").read_bytes())
    line = attack.REDUCE.replace("--check", "--save-debug-replay replay.json --check")
    ran = typed(*line.split(), folder=scratch)
    assert ran.status == 5, ran.told
    shutil.copyfile(scratch / "r.onnx.journal", place / "reduced.journal")
    shutil.copyfile(scratch / "replay.json", place / "replay.json")


def recorded(place: Path, scratch: Path) -> None:
    """What a recording leaves that was killed after its first batch: should it be too fast for that, the next one."""
    for _ in range(20):
        line = (*attack.RECORD.split(), "-v")
        with started(*line, folder=scratch, variables={"PYTHONUNBUFFERED": "1"}) as process:
            assert process.stdout is not None
            assert any("batch 1 of" in line for line in process.stdout)
            process.kill()
        left = list(scratch.glob(".o.safetensors.recording*"))
        if left:
            break
    assert left
    for path in left:
        shutil.copyfile(path, place / path.name)


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
    key = Path(os.environ["XDG_STATE_HOME"], "biopsy")
    for place in (key, *(folder / name for name in ("home", "victims", "examples", "tmp/somebody's"))):
        for path in place.rglob("*") if place.is_dir() else [place]:
            seen = path.lstat()
            if ".cache" in path.parts:
                continue  # ONNX Runtime itself counts there what it runs
            found[str(path)] = (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_mode)
    return found


def attacked(folder: Path, script: list[str], *words: str, timeout: float) -> list[dict[str, Any]]:
    """What the attack found wrong."""
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


@pytest.mark.slow
def test_nothing_that_is_read_makes_a_traceback_a_hang_or_a_change_elsewhere(folder: Path) -> None:
    seed, case = os.environ.get("BIOPSY_SEED", str(time.time_ns())), os.environ.get("BIOPSY_CASE")
    seconds = float(os.environ.get("BIOPSY_SECONDS", "60"))
    before = state(folder)
    words = [seed, str(seconds), *([case] if case else [])]
    wrong = attacked(folder, [str(TESTS / "support" / "attack.py")], *words, timeout=seconds + 500)
    summary = "\n".join(f"{one['number']} {one['line']} ({one['file']})\n{one['wrong'][-700:]}" for one in wrong[:8])
    assert not wrong, f"BIOPSY_SEED={seed}, {len(wrong)} cases are wrong:\n{summary}"
    assert state(folder) == before, f"BIOPSY_SEED={seed}"


FAULTS = {
    "an exception": ("raise KeyError(path)", "KeyError"),
    "a way out": ("sys.exit(0)", "SystemExit"),
    "a hang": ("time.sleep(100)", "SIGALRM"),
    "a crash": ("os.abort()", "SIGABRT"),
    "a bomb": ("bytes(3 << 30)", "MemoryError"),
    "a file that is written": ("open('../victims/secret', 'a').close()", "touched outside"),
    "a file that is removed": ("os.remove('../victims/secret')", "touched outside"),
}


GOES_ON = {
    "a journal": (("reduced.journal",), attack.REDUCE, "checks remembered"),
    "a replay": (("replay.json",), attack.LOADS_REPLAY.replace("{}", "replay.json"), "checks remembered"),
    "a recording": ((".o.safetensors.recording", ".o.safetensors.recording.json"), attack.RECORD, "by an earlier run"),
}


@pytest.mark.parametrize("name", GOES_ON)
def test_the_examples_themselves_are_read_to_their_end(folder: Path, name: str) -> None:
    """Or no change of them would show more than that the files of another reduction are refused."""
    examples, line, told = GOES_ON[name]
    for example in ("m.onnx", *examples):
        place = "r.onnx.journal" if example == "reduced.journal" else example
        if (folder / "examples" / example).exists():
            shutil.copyfile(folder / "examples" / example, folder / "work" / place)
    ran = typed(*line.split(), folder=folder / "work")
    assert ran.status == 0, ran.told
    assert told in ran.told


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("alone", [False, True], ids=["in a row", "alone"])
def test_the_attack_would_see(folder: Path, fault: str, alone: bool) -> None:
    code, seen = FAULTS[fault]
    script = f"""
import os, sys, time
from support import attack
from support.command_line import started, typed
def read(path):
    {code}
attack.VICTIMS = (attack.Victim("m.onnx", call=read),)
attack.SECONDS_OF_A_CASE = attack.CASES_OF_A_FORK = attack.FEWEST_CASES = 1
attack.main()
"""
    wrong = attacked(folder, ["-c", script], "1", "0", *(["0"] if alone else []), timeout=60)[0]
    assert seen in wrong["wrong"]
