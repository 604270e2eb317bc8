"""Streams that are closed, or that nobody reads: the work goes on, and its status tells."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.models import chain, save, seeds_example

BIOPSY = f"{shlex.quote(sys.executable)} -m biopsy"


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)


def test_a_reduction_whose_output_nobody_reads_still_ends_with_its_result(tmp_path: Path):
    save(seeds_example(), tmp_path / "model.onnx")
    check = f"{BIOPSY} inspect model {{}} --mode=basic"
    command = f"{BIOPSY} debug reduce model.onnx -o reduced.onnx --show-output --fail-regex 'Op: Mul' --check {check}"
    done = shell(f"{command} | true; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "reduced.onnx").exists()


def test_a_failure_whose_output_nobody_reads_is_still_a_failure(tmp_path: Path):
    save(chain(40, ("Abs", "Neg")), tmp_path / "model.onnx")
    save(chain(40, ("Abs", "Cos")), tmp_path / "other.onnx")
    shell(f"{BIOPSY} run other.onnx --onnxrt --onnx-outputs mark all --save-outputs golden.npz", tmp_path)
    done = shell(
        f"{BIOPSY} run model.onnx --onnxrt --load-outputs golden.npz | true; exit ${{PIPESTATUS[0]}}", tmp_path
    )
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("words", ["--help", "run --help", "inspect model model.onnx"])
@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-", "<&-", "| true"])
def test_any_stream_may_be_closed(tmp_path: Path, words: str, streams: str):
    save(seeds_example(), tmp_path / "model.onnx")
    done = shell(f"{BIOPSY} {words} {streams}; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_keeps_its_status_where_nobody_can_be_told(tmp_path: Path):
    assert shell(f"{BIOPSY} inspect model missing.onnx >&- 2>&-", tmp_path).returncode == 2


@pytest.mark.parametrize("stdin", ["<&-", "</dev/null"])
def test_a_reduction_without_check_and_without_anybody_says_so(tmp_path: Path, stdin: str):
    save(seeds_example(), tmp_path / "model.onnx")
    done = shell(f"{BIOPSY} debug reduce model.onnx -o reduced.onnx {stdin}", tmp_path)
    assert done.returncode == 2
    assert "--check COMMAND" in done.stderr
    assert not (tmp_path / "polygraphy_debug.onnx").exists()
