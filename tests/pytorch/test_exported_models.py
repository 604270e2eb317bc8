"""The exported models among the tests are what their maker writes today."""

import subprocess
import sys

import numpy as np
import onnx
import pytest

pytest.importorskip("torch")

from biopsy.tensors.files import read_feeds
from support.exporters import FOLDER

pytestmark = pytest.mark.torch


def test_the_maker_writes_the_files_of_the_tests(tmp_path):
    command = [sys.executable, FOLDER / "make.py", tmp_path]
    made = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        path.name for path in FOLDER.iterdir() if path.suffix in (".onnx", ".safetensors")
    }
    for path in tmp_path.glob("*.onnx"):
        here, there = onnx.load(path).graph, onnx.load(FOLDER / path.name).graph
        assert [(node.op_type, node.name, node.input, node.output) for node in here.node] == [
            (node.op_type, node.name, node.input, node.output) for node in there.node
        ]
        assert [str(node.metadata_props) for node in here.node] == [str(node.metadata_props) for node in there.node]
    for path in tmp_path.glob("*.safetensors"):
        (here,), (there,) = read_feeds(path), read_feeds(FOLDER / path.name)
        assert here.keys() == there.keys()
        for name, value in here.items():
            np.testing.assert_allclose(value, there[name], 1e-5, 1e-6, err_msg=name)
