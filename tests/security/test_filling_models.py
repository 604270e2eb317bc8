"""Small models that ask for all the time or memory there is hold no command for a minute, and take no two gigabytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.confined import Confinement
from support.filling_models import FILLING
from support.measured import measured

SECONDS, MEMORY = 60.0, 2_000_000_000
LIMITS = "--timeout 55s --memory-limit 1800MB"

COMMANDS = {
    "known": "debug known m.onnx",
    "reduce": "debug reduce m.onnx -o r.onnx --max-checks 20 --check sh check.sh {}",
    "layers": "debug layers m.onnx --suspect onnxrt",
    "sanitize": "surgeon sanitize m.onnx -o o.onnx --fold-constants --toposort --cleanup",
    "large constants": "surgeon sanitize m.onnx -o o.onnx --fold-constants --fold-size-threshold 100M",
    "extract": "surgeon extract m.onnx -o o.onnx --outputs y:auto",
    "insert": "surgeon insert m.onnx -o o.onnx --op Relu --inputs x --outputs y",
    "lint": "check lint m.onnx",
    "inspect": "inspect model m.onnx --mode=full",
    "run": f"run m.onnx --onnxrt {LIMITS}",
    "reference": f"run m.onnx --reference {LIMITS}",
}
"""What an engine computes of a model is not bounded by itself: where one runs the whole model, limits are given."""

LONG_IN_LAYERS = {"10^5 outputs of one node", "10^5 inputs of the model", "20,000 Relus of large constants"}
"""``debug layers`` runs the engine on each layer and on all tensors: that takes minutes here, and less than 2 GB."""

QUICK = [
    ("known", "124 bytes"),
    ("known", "31 doubling Concats in functions"),
    ("known", "a ConstantOfShape that propagation finds"),
    ("sanitize", "a long input of integers"),
    ("sanitize", "31 doubling Concats of a constant"),
    ("sanitize", "an Einsum of an outer product"),
    ("extract", "an Expand that propagation finds"),
    ("insert", "62 doubling Concats"),
    ("inspect", "10^5 inputs of one node"),
    ("inspect", "20,000 groups in the graph"),
]
"""A cross-section of commands and kinds."""


def require_told(status: int, err: str) -> None:
    assert status in range(5), err
    assert "itself failed" not in err
    assert "Traceback" not in err
    assert err.count("error: ") == (status > 1), err


def test_there_are_as_many_as_the_audit_had() -> None:
    assert len(FILLING) == 43
    assert len(FILLING["124 bytes"]()) < 200


@pytest.mark.parametrize(("command", "name"), QUICK)
def test_a_cross_section_needs_little(command: str, name: str, tmp_path: Path, confined: Confinement) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "m.onnx").write_bytes(FILLING[name]())
    ended = confined.run(COMMANDS[command].split(), folder)
    require_told(ended.status, ended.err)
    assert ended.peak < 1 << 30


@pytest.mark.slow
@pytest.mark.parametrize("name", FILLING)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_is_held_by_any_of_them(command: str, name: str, tmp_path: Path) -> None:
    if command == "layers" and name in LONG_IN_LAYERS:
        pytest.skip("the engine itself takes minutes, which --run-timeout bounds")
    (tmp_path / "m.onnx").write_bytes(FILLING[name]())
    (tmp_path / "check.sh").write_text('! grep -qE "ReduceMax|Relu|Sum|Add" "$1"')
    ended = measured(COMMANDS[command].split(), tmp_path, seconds=SECONDS, memory=MEMORY)
    require_told(ended.status, ended.err)


def test_an_output_of_which_the_values_are_not_followed_is_told(tmp_path: Path, confined: Confinement) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "m.onnx").write_bytes(FILLING["a long input of integers"]())
    ended = confined.run(COMMANDS["sanitize"].split(), folder)
    assert "warning: shape inference does not follow the values of 3 nodes: a tensor has 8,589,934,592" in ended.err


@pytest.mark.parametrize(
    ("command", "status", "told"),
    [
        ("reduce", 0, "the original could not be run to record values"),
        pytest.param("layers", 4, "onnxrt:optimization=none was ended at 200.0 MB of memory", marks=pytest.mark.slow),
    ],
)
def test_an_engine_of_ours_is_ended_at_its_limit_of_memory_which_is_no_failure_of_the_model(
    command: str, status: int, told: str, tmp_path: Path
) -> None:
    (tmp_path / "m.onnx").write_bytes(FILLING["an Einsum of an outer product"]())
    (tmp_path / "check.sh").write_text('! grep -q ReduceMax "$1"')
    words = [*COMMANDS[command].split(" --check")[0].split(), "--run-memory", "200MB"]
    check = ["--check", "sh", "check.sh", "{}"] if command == "reduce" else []
    ended = measured([*words, *check], tmp_path, seconds=SECONDS, memory=1_000_000_000)
    assert ended.status == status, ended.err
    assert told in ended.out + ended.err
