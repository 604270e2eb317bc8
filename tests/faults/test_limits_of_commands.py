"""``--timeout`` and ``--memory-limit`` end a command, whatever it is at, and say so; nothing stays."""

import re
from pathlib import Path

import onnx
import pytest
from onnx import helper

from support.filling_models import FILLING
from support.measured import measured
from support.models import chain, info, model, save


def ended(words: str, folder: Path, *, within: float = 40.0):
    return measured(words.split(), folder, seconds=within, memory=4_000_000_000)


def test_a_command_that_takes_too_long_is_ended_and_says_so(tmp_path: Path) -> None:
    save(chain(3), tmp_path / "m.onnx")
    found = ended("run m.onnx --engine fake:sleep_ms=60000 --timeout 1s", tmp_path)
    assert found.status == 4
    assert "error: biopsy run was stopped: it took longer than 1 s" in found.err
    assert "biopsy run --timeout 10s m.onnx" in found.err


@pytest.mark.parametrize("command", ["surgeon sanitize m.onnx -o o.onnx", "check lint m.onnx", "inspect model m.onnx"])
def test_a_command_that_takes_too_much_memory_is_ended_and_writes_nothing(command: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(FILLING["10^5 inputs of the model"]())
    found = ended(f"{command} --memory-limit 20MB", tmp_path)
    assert found.status == 4
    name = " ".join(command.split()[:2])
    assert f"error: biopsy {name} was stopped: it used more than 20.0 MB of memory" in found.err
    assert found.peak < 200_000_000
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", "out.txt", "err.txt"}


def test_the_engine_of_lint_is_ended_at_its_part_of_the_limit_and_the_verdict_says_what_was_not_run(
    tmp_path: Path,
) -> None:
    large = helper.make_node("ConstantOfShape", ["s"], ["k"])
    whole = [large, helper.make_node("ReduceMax", ["k"], ["m"], keepdims=0), helper.make_node("Add", ["m", "x"], ["y"])]
    shape = helper.make_tensor("s", onnx.TensorProto.INT64, [1], [400_000_000])
    save(model(whole, [info("x", [])], [info("y", [])], [shape]), tmp_path / "m.onnx")
    found = ended("check lint m.onnx --memory-limit 1200MB", tmp_path)
    assert "no node was run: onnxrt was ended at 900.0 MB" in found.out
    assert "0 of 3 nodes run, 3 could not be tested" in found.out
    assert found.peak < 1_700_000_000


def test_a_check_is_ended_by_its_own_limit_and_not_taken_for_a_failure(tmp_path: Path) -> None:
    save(chain(3), tmp_path / "m.onnx")
    check = "biopsy run {} --engine fake:sleep_ms=60000 --timeout 1s"
    found = ended(f"debug reduce m.onnx -o r.onnx --check {check}", tmp_path)
    assert found.status == 4
    assert "run was stopped: it took longer than 1 s" in found.err + found.out
    assert not (tmp_path / "r.onnx").exists()


def test_limits_that_are_met_by_far_change_nothing(tmp_path: Path) -> None:
    save(chain(3), tmp_path / "m.onnx")
    assert ended("run m.onnx --engine fake --timeout 10m --memory-limit 4GB", tmp_path).status == 0


def test_the_line_that_is_advised_allows_more_and_works(tmp_path: Path) -> None:
    save(chain(3), tmp_path / "m.onnx")
    found = ended("run m.onnx --engine fake:sleep_ms=1500 --timeout 1s", tmp_path)
    line = re.search(r"next  biopsy (.*)    if you trust the model", found.err)
    assert line is not None
    assert line[1] == "run --timeout 10s m.onnx --engine fake:sleep_ms=1500"
    assert ended(line[1], tmp_path).status == 0
