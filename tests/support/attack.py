"""Gives mutated files to the commands that read them, in forks of one process, for a time: see test_random_bytes.

    python attack.py FOLDER SEED SECONDS [NUMBER]

``FOLDER`` has ``examples``, valid files, and ``work``, in which the commands run. What is found wrong is printed as one
JSON object a line, with the seed and the number of the case; with NUMBER only that case is run, in a fork like any
other. A case depends on nothing but seed and number: the folder is laid anew before each.
"""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from support.journals import sealed, without_checksums
from support.mutation import mutated

SECONDS_OF_A_CASE = 10
MOST_MEMORY = 2 << 30
CASES_OF_A_FORK = 20
FEWEST_CASES = 100
"""However slow the machine is."""
DOCUMENTED = {0, 1, 2, 3, 4, 5}
OF_AN_ENGINE = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
TOUCHES = {
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.link", "os.symlink",
    "os.utime", "shutil.rmtree", "shutil.move",
}  # fmt: skip


@dataclass(frozen=True)
class Victim:
    """A file to be mutated, and the commands that read it, ``{}`` for its path.

    ``engine``: an engine reads what is in it, and may crash. A program survives that, for it does its work in a fork
    that it watches; ``main([...])``, as it is called here, has none, and its crash ends the fork of these cases.
    ``lines_of_a_journal``: in half of the cases its checksums are made anew, as somebody who means ill would.
    """

    example: str
    lines: tuple[str, ...] = ()
    call: Callable[[Path], None] | None = None
    engine: bool = False
    lines_of_a_journal: bool = False
    name: str = ""
    weight: int = 4


def read_verdict(path: Path) -> None:
    """Read it as a check's verdict."""
    from biopsy import errors
    from biopsy.checks import verdict

    with suppress(errors.CheckError):
        verdict.read(path)


def open_journal(path: Path) -> None:
    """Open it as a reduction would."""
    from biopsy import errors
    from biopsy.checks.journal import Journal

    with suppress(errors.BiopsyError):
        Journal.open(path, {"model": "m", "check": "c"}).close()


DATA = ("inspect data {}", "inspect data {} --all", "data to-input {} -o made.json")
LOADS = (*DATA, "run m.onnx --reference --load-inputs {}", "run m.onnx --reference --load-outputs {}")
REDUCE = (
    "debug reduce m.onnx -o r.onnx --max-checks 8 --jobs 1 --fail-code 0 --check /bin/grep -q n1 polygraphy_debug.onnx"
)
LOADS_REPLAY = REDUCE.replace("--fail-code", "--load-debug-replay {} --fail-code")
RECORD = "run m.onnx --engine fake:sleep_ms=100 --onnx-outputs mark all --record-memory 16 --save-outputs o.safetensors"
VICTIMS = (
    Victim("model.onnx", ("inspect model {}", "inspect model {} --mode=full"), weight=12),
    Victim("model.onnx", ("surgeon extract {} -o e.onnx", "surgeon sanitize {} -o s.onnx --cleanup"), engine=True),
    Victim("model.onnx", ("run {} --reference", "run {} --engine onnxrt:threads=1"), engine=True, weight=8),
    Victim("bodied.onnx", ("inspect model {} --mode=full", "surgeon extract {} -o e.onnx"), weight=6),
    Victim("external.onnx", ("inspect model {} --mode=full", "run {} --engine onnxrt:threads=1"), engine=True),
    Victim("external.data", ("inspect model external.onnx --mode=full", "run external.onnx --reference"),
           name="external.data", weight=1),
    Victim("model.onnx", ("debug known {} --known-dir .",)),
    Victim("bodied.onnx", ("debug known {} --known-dir .",)),
    Victim("known.yaml", ("debug known m.onnx --known-dir .",), name="known.yaml", weight=6),
    Victim("inputs.json", LOADS, weight=8),
    Victim("results.json", LOADS, weight=6),
    Victim("inputs.npz", LOADS, weight=8),
    Victim("inputs.safetensors", LOADS, weight=8),
    Victim("value.npy", LOADS, weight=4),
    Victim("verdict.json", call=read_verdict),
    Victim("journal", call=open_journal, name="r.onnx.journal", lines_of_a_journal=True, weight=8),
    Victim("reduced.journal", (REDUCE,), name="r.onnx.journal", lines_of_a_journal=True, weight=2),
    Victim("replay.json", (LOADS_REPLAY,), weight=2),
    Victim(".o.safetensors.recording", (RECORD,), name=".o.safetensors.recording"),
    Victim(".o.safetensors.recording.json", (RECORD,), name=".o.safetensors.recording.json"),
    Victim("tactics.json", ("inspect tactics {}", "debug diff-tactics --good {} --bad tactics.json"), weight=6),
    Victim("polygraphy.json", ("inspect tactics {}", "debug diff-tactics --good {} --bad polygraphy.json"), weight=6),
)  # fmt: skip


class Outside:
    """What is written or removed outside the folders that are ours, as Python itself is told of it."""

    def __init__(self, *allowed: Path) -> None:
        self._allowed = tuple(f"{path.resolve()}{os.sep}" for path in allowed)
        self.touched: list[str] = []

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & WRITES:
                self._note(event, path)
        elif event in TOUCHES:
            for path in args[:2]:
                self._note(event, path)

    def _note(self, event: str, path: object) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        parent = f"{Path(os.fsdecode(path)).parent.resolve()}{os.sep}"  # a link is touched where it stands
        if not parent.startswith((*self._allowed, "/dev/", "/proc/")):
            self.touched.append(f"{event} {os.fsdecode(path)!r}")


class Attack:
    """All cases of one seed."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.examples = {path.name: path.read_bytes() for path in (folder / "examples").iterdir()}
        self.work = folder / "work"
        self.seed = seed
        self._note = folder / "now.json"
        self._names = [one for one in VICTIMS for _ in range(one.weight) if one.example in self.examples]
        key = Path(os.environ["XDG_STATE_HOME"]) / "biopsy"  # ours, by which a recording is known; it is locked to read
        self.outside = Outside(self.work, Path(os.environ["TMPDIR"]), key)

    def case(self, number: int) -> str:
        """Run one case; what is wrong with it, or nothing."""
        rng = Random(f"{self.seed} {number}")
        victim = rng.choice(self._names)
        self._lay_anew()
        path = self.work / (victim.name or f"given{Path(victim.example).suffix}")
        path.write_bytes(self._changed(victim, rng))
        line = rng.choice(victim.lines) if victim.lines else getattr(victim.call, "__name__", "")
        self._note.write_text(json.dumps({"number": number, "line": line, "file": str(path), "engine": victim.engine}))
        signal.alarm(SECONDS_OF_A_CASE)
        try:
            return self._wrong(victim, line, path)
        finally:
            signal.alarm(0)

    def _lay_anew(self) -> None:
        """Nothing of an earlier case stays: what a case is, its number tells."""
        for left in self.work.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
        for name, data in self.examples.items():
            (self.work / name).write_bytes(data)

    def _changed(self, victim: Victim, rng: Random) -> bytes:
        data, others = self.examples[victim.example], list(self.examples.values())
        if not (victim.lines_of_a_journal and rng.random() < 0.5):
            return mutated(data, others, rng)
        return sealed(mutated(without_checksums(data), others, rng).removesuffix(b"\n").split(b"\n"))

    def _wrong(self, victim: Victim, line: str, path: Path) -> str:
        from biopsy.cli.app import main

        told = io.StringIO()
        self.outside.touched.clear()
        try:
            if victim.call is not None:
                victim.call(path)
                status = 0
            else:
                sys.argv = ["biopsy"]
                with redirect_stdout(told), redirect_stderr(told):
                    status = main([word.replace("{}", path.name) for word in line.split()])
        except BaseException:
            return traceback.format_exc()
        text = told.getvalue()
        if status not in DOCUMENTED:
            return f"status {status}"
        if "Traceback" in text or "biopsy itself failed" in text:
            return text[-2000:]
        return f"touched outside: {self.outside.touched}" if self.outside.touched else ""

    def fork(self, first: int, count: int) -> int:
        """Run some cases in a fork; tell of what is wrong; the number of the next case."""
        child = os.fork()
        if child == 0:
            os._exit(self._cases(range(first, first + count)))
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ended >= 0:
            return first + count
        now = json.loads(self._note.read_text())
        if not (now["engine"] and -ended in OF_AN_ENGINE):
            self.tell(now["number"], f"ended by {signal.Signals(-ended).name}: {now}")
        return int(now["number"]) + 1

    def _cases(self, numbers: range) -> int:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.addaudithook(self.outside)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)  # what engines print
        for number in numbers:
            wrong = self.case(number)
            if wrong:
                self.tell(number, wrong)
        return 0

    def tell(self, number: int, wrong: str) -> None:
        now = json.loads(self._note.read_text())
        kept = self.work.parent / "found" / f"{number}-{Path(now['file']).name}"
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(Path(now["file"]).read_bytes() if Path(now["file"]).exists() else b"")
        found = {"seed": self.seed, "number": number, "line": now["line"], "file": str(kept), "wrong": wrong}
        os.write(1, json.dumps(found).encode() + b"\n")


def main() -> None:
    """See the module."""
    folder, seed, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    sys.dont_write_bytecode = True
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401

    import biopsy.checks.journal
    import biopsy.engines.onnxrt
    import biopsy.engines.reference  # noqa: F401

    os.chdir(folder / "work")
    attack = Attack(folder, seed)
    if len(sys.argv) > 4:
        attack.fork(int(sys.argv[4]), 1)
        return
    number, until = 0, time.monotonic() + seconds
    while number < FEWEST_CASES or time.monotonic() < until:
        number = attack.fork(number, CASES_OF_A_FORK)


if __name__ == "__main__":
    main()
