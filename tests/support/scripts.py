"""Scripts that are checks, with all that they read, and a model whose weight stands in a file."""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from support.models import info, model

NAMES = r"""
import os, sys, time
data = open(sys.argv[1], "rb").read()
names = [name for name in (f"n{i}" for i in range(64)) if b"\x1a%c%s\"" % (len(name), name.encode()) in data]
"""
"""The beginning of a check: which of the nodes n0, n1, ... the candidate has.

It imports only what the interpreter has loaded already: onnx or re would take longer than the rest of the check.
"""

SCRIPT = """
import sys, pathlib, rule
wanted = pathlib.Path(sys.argv[2].partition("=")[2]).read_text().split()
sys.exit(rule.fails(pathlib.Path(sys.argv[1]).read_bytes(), wanted))
"""
RULE = """
def fails(model, wanted):
    return all(b"\\x1a" + bytes([len(name)]) + name.encode() in model for name in wanted)
"""
WAITS = """
import pathlib, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
pathlib.Path(sys.argv[2]).write_text(str(child.pid))
time.sleep(600)
"""


def script_check(folder: Path, wanted: str = "n3 n9") -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "check.py").write_text(SCRIPT)
    (folder / "rule.py").write_text(RULE)
    (folder / "wanted.txt").write_text(wanted)
    return [sys.executable, str(folder / "check.py"), "{}", f"--wanted={folder / 'wanted.txt'}"]


def with_external_weight(folder: Path, size: int = 1 << 20) -> Path:
    """A model of one Add, whose weight stands in a file of its own."""
    folder.mkdir()
    values = numpy_helper.from_array(np.ones(size, np.float32), "w")
    made = model(
        [helper.make_node("Neg", ["x"], ["a"], name="n3"), helper.make_node("Add", ["a", "w"], ["y"], name="n9")],
        [info("x", (size,))],
        [info("y", (size,))],
        [values],
    )
    onnx.save_model(made, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return folder / "m.onnx"
