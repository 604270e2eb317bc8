"""A place in which the real command is typed, and in which nothing may be left behind whatever happens to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import pytest

from support.command_line import Ran, end_of, environment, started, wait_until
from support.models import chain, save
from support.predicates import names
from support.scripts import NAMES


@dataclass
class Place:
    """A folder with a chain of nodes in ``m.onnx``. ``processes`` finds whoever was started from here."""

    folder: Path
    temporary: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def model(self, length: int = 12, name: str = "m.onnx") -> Path:
        return save(chain(length), self.folder / name)

    def check(self, code: str, name: str = "check.py") -> list[str]:
        """The words of a check: ``names`` are the candidate's nodes, and the code may do anything."""
        used = "".join(f"import {module}\n" for module in ("signal", "subprocess") if f"{module}." in code)
        (self.folder / name).write_text(used + NAMES + code)
        return [sys.executable, "-I", "-S", name, "{}"]

    @property
    def environment(self) -> dict[str, str]:
        return environment({"FAULTS": self.mark, "TMPDIR": str(self.temporary)})

    def start(self, *words: str, **options: object) -> subprocess.Popen[str]:
        """Type ``biopsy debug reduce`` here."""
        line = ("debug", "reduce", *words)
        return started(*line, **{"folder": self.folder, "env": self.environment, **options})  # type: ignore[arg-type]

    def reduce(self, *words: str, timeout: float = 60, **options: object) -> Ran:
        """Type it, and wait for its end."""
        return end_of(self.start(*words, **options), timeout)

    def nodes(self, name: str = "r.onnx") -> list[str]:
        """The nodes of a result."""
        return names(onnx.load(self.folder / name))

    def files(self) -> set[str]:
        """What stands here, but for scripts of checks and what they write down."""
        return {path.name for path in self.folder.iterdir() if path.suffix not in {".py", ".txt", ".sh"}}

    def processes(self) -> list[int]:
        """Everyone who was started from here and has not ended."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    if f"FAULTS={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def everyone_has_ended(self, seconds: float = 60) -> bool:
        return wait_until(lambda: not self.processes(), seconds)

    def verdicts(self) -> list[Path]:
        """The verdict files of checks that run now, once they have said something."""
        return [path for path in self.temporary.glob("biopsy-check-*/verdict.json") if path.stat().st_size]

    def told(self, name: str) -> list[str]:
        """The lines that checks have written into a file."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Afterwards no process and no temporary file may be left, and beside the result nothing that was not asked for."""
    made = Place(tmp_path / "here", tmp_path / "temporary")
    made.folder.mkdir()
    made.temporary.mkdir()
    yield made
    ended = made.everyone_has_ended()
    for pid in made.processes():
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    assert ended, "processes are left"
    assert {path.name for path in made.temporary.iterdir()} <= {".ses"}  # which is onnxruntime's own
    left = [name for name in made.files() if name.startswith((".", "polygraphy_debug")) or name.endswith(".journal")]
    assert not left
