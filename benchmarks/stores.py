"""Opening golden values of 500 MB: biopsy's .safetensors beside base64 JSON, biopsy's reader beside Polygraphy's.

    python -m benchmarks.stores --peer FOLDER

``FOLDER`` is an environment with Polygraphy 0.53.6. A check of a small candidate needs three of the tensors. Each row
is a process of its own: the time from when everything is imported until the values of these three have been summed, and
the most memory that this took above what the process had then. Files are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.attempts import NotMeasured, attempt, times_faster

TENSORS, ELEMENTS = 50, 2_500_000  # 10 MB each
NEEDED = ("t7", "t23", "t41")
REPEATS = 3
LIMIT = 300.0
"""Seconds after which a reader is stopped."""

_FRAME = """
import json, sys, time
{imports}
def memory():
    lines = open("/proc/self/status").read().splitlines()
    return {{line.split(":")[0]: int(line.split()[1]) / 1000 for line in lines if line.startswith(("VmHWM", "VmRSS"))}}
before, start = memory()["VmRSS"], time.perf_counter()
{opening}
opened = time.perf_counter() - start
total = sum(float(np.asarray(outputs[name]).sum()) for name in {needed!r})
seconds = time.perf_counter() - start
print(json.dumps([opened, seconds, memory()["VmHWM"] - before, total]))
"""

_OURS = (
    "import numpy as np; from biopsy.tensors.files import read_results",
    "outputs = read_results(sys.argv[1])[0].iterations[0].outputs",
)
_PEERS = (
    "import numpy as np; from polygraphy.comparator import RunResults",
    "outputs = RunResults.load(sys.argv[1])[0][1][0]",
)
_PLAIN = (
    "import numpy as np; from safetensors import safe_open",
    f"stream = safe_open(sys.argv[1], 'np'); outputs = {{name: stream.get_tensor(name) for name in {NEEDED!r}}}",
)
"""What a program imports, and how it opens the file named in its arguments."""


@dataclass(frozen=True)
class Way:
    """One way to read one file: a Python program of an environment."""

    name: str
    python: str
    code: tuple[str, str]
    file: str


@dataclass(frozen=True)
class Reading:
    """The best of some readings: seconds to open, seconds until the values were summed, MB at most meanwhile."""

    way: str
    file_mb: float
    opened: float
    seconds: float
    peak: float


def write(folder: Path) -> None:
    """The same outputs in both formats."""
    from biopsy.tensors.files import write_results
    from biopsy.tensors.results import Iteration, RunnerResult

    values = np.random.default_rng(1).random(ELEMENTS, np.float32)
    outputs = {f"t{number}": values + np.float32(number) for number in range(TENSORS)}
    for extension in ("safetensors", "json"):
        write_results(folder / f"golden.{extension}", [RunnerResult("onnxrt-runner-N0", (Iteration(outputs, 0.1),))])


def measure(ways: Sequence[Way]) -> dict[str, Reading | NotMeasured]:
    """Read in every way, by its name; all must find the same values."""
    found: dict[str, Reading | NotMeasured] = {}
    totals: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        for way in ways:
            found[way.name] = attempt(partial(_best, way, folder / way.file, totals))
    if not np.allclose(totals, totals[0]):
        raise SystemExit(f"the readers do not agree: {totals}")
    return found


def _best(way: Way, path: Path, totals: list[float]) -> Reading:
    path.read_bytes()
    runs = [_read(way, path) for _ in range(REPEATS)]
    totals += [run[3] for run in runs]
    best = [min(run[column] for run in runs) for column in range(3)]
    return Reading(way.name, path.stat().st_size / 1e6, *best)


def _read(way: Way, path: Path) -> list[float]:
    imports, opening = way.code
    code = _FRAME.format(imports=imports, opening=opening, needed=NEEDED)
    done = subprocess.run(
        [way.python, "-c", code, str(path)], stdout=subprocess.PIPE, check=True, text=True, timeout=LIMIT
    )
    numbers: list[float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


HEAD = """\
| reader | file, MB | open, ms | with 3 tensors, ms | memory, MB | times faster |
|---|--:|--:|--:|--:|--:|"""


def row(name: str, one: Reading | NotMeasured, peer: Reading | NotMeasured) -> str:
    """One row of the table, compared with the peer's."""
    if isinstance(one, NotMeasured):
        return f"| {name} |  | {one} |  |  |  |"
    ratio = times_faster(peer.seconds, one.seconds) if isinstance(peer, Reading) and peer is not one else ""
    times = f"{1000 * one.opened:,.1f} | {1000 * one.seconds:,.1f}"
    return f"| {one.way} | {one.file_mb:,.0f} | {times} | {one.peak:,.0f} | {ratio} |"


def table(peer: Path) -> str:
    """Every way as a page's section; ``peer`` is an environment with Polygraphy."""
    found = measure(
        [
            Way("biopsy, .safetensors", sys.executable, _OURS, "golden.safetensors"),
            Way("the package safetensors, copying", sys.executable, _PLAIN, "golden.safetensors"),
            Way("biopsy, Polygraphy's JSON", sys.executable, _OURS, "golden.json"),
            Way("Polygraphy, its JSON", str(peer / "bin" / "python"), _PEERS, "golden.json"),
        ]
    )
    peers = found[next(reversed(found))]
    return "\n".join([HEAD, *(row(name, one, peers) for name, one in found.items())])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, metavar="FOLDER")
    print(table(parser.parse_args().peer.absolute()))
