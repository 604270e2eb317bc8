"""Run a tool on a failing model as a whole process, with the time, the checks and the memory it took."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from benchmarks import models
from benchmarks.measured import peak_mb

HERE = Path(__file__).parent
LIMIT = 120.0  # seconds after which a run is stopped
CHECK = HERE / "finds_nodes.py"
EVENTS = "events.jsonl"
CANDIDATE = "polygraphy_debug.onnx"  # the default name of both


@dataclass(frozen=True)
class Tool:
    """A command that reduces: ``program`` is a Python script run by ``python``.

    ``external`` are options that it needs where weights stand in other files, ``always`` those that it is given in any
    case. Only where it runs one check at a time, its own time can be told from theirs.
    """

    name: str
    python: Path
    program: Path
    mode: str
    external: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    one_at_a_time: bool = True


@dataclass
class Run:
    """What one tool did with one case. ``ended``: "" if all went well, else how it ended instead."""

    seconds: float
    ended: str = ""
    checks: list[float] = field(default_factory=list)
    peak: float = 0.0
    nodes: int | None = None
    one_at_a_time: bool = True

    @property
    def overhead(self) -> float | None:
        """The tool's own seconds per check; None where that cannot be told."""
        alone = self.checks and self.one_at_a_time
        return (self.seconds - sum(self.checks)) / len(self.checks) if alone else None


def run(tool: Tool, model: Path, wanted: Sequence[str], limit: float = LIMIT, folder: Path | None = None) -> Run:
    """Reduce a model that fails where it has the wanted nodes; started in ``folder``, by default the model's own."""
    folder = folder or model.parent
    notes, output, told = folder / "notes.txt", folder / "reduced.onnx", folder / EVENTS
    for left in (notes, output, told):
        left.unlink(missing_ok=True)
    command = [tool.python, HERE / "measured.py", notes, CHECK.name, tool.program, "debug", "reduce"]
    command += [os.path.relpath(model, folder), *tool.always, *(tool.external if any(folder.glob("*.bin")) else ())]
    command += ["-o", output.name, f"--mode={tool.mode}", "--check", sys.executable, CHECK, CANDIDATE, *wanted]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.monotonic()
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            list(map(str, command)), cwd=folder, env=environment, stdout=said, stderr=said, start_new_session=True
        )
        ended, peak = _wait(process, limit)
    made = Run(time.monotonic() - started, ended, peak=peak, one_at_a_time=tool.one_at_a_time)
    for line in notes.read_text().splitlines() if notes.exists() else ():
        word, number = line.split()
        if word == "check":
            made.checks.append(float(number))
        else:
            made.peak = float(number)
    if told.exists():
        made.checks = _seconds_of_checks(told)
    _look_at(output, wanted, made)
    return made


def _seconds_of_checks(told: Path) -> list[float]:
    """How long each check took, from the events of biopsy: most are forks of a warm process, and no commands."""
    lines = [json.loads(line) for line in told.read_text().splitlines() if line.endswith("}")]
    return [line["seconds"] for line in lines if line["event"] == "Checked"]


def _wait(process: subprocess.Popen[bytes], limit: float) -> tuple[str, float]:
    """How it ended, and its memory if it had to be stopped."""
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        peak = peak_mb(process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "stopped", peak
    return ("" if status == 0 else "no result"), 0.0


def _look_at(output: Path, wanted: Sequence[str], made: Run) -> None:
    """The size of the result, and whether it has what was looked for."""
    if made.ended:
        return
    names = models.names(onnx.load(output, load_external_data=False))
    made.nodes = len(names)
    if not set(wanted) <= set(names):
        made.ended = "wrong result"


def biopsy(mode: str) -> Tool:
    """The biopsy of this environment, as it is: as many checks at once as it chooses."""
    program = Path(sys.executable).with_name("biopsy")
    return Tool(f"biopsy {mode}", Path(sys.executable), program, mode, always=("--events", EVENTS), one_at_a_time=False)


def one_at_a_time(tool: Tool) -> Tool:
    """The same with one check after the other."""
    return replace(tool, name=f"{tool.name} --jobs 1", always=(*tool.always, "--jobs", "1"), one_at_a_time=True)
