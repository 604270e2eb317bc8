"""The programs that make an environment and install into it: uv where it is found, else venv and pip.

Either installs wheels only, so that no code of a package runs before the package is imported.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from biopsy.environments.sources import Sources
from biopsy.environments.surroundings import undisturbed
from biopsy.isolation.process import PrintingProcess
from biopsy.isolation.watch import Ended, Limits

MAKING_SECONDS = 300.0
INSTALLING_SECONDS = 3600.0
"""Wall time in which an environment is made, and packages are installed in it; a gigabyte may come over a thin line."""

_KEPT_OUTPUT = 64 << 10
"""Bytes of the beginning and of the end of what an installer prints."""


@dataclass(frozen=True, kw_only=True)
class Installer:
    """What makes an environment and installs packages into it.

    ``name`` is "uv" or "pip". ``making`` are the words that make an environment in the folder that follows them,
    ``installing`` those that install; pip is told by whose interpreter runs it, uv by an option.
    """

    name: str
    making: tuple[str, ...]
    installing: tuple[str, ...]
    variables: Mapping[str, str | None]

    def make(self, folder: Path, lock: int) -> Ended:
        """Make an environment in a folder; the program holds a lock even if we are killed. Raises CannotStartError."""
        return self._run([*self.making, str(folder)], lock, MAKING_SECONDS)

    def install(self, python: Path, requirements: Sequence[str], lock: int) -> Ended:
        """Install into the environment that an interpreter stands in, as above. Raises CannotStartError."""
        words = (*self.installing, "--python", str(python)) if self.name == "uv" else (str(python), *self.installing)
        return self._run([*words, "--", *requirements], lock, INSTALLING_SECONDS)

    def _run(self, words: Sequence[str], lock: int, seconds: float) -> Ended:
        changes = {**undisturbed(), **self.variables}
        process = PrintingProcess(words, environment=changes, descriptors=[lock])
        return process.watched(lambda: Limits(seconds=seconds), kept=_KEPT_OUTPUT)


def installer_for(python: Path, sources: Sources) -> Installer:
    """What is to make an environment for an interpreter, from these sources."""
    uv = uv_program()
    if uv is None:
        return Installer(
            name="pip",
            making=(str(python), "-I", "-m", "venv"),
            installing=("-I", "-m", "pip", "install", *_OF_PIP),
            variables=sources.for_pip(),
        )
    return Installer(
        name="uv",
        making=(uv, "venv", *_OF_UV, "--no-project", "--python", str(python)),
        installing=(uv, "pip", "install", *_OF_UV, "--only-binary", ":all:"),
        variables={"UV_PYTHON_DOWNLOADS": "never", **sources.for_uv()},
    )


_OF_UV = ("--no-config", "--no-progress", "--color", "never")
_OF_PIP = (
    *("--only-binary", ":all:"),
    *("--no-input", "--disable-pip-version-check", "--no-color", "--progress-bar", "off"),
)


def python_of(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def uv_program() -> str | None:
    """The path of uv: that of the package, which is new enough, or the one on PATH; None if there is none."""
    try:
        from uv import find_uv_bin
    except ImportError:
        return shutil.which("uv")
    try:
        return find_uv_bin()
    except FileNotFoundError:  # the package without its program
        return shutil.which("uv")
