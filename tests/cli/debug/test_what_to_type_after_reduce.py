"""What ``debug reduce`` advises follows from how the result fails; each line parses, and does what it says."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from biopsy.cli.app import main
from biopsy.tensors.files import write_feeds
from support.advice import advised, parse
from support.command_line import BIN

MODEL = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[N,4] x) => (float[N,4] y) {
    [n0] a = Abs (x)
    [n1] b = Exp (a)
    [n2] c = Sqrt (b)
    [n3] d = Sigmoid (c)
    [n4] y = Tanh (d)
}
"""

PAIR = "fake:scale.Sqrt~Sigmoid=1.5"
"""A fault of two layers together."""

ENGINES = ("--engine", "onnxrt:optimization=none", "--engine", PAIR)
INSPECT = "biopsy inspect model r.onnx --mode=full"


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(MODEL), "m.onnx")
    write_feeds("in.npz", [{"x": np.full((2, 4), 0.5, np.float32)}])


def lines_after(capsys: pytest.CaptureFixture[str], *words: str, check: tuple[str, ...]) -> list[str]:
    status = main(["debug", "reduce", "m.onnx", "-o", "r.onnx", "--report", "found.json", *words, "--check", *check])
    shown = capsys.readouterr().out
    assert status == 0, shown
    lines = advised(shown)
    assert [one["line"] for one in json.loads(Path("found.json").read_text())["next"]] == lines
    for line in lines:
        parse(line)
    return lines


def test_a_mismatch_of_engines_is_followed_by_layers_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """What is said of ``x`` and ``y`` is left out: the result has neither."""
    limits = ("--atol", "1e-4", "y:1e-3", "--input-shapes", "x:[2,4]", "--seed", "7")
    layers, flags, known, inspect = lines_after(capsys, check=("biopsy", "run", "{}", *ENGINES, *limits))
    assert layers == (
        f"biopsy debug layers r.onnx --reference-engine onnxrt:optimization=none --suspect '{PAIR}' --seed 7"
        " --input-symbols N=2 --atol 1e-4"
    )
    assert flags == (
        f"biopsy debug flags r.onnx --engine '{PAIR}' --check biopsy run --input-symbols=N=2 {{}}"
        f" --engine onnxrt:optimization=none --engine '{PAIR}' --atol 1e-4 --seed 7"
    )
    assert known == f"biopsy debug known r.onnx --check {flags.partition(' --check ')[2]}"
    assert inspect == INSPECT


def test_what_is_known_is_not_asked_where_rules_decide(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_after(capsys, "--fail-code", "1", check=("biopsy", "run", "{}", *ENGINES))
    assert not any(" known " in line for line in lines)


def test_a_single_layer_is_not_examined_layer_by_layer(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = "fake:scale.n2=1.5"
    flags, _, inspect = lines_after(capsys, check=("biopsy", "run", "{}", "--onnxrt", "--engine", wrong))
    assert flags.startswith(f"biopsy debug flags r.onnx --engine {wrong} --check biopsy run {{}} ")
    assert inspect == INSPECT


def test_recorded_inputs_of_the_result_are_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    layers, flags, _, _ = lines_after(capsys, check=("biopsy", "run", "{}", "--load-inputs", "in.npz", *ENGINES))
    assert "--load-inputs r.onnx.inputs.safetensors" in layers
    assert flags.endswith("--load-inputs r.onnx.inputs.safetensors")
    assert "in.npz" not in layers + flags


def test_an_engine_that_fails_is_followed_by_settings_and_the_failure_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused = ("--engine", "fake:refuse.n2=build")
    flags, _, itself, inspect = lines_after(capsys, "--match", "message", check=("biopsy", "run", "{}", *refused))
    assert "--match message" in flags
    assert (itself, inspect) == (f"biopsy run r.onnx {' '.join(refused)}", INSPECT)


def test_a_check_of_another_program_is_repeated_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    Path("check.sh").write_text("! grep -q Sqrt $1\n")
    status = main(["debug", "reduce", "m.onnx", "-o", "r.onnx", "--check", "bash", "check.sh", "{}"])
    shown = capsys.readouterr().out
    assert status == 0
    assert "\n           bash check.sh r.onnx\n" in shown
    assert advised(shown) == [INSPECT]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "statuses"),
    [
        (("biopsy", "run", "{}", *ENGINES), [1, 0, 0, 0]),
        (("biopsy", "run", "{}", "--load-inputs", "in.npz", *ENGINES), [1, 0, 0, 0]),
        (("biopsy", "run", "{}", *ENGINES, "--input-shapes", "x:[2,4]", "--atol", "1e-4", "y:1e-3"), [1, 0, 0, 0]),
        (("biopsy", "run", "{}", "--engine", "fake:refuse.n2=build"), [0, 0, 1, 0]),
        (("biopsy", "run", "{}", "--engine", "fake:crash.n2=run"), [0, 0, 1, 0]),
        (("biopsy", "run", "{}", "--engine", "fake:nan.n2=1", "--validate"), [0, 0, 0]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_every_line_works_when_it_is_pasted(check: tuple[str, ...], statuses: list[int]) -> None:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    line = [str(BIN / "biopsy"), "debug", "reduce", "m.onnx", "-o", "r.onnx", "--check", *check]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment)
    assert ran.returncode == 0, ran.stderr
    done = [
        subprocess.run(["bash", "-c", one], capture_output=True, text=True, timeout=120, env=environment)
        for one in advised(ran.stdout)
    ]
    assert [one.returncode for one in done] == statuses, [one.stdout + one.stderr for one in done]
