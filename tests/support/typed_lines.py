"""Lines as users of Polygraphy type them, one after the other in one folder, and how each must end here."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from biopsy.cli.app import main
from biopsy.engines import registry
from biopsy.engines.trt_execution import gpu_names
from support import polygraphy_models
from support.command_line import BIN

Fate = Literal["works", "runs on a GPU", "reads on a GPU", "TensorRT 10", "differs", "refused"]
"""How a line ends. ``works``: as in Polygraphy. ``runs on a GPU``: elsewhere the engine is built, and status 4 says
that it was not run. ``reads on a GPU``: elsewhere status 4 says that it could not be read. ``TensorRT 10``: with
TensorRT 11 and TensorRT-RTX it is wrong usage, in Polygraphy too. ``differs``: done, with another status, or found out
to mean nothing. ``refused``: wrong usage, and a line says what there is instead."""

_TOLD = {
    "runs on a GPU": (4, "has built the model; running it needs an NVIDIA GPU"),
    "reads on a GPU": (4, "reading it needs an NVIDIA GPU"),
    "TensorRT 10": (2, "has no flag for"),
    "refused": (2, ""),
}


@dataclass(frozen=True)
class Line:
    """One line without the word ``polygraphy``, and how it ends."""

    words: str
    fate: Fate = "works"
    status: int = 0
    says: str = ""
    """Text that somebody may look for in what it says."""
    makes: str = ""
    """A file that it writes."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """Lines in one folder, with the files that stand there before."""

    name: str
    models: Sequence[str] = ()
    files: Sequence[tuple[str, str]] = ()
    lines: Sequence[Line]
    slow: bool = False


def cases(sessions: Sequence[Session]) -> list[object]:
    """The parameters of a test that plays them."""
    return [
        pytest.param(session, id=session.name, marks=[pytest.mark.slow] if session.slow else []) for session in sessions
    ]


def needs_tensorrt(session: Session) -> bool:
    """Whether a line of it says another thing where TensorRT is not installed."""
    return any("--trt" in line.words or ".engine" in line.words or "=trt" in line.words for line in session.lines)


def play(session: Session, folder: Path, capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
    """Type its lines in ``folder``. The first that does not end as it says fails the test."""
    if needs_tensorrt(session) and registry.installed("trt")[0].version is None:
        pytest.skip("TensorRT is not installed")
    patch.chdir(folder)
    patch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    patch.setattr(sys, "argv", [str(BIN / "polygraphy")])
    polygraphy_models.write([name for name in session.models if name != "ext_weights"], folder)
    if "ext_weights" in session.models:
        polygraphy_models.write_with_weights_elsewhere(folder)
    for name, text in session.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        if text.startswith("#!"):
            (folder / name).chmod(0o755)
    for line in session.lines:
        _type(line, capfd)


def _type(line: Line, capfd: pytest.CaptureFixture[str]) -> None:
    status = main(shlex.split(line.words))
    told = "".join(capfd.readouterr())
    expected, words = line.status, line.says
    if line.fate in _TOLD and not (line.fate.endswith("GPU") and gpu_names()):
        expected, words = _TOLD[line.fate][0], words or _TOLD[line.fate][1]
    assert status == expected, f"polygraphy {line.words}\nends with {status} and not {expected}:\n{told}"
    assert words in told, f"polygraphy {line.words}\ndoes not say {words!r}:\n{told}"
    assert not line.makes or Path(line.makes).exists(), f"polygraphy {line.words}\ndoes not make {line.makes}:\n{told}"
