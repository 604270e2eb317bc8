"""Interpreters of Python that packages are installed for, and the programs that make an environment and install into
it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.processes.environments.requirements import Sources
from biopsy.processes.process import CannotStartError, run, undisturbed
from biopsy.processes.watch import Ended, Limits
from biopsy.text import printable

_SECONDS = 20.0
"""Seconds that an interpreter has to tell about itself."""

_SCRIPT = """\
import json, os, sys, sysconfig
print(json.dumps({
    "path": os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
    "version": ".".join(map(str, sys.version_info[:3])),
    "implementation": sys.implementation.name,
    "machine": [sys.platform, os.uname().machine if hasattr(os, "uname") else sysconfig.get_platform(), sys.maxsize],
    "libc": getattr(os, "confstr_names", {}).get("CS_GNU_LIBC_VERSION") and os.confstr("CS_GNU_LIBC_VERSION"),
    "debug": bool(sysconfig.get_config_var("Py_DEBUG")),
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
}))
"""
"""Asks an interpreter for what the tags of wheels depend on. It may be older than the package that knows the tags."""

_OLDEST = (3, 8)
"""The first that can tell what is installed in it."""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """An interpreter of Python.

    ``path`` is that of the interpreter itself, also where a virtual environment or a shim led to it. ``version`` is
    such as "3.11.7". ``tags`` are those of the wheels that it takes, the best first, such as
    "cp311-cp311-manylinux_2_28_x86_64".
    """

    path: Path
    version: str
    tags: tuple[str, ...] = field(repr=False)

    @property
    def series(self) -> str:
        """The version without its last part: "3.11"."""
        return ".".join(self.version.split(".")[:2])


def interpreter_of(text: str | None = None) -> Interpreter:
    """The interpreter that a person means: a version such as "3.11", a path or the name of a program; None: this one.

    Raises UsageError if there is none, if it does not work, if it is older than 3.8, no CPython, or one for another
    kind of machine.
    """
    if text is None:
        return _described(Path(sys.executable))
    if re.fullmatch(r"\d+\.\d+(\.\d+)?", text):
        if tuple(map(int, text.split(".")[:2])) < _OLDEST:
            raise errors.UsageError(f"Python {text} is too old: 3.8 is the oldest that can be used")
        for path in dict.fromkeys(_candidates(text)):
            with suppress(errors.UsageError):  # a shim that leads nowhere
                found = _described(path)
                if f"{found.version}.".startswith(f"{text}."):
                    return found
        raise errors.UsageError(
            f"there is no Python {text} on this machine",
            next_steps=[f"uv python install {text}", "--python /path/to/python"],
        )
    program = shutil.which(Path(text).expanduser())
    if program is None:
        raise errors.UsageError(
            f"there is no program '{printable(text)}' that could be a Python",
            next_steps=["--python 3.11", "--python /path/to/python"],
        )
    return _described(Path(program))


def _candidates(version: str) -> Iterator[Path]:
    """Paths at which a version may be: this interpreter, programs on PATH, what uv and pyenv have installed."""
    if ".".join(map(str, sys.version_info[:3])).startswith(version):
        yield Path(sys.executable)
    series = ".".join(version.split(".")[:2])
    on_path = shutil.which(f"python{series}")
    if on_path is not None:
        yield Path(on_path)
    uv = uv_program()
    if uv is not None:
        words = [uv, "python", "find", "--no-config", "--no-project", "--offline", "--no-python-downloads", version]
        ended = _run(words)
        if ended is not None and ended.status == 0:
            yield Path(ended.output.decode(errors="replace").strip())
    root = Path(os.environ.get("PYENV_ROOT") or Path("~/.pyenv").expanduser())
    yield from sorted(root.glob(f"versions/{version}*/bin/python{series}"), reverse=True)


def _described(path: Path) -> Interpreter:
    facts = _facts(path)
    shown = printable(str(path))
    if facts is None:
        raise errors.UsageError(f"{shown} is no Python that works here")
    version = tuple(map(int, facts["version"].split(".")))
    if version < _OLDEST:
        raise errors.UsageError(f"{shown} is Python {facts['version']}, and 3.8 is the oldest that can be used")
    own = _own_facts()
    alike = all(facts[fact] == own.get(fact) for fact in ("implementation", "machine", "libc"))
    if not alike or facts["implementation"] != "cpython":
        raise errors.UsageError(f"{shown} is made for another machine than this Python, or is no CPython")
    from packaging import tags

    name = f"cp{version[0]}{version[1]}"
    plain = name + ("t" if facts["free_threaded"] else "")
    abis, platforms = [f"{plain}d", plain] if facts["debug"] else [plain], list(tags.platform_tags())
    taken = [*tags.cpython_tags(version[:2], abis, platforms), *tags.compatible_tags(version[:2], name, platforms)]
    return Interpreter(path=Path(facts["path"]), version=facts["version"], tags=tuple(map(str, taken)))


def _facts(path: Path) -> dict[str, Any] | None:
    """What an interpreter tells of itself; None if it does not."""
    ended = _run([str(path), "-I", "-S", "-c", _SCRIPT])
    try:
        told = json.loads(ended.output) if ended is not None and ended.status == 0 else None
    except ValueError:
        return None
    return told if isinstance(told, dict) and isinstance(told.get("version"), str) else None


@cache
def _own_facts() -> dict[str, Any]:
    return _facts(Path(sys.executable)) or {}


def _run(words: list[str]) -> Ended | None:
    try:
        return run(words, lambda: Limits(seconds=_SECONDS), environment=undisturbed())
    except CannotStartError:
        return None


# The programs that make an environment and install into it: uv where it is found, else venv and pip.
#
# Either installs wheels only, so that no code of a package runs before the package is imported.

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
        changes, limits = {**undisturbed(), **self.variables}, Limits(seconds=seconds)
        return run(words, lambda: limits, environment=changes, descriptors=[lock], kept=_KEPT_OUTPUT)


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
    with suppress(ImportError, FileNotFoundError):  # the latter: the package without its program
        from uv import find_uv_bin

        return find_uv_bin()
    return shutil.which("uv")
