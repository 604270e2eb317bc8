"""What a check that is ``biopsy run`` needs is loaded before a fork is made for it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from biopsy.model.slice import identity_bytes
from biopsy.tensors.files import write_feeds, write_results
from biopsy.tensors.results import Iteration, RunnerResult

_CHECK = """
import os, sys
from biopsy.cli import zygote
from biopsy.cli.run.options import own_run
words = sys.argv[1:]
args = own_run(words)
zygote.warm_up(args, zygote.load(args))
before = set(sys.modules)
status = zygote._check({"words": words, "BIOPSY_VERDICT": "verdict.json"})
print(status, *sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize(("golden", "status"), [(1.0, "0"), (2.0, "1")])
def test_a_fork_imports_nothing(golden: float, status: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(identity_bytes())
    model = onnx.load(tmp_path / "m.onnx")
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    ones = np.ones(shape, np.float32)
    write_feeds(tmp_path / "in.json", [{model.graph.input[0].name: ones}])
    result = RunnerResult("golden", (Iteration({model.graph.output[0].name: golden * ones}),))
    write_results(tmp_path / "out.json", [result])
    words = ["biopsy", "run", "m.onnx", "--onnxrt", "--load-inputs", "in.json", "--load-outputs", "out.json"]
    done = subprocess.run([sys.executable, "-c", _CHECK, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == [status], done.stdout + done.stderr
