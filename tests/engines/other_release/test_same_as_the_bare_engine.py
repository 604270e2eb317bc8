"""A release gives the same bytes in every way that biopsy runs it as in a bare script of its interpreter.

OpenVINO 2023.3.0 was built by pybind11 before 2.12: beside NumPy 2 it read the memory of arrays elsewhere, and every
output was noise, or NaN.
"""

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import biopsy
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from biopsy.engines.worker import Worker
from biopsy.processes.environments.prepared import prepared
from biopsy.tensors.files import write_feeds
from support.command_line import typed

pytestmark = pytest.mark.slow

MODEL = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 13]>
    g (float[4,2] x) => (float[4,2] y)
    <float[2,2] w = {0.5, -1.5, 2.5, 0.25}, float[2] s = {0.1, 0.3}>
    { t = MatMul (x, w)  y = PRelu (t, s) }
""")

BARE = {
    "openvino": """
import sys, numpy as np
from openvino.runtime import Core
compiled = Core().compile_model("m.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
sys.stdout.buffer.write(compiled(np.load("x.npy"))[0].tobytes())
""",
    "onnxruntime": """
import sys, numpy as np, onnxruntime
session = onnxruntime.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
sys.stdout.buffer.write(session.run(None, {"x": np.load("x.npy")})[0].tobytes())
""",
}


@pytest.mark.parametrize(
    ("package", "release", "engine"),
    [("openvino", "2023.3.0", "openvino:precision=f32"), ("onnxruntime", "1.20.1", "onnxrt:providers=cpu")],
)
def test_every_way_to_run_a_release_gives_the_bytes_of_a_bare_script(
    package: str, release: str, engine: str, tmp_path: Path
) -> None:
    x = np.random.default_rng(1).standard_normal((4, 2), np.float32)
    onnx.save(MODEL, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", x)
    write_feeds(tmp_path / "x.json", [{"x": x}])
    with prepared([f"{package}=={release}"]) as environment:
        words = [str(environment.python), "-I", "-c", BARE[package]]
        bare = subprocess.run(words, cwd=tmp_path, capture_output=True, check=True).stdout
    expected = np.frombuffer(bare, np.float32).reshape(4, 2)
    assert np.isfinite(expected).all()
    spec, source = f"{engine},release={release}", ModelInput(MODEL.SerializeToString(), tmp_path)
    session = create(spec).build(source)
    with Worker(spec, tmp_path, None) as worker:
        ran = typed("run", "m.onnx", "--engine", spec, "--load-inputs", "x.json", "--save-outputs", "y.json",
                    folder=tmp_path)  # fmt: skip
        assert ran.status == 0, ran.told
        ways = {
            "in this process": session.run({"x": x})["y"],
            "once more": session.run({"x": x})["y"],
            "a worker": worker.run(source, tmp_path / "x.json")[0]["y"],
            "from Python": np.asarray(biopsy.run(MODEL, spec, {"x": x})[0].iterations[0].outputs["y"]),
        }
    assert {way: value.tobytes() for way, value in ways.items()} == dict.fromkeys(ways, bare)
    shown = typed("run", "m.onnx", "--engine", spec, "--load-inputs", "x.json", "--load-outputs", "y.json",
                  "--atol", "0", "--rtol", "0", folder=tmp_path)  # fmt: skip
    assert shown.status == 0, shown.told
