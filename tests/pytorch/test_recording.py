"""``biopsy.torch.record``: a file of golden values that the other commands take."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import biopsy.torch  # noqa: E402
from biopsy import errors  # noqa: E402
from biopsy.cli.app import main  # noqa: E402
from biopsy.tensors.files import read_feeds  # noqa: E402
from biopsy.torch.recording import intermediate_values  # noqa: E402
from support.advice import advised  # noqa: E402
from support.pytorch_modules import Branches, Encoder, Mlp, exported  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    return tmp_path


def test_the_file_holds_the_inputs_and_every_value():
    program, x = exported(Mlp(), (torch.randn(3, 4),)), torch.randn(3, 4)
    recording = biopsy.torch.record(program, (x,), "golden.safetensors")
    assert (recording.path, recording.tensors, recording.of) == (Path("golden.safetensors"), 10, 10)
    assert str(recording) == "golden.safetensors: golden values of 10 of 10 tensors"
    (found,) = read_feeds("golden.safetensors")
    expected = {"x": x.numpy(), **dict(intermediate_values(program, (x,)))}
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def test_any_program_reads_the_file():
    from safetensors.torch import load_file

    program, x = exported(Mlp(), (torch.randn(3, 4),)), torch.randn(3, 4)
    biopsy.torch.record(program, x, "golden.safetensors")
    torch.testing.assert_close(load_file("golden.safetensors")["add_3"], program.exported_program.module()(x))


def test_what_is_refused_is_told_with_the_reason():
    ids = torch.arange(6).reshape(1, 6)
    recording = biopsy.torch.record(exported(Encoder(), (ids,), optimize=False), (ids,), "golden.safetensors")
    assert recording.tensors + len(recording.refused) == recording.of
    assert all(recording.refused.values())
    assert not recording.refused.keys() & read_feeds("golden.safetensors")[0].keys()


def test_nothing_is_written_where_no_tensor_has_a_value():
    program = exported(Mlp(), (torch.randn(3, 4),))
    for node in program.model.graph:
        node.metadata_props.clear()
    with pytest.raises(errors.CannotCompare, match="none of 10 tensors") as raised:
        biopsy.torch.record(program, torch.randn(3, 4), "golden.safetensors")
    assert "does not say what it was translated from" in raised.value.message
    assert not list(Path().iterdir())


def test_nothing_is_left_where_the_program_fails():
    program = exported(Branches(), (torch.ones(3),))
    node = next(node for node in program.exported_program.graph.nodes if node.name == "mul_1")
    node.args = (node.args[0], torch.ones(7))
    Path("golden.safetensors").write_bytes(b"mine")
    with pytest.raises(errors.EngineFailure, match="PyTorch cannot run"):
        for _ in biopsy.torch.recording.intermediate_values(program, torch.ones(3)):
            pass
    with pytest.raises(errors.BiopsyError):
        biopsy.torch.record(program, torch.ones(3), "golden.safetensors")
    assert list(Path().iterdir()) == [Path("golden.safetensors")]
    assert Path("golden.safetensors").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["golden.npz", "golden"])
def test_another_form_of_file_is_refused(name):
    with pytest.raises(errors.UsageError, match=r"ends in \.safetensors"):
        biopsy.torch.record(exported(Mlp(), (torch.ones(1, 4),)), torch.ones(1, 4), name)


def test_the_commands_name_the_line_and_reduce_to_it(capsys):
    program, x = exported(Mlp(), (torch.randn(3, 4),)), torch.randn(3, 4)
    program.save("model.onnx")
    biopsy.torch.record(program, x, "golden.safetensors")
    fault = ["--suspect", "fake:offset.node_relu_1=0.25"]
    assert main(["debug", "layers", "model.onnx", "--load-outputs", "golden.safetensors", *fault]) == 1
    shown = capsys.readouterr().out
    assert "golden values of 10 of 10 tensors" in shown
    assert "introduced by Relu 'node_relu_1', pytorch_modules.py:" in shown
    assert "in Mlp.forward: y.relu_()" in shown
    reducing = advised(shown)[0]
    assert "debug reduce" in reducing
    done = subprocess.run([sys.executable, "-m", *reducing.split()], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "1 of 10 nodes" in done.stdout


TALL = """
import torch, biopsy.torch
from support.pytorch_modules import exported

class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4096, 4096, bias=False) for _ in range(32))
    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return x

def now(entry):
    return int(open("/proc/self/status").read().partition(entry)[2].split()[0]) * 1024

with torch.device("meta"):
    module = Wide()
module = module.to_empty(device="cpu")
for parameter in module.parameters():
    torch.nn.init.zeros_(parameter)
program = exported(module, (torch.ones(256, 4096),), optimize=False)
args = (torch.ones(256, 4096),)
open("/proc/self/clear_refs", "w").write("5")  # the peak from now on
before = now("VmRSS:")
recording = biopsy.torch.record(program, args, "golden.safetensors")
print(recording.tensors, recording.of)
print(now("VmHWM:") - before)
"""


@pytest.mark.slow
def test_two_gigabytes_of_weights_are_recorded_within_150_megabytes_above_them(folder):
    """96 tensors of 4 MB each never are in memory together."""
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TALL],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "PYTHONPATH": str(tests)},
    )
    assert done.returncode == 0, done.stderr
    counts, above = done.stdout.strip().splitlines()
    assert counts == "96 96"
    assert Path("golden.safetensors").stat().st_size > 96 * 4 << 20
    assert int(above) < 150 << 20
