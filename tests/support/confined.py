"""``biopsy`` with little memory and little time: what a hostile file makes of it is seen, and harms nobody.

A process of its own is started once, imports what takes long, and forks for each command line. Run as a program, this
file is that process.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

SECONDS = 10
"""Of the processor; and six times as long on the clock, for who waits."""
MEMORY = 3 << 30


@dataclass(frozen=True)
class Ended:
    """How one command line ended; the status is negative for a signal, as ``subprocess`` has it."""

    status: int
    out: str
    err: str
    peak: int
    """Bytes of memory that it had at most."""


class Confinement:
    """Runs command lines. Use it in a ``with``."""

    def __enter__(self) -> Confinement:
        words = [sys.executable, __file__]
        self._server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def run(self, words: Sequence[object], folder: Path) -> Ended:
        """``biopsy WORDS`` in a folder."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps([str(folder), list(map(str, words))]), file=self._server.stdin, flush=True)
        return Ended(**json.loads(self._server.stdout.readline()))


_NOT_IMPORTED = re.compile(r"\.(__main__|torch|script_start|script_parts|runner|ray_cluster)\b")
"""Modules of biopsy that are programs, or that need what is not installed everywhere; commands do not import them."""


def _serve() -> None:
    import onnx.reference
    import onnx.shape_inference
    import onnxruntime
    import onnxscript.optimizer

    import biopsy.cli

    assert all((onnx, onnxruntime, onnxscript))
    for found in pkgutil.walk_packages(biopsy.__path__, "biopsy."):
        if not _NOT_IMPORTED.search(found.name):
            importlib.import_module(found.name)
    for line in sys.stdin:
        folder, words = json.loads(line)
        sys.stdout.write(json.dumps(_one(Path(folder), words)) + "\n")
        sys.stdout.flush()


def _one(folder: Path, words: list[str]) -> dict[str, object]:
    streams = [folder.parent / f"{folder.name}.{name}" for name in ("out", "err")]
    child = os.fork()
    if child == 0:
        _confined(folder, words, streams)
    _, status, used = os.wait4(child, 0)
    out, err = (path.read_text(encoding="utf-8", errors="replace") for path in streams)
    peak = used.ru_maxrss * 1024
    return {"status": os.waitstatus_to_exitcode(status), "out": out, "err": err, "peak": peak}


def _confined(folder: Path, words: list[str], streams: list[Path]) -> None:
    from biopsy.cli.app import main

    status = 99
    try:
        os.chdir(folder)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        for number, path in enumerate(streams, start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        signal.alarm(6 * SECONDS)
        status = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


if __name__ == "__main__":
    _serve()
