"""Weights are never copied in the process that has the module: 2 GB where all is well, 512 MB where something fails."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.slow]

_MOST = 150
"""Megabytes above the weights."""

_PROGRAM = """
import sys, threading
import torch
import biopsy.torch

class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList([torch.nn.Linear(8192, 8192, bias=False) for _ in range(int(sys.argv[2]))])

    def forward(self, x):
        for part in self.parts:
            x = torch.tanh(part(x))
        return torch.nn.functional.gelu(x)

def wrong_gelu(x, approximate="none"):
    from onnxscript import opset18
    return opset18.Tanh(x)

def megabytes():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000

biopsy.torch.diagnose(torch.nn.Linear(4, 4).eval(), (torch.ones(1, 4),))
module, x = Wide().eval(), torch.ones(1, 8192)
before, peak, ended = megabytes(), 0, threading.Event()

def watch():
    global peak
    while not ended.wait(0.005):
        peak = max(peak, megabytes())

watching = threading.Thread(target=watch)
watching.start()
table = {torch.ops.aten.gelu.default: wrong_gelu}
export = {"custom_translation_table": table} if sys.argv[3] == "wrong" else {}
found = biopsy.torch.diagnose(module, (x,), atol=1e-4, rtol=1e-4, output=sys.argv[1], export=export)
ended.set()
watching.join()
print(found.verdict.blame, before, peak - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize(
    ("layers", "translated", "expected"), [(8, "rightly", "passes"), (2, "wrong", "exporter")], ids=["2 GB", "512 MB"]
)
def test_large_weights_are_diagnosed_in_little_more_memory(
    tmp_path: Path, layers: int, translated: str, expected: str
) -> None:
    line = [sys.executable, "-c", _PROGRAM, str(tmp_path / "found"), str(layers), translated]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=540)
    assert ran.returncode == 0, ran.stderr
    blame, before, above = ran.stdout.split()
    assert (blame, float(before) > 250 * layers) == (expected, True)
    assert float(above) < _MOST
