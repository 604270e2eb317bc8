"""``debug layers`` that was stopped does not say that all is right, and the lines it prints show the failure."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from biopsy.tensors.files import write_feeds
from support.command_line import BIN
from support.models import chain, save
from support.predicates import names

SCRIPT = "import numpy as np\n\ndef make():\n    yield {'x': np.full((3, 4), 2, np.float32)}\n"
ENVIRONMENT = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of an open dimension; of its four nodes ``n2`` is wrong, unless what it is fed is not positive."""
    monkeypatch.chdir(tmp_path)
    text = """
    <ir_version: 9, opset_import: ["" : 17]>
    g (float[N,4] x) => (float[N,4] y) {
        [n0] a = Abs (x)
        [n1] b = Sub (a, x)
        [n2] c = Relu (b)
        [n3] y = Neg (c)
    }
    """
    onnx.save(onnx.parser.parse_model(text), "m.onnx")
    write_feeds("in.npz", [{"x": np.full((3, 4), -2, np.float32)}])
    Path("loader.py").write_text(SCRIPT.replace("2,", "-2,"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        pytest.param(("--val-range", "[-2,-1]"), marks=pytest.mark.slow),
        pytest.param(("--val-range", "x:[-2,-1]", "--seed", "7", "--input-shapes", "x:[3,4]"), marks=pytest.mark.slow),
        pytest.param(("--load-inputs", "in.npz"), marks=pytest.mark.slow),
        ("--load-inputs", "in.npz", "--atol", "1e-4", "--report", "-l.json"),
        pytest.param(("--data-loader-script", "loader.py:make"), marks=pytest.mark.slow),
        ("--val-range", "[-2,-1]", "--save-inputs", "saved inputs.npz"),
    ],
    ids=" ".join,
)
def test_the_lines_show_the_failure_when_they_are_pasted(given: tuple[str, ...]) -> None:
    given = tuple("--report=-l.json" if word == "--report" else word for word in given if word != "-l.json")
    line = [str(BIN / "biopsy"), "debug", "layers", "m.onnx", "--suspect", "fake:scale.n2=1.5", *given]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
    assert ran.returncode == 1, ran.stderr
    lines = [one.removeprefix("Next").strip() for one in ran.stdout.partition("\nNext")[2].splitlines()]
    status = {}
    for one in lines:
        done = subprocess.run(["bash", "-c", one], capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
        status[one] = done.returncode, done.stdout + done.stderr
    assert [found for found, _ in status.values()][:-1] == [0] * (len(lines) - 1), status
    assert status[lines[-1]][0] == 1, status  # the piece really fails
    assert "suspect.onnx" in lines[-1]
    assert names(onnx.load("suspect.onnx")) == ["n2"]
    assert names(onnx.load("reduced.onnx")) == ["n2"]


@pytest.mark.slow
def test_a_failure_of_inputs_that_are_made_by_default_is_shown_too() -> None:
    save(chain(4, ["Abs"]), Path("m.onnx"))
    line = [str(BIN / "biopsy"), "debug", "layers", "m.onnx", "--suspect", "fake:refuse.n2=run"]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
    last = ran.stdout.rstrip().splitlines()[-4:]
    done = [subprocess.run(["bash", "-c", one], capture_output=True, timeout=60, env=ENVIRONMENT) for one in last]
    assert [one.returncode for one in done] == [0, 0, 0, 1], done


@pytest.mark.slow
def test_interrupted_before_anything_was_wrong_it_does_not_say_that_it_passed() -> None:
    save(chain(30, ["Relu", "Neg", "Neg"]), Path("m.onnx"))
    words = ["--suspect", "fake:sleep_ms=700", "--record-memory", "100", "--report", "l.json", "--events", "e.jsonl"]
    process = subprocess.Popen(
        [sys.executable, "-m", "biopsy", "debug", "layers", "m.onnx", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not Path("e.jsonl").exists() or '"stage": "isolated"' not in Path("e.jsonl").read_text():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 5
    assert "PASSED" not in out
    assert "INTERRUPTED | no tensor that was measured until then" in out
    assert json.loads(Path("l.json").read_text())["layers"]["verdict"] == "unknown"
