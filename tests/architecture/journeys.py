"""Which of our functions a command passes through: ``python tests/architecture/journeys.py`` counts them.

The process of the command is looked at, and for ``run`` the fork in which it works; not the processes of checks.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from biopsy.tensors.files import write_feeds

Journey = Callable[[Path], set[tuple[str, str]]]

_PROFILED = """
import os, sys, biopsy
root = os.path.dirname(biopsy.__file__) + os.sep
seen, log = set(), os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)  # forks write into it, too
program = os.getpid() if sys.argv[2] != "run" else 0

def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code not in seen:
        seen.add(code)
        is_function = code.co_flags & 1 and code.co_name[0] != "<"  # no body of a class or module, no lambda
        if is_function and code.co_filename.startswith(root) and program in (0, os.getpid()):
            os.write(log, f"{code.co_filename[len(root):]} {code.co_qualname}\\n".encode())

sys.setprofile(profile)
from biopsy.cli.app import main
sys.exit(main(sys.argv[2:]))
"""

_CHECK = """
import sys, onnx
sys.exit(any(node.op_type == "Neg" for node in onnx.load(sys.argv[1]).graph.node))
"""


def passed_through(words: list[str], folder: Path, status: int) -> set[tuple[str, str]]:
    """The files and functions of ours that ``biopsy`` with these words passes through."""
    log = folder / "functions.txt"
    done = subprocess.run(
        [sys.executable, "-c", _PROFILED, str(log), *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return {tuple(line.split(" ", 1)) for line in log.read_text(encoding="utf-8").splitlines()}


def reduction(folder: Path) -> set[tuple[str, str]]:
    """A bisection of ten nodes, with a check that is a script of a stranger."""
    operators = ["Relu", "Abs", "Exp", "Neg", "Relu", "Abs", "Sigmoid", "Tanh", "Relu", "Abs"]
    _write_chain(operators, folder / "model.onnx")
    (folder / "check.py").write_text(_CHECK, encoding="utf-8")
    check = [sys.executable, "check.py", "{}"]
    words = ["debug", "reduce", "model.onnx", "-o", "reduced.onnx", "--mode=bisect", "--cold-checks", "--check", *check]
    return passed_through(words, folder, 0)


def run_with_golden_values(folder: Path) -> set[tuple[str, str]]:
    """One engine, and values that are loaded."""
    _write_chain(["Relu", "Abs"], folder / "model.onnx")
    values = np.linspace(-1, 1, 4, dtype=np.float32)
    write_feeds(folder / "inputs.json", [{"x0": values}])
    words = ["run", "model.onnx", "--onnxrt", "--load-inputs", "inputs.json"]
    passed_through([*words, "--save-outputs", "golden.json"], folder, 0)
    (folder / "functions.txt").unlink()
    return passed_through([*words, "--load-outputs", "golden.json"], folder, 0)


def diagnosis(folder: Path) -> set[tuple[str, str]]:
    """The model of the demonstration, whose failure is a fusion."""
    subprocess.run([sys.executable, "-m", "biopsy", "demo", "-o", "demo"], cwd=folder, check=True, capture_output=True)
    return passed_through(["diagnose", "demo/model.onnx", "--onnxrt", "--atol=1e-3", "--rtol=1e-3"], folder, 1)


def _write_chain(operators: list[str], path: Path) -> None:
    names = [f"x{number}" for number in range(len(operators) + 1)]
    nodes = [helper.make_node(kind, [a], [b]) for kind, a, b in zip(operators, names, names[1:], strict=False)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


if __name__ == "__main__":
    for journey in (reduction, run_with_golden_values, diagnosis):
        with tempfile.TemporaryDirectory() as folder:
            passed = journey(Path(folder))
            print(f"{journey.__name__:24} {len(passed):5} functions in {len({file for file, _ in passed})} files")
