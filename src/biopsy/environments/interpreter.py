"""Interpreters of Python that packages are installed for: this one, or another on the machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.environments.extra import needing
from biopsy.environments.installer import uv_program
from biopsy.environments.surroundings import undisturbed
from biopsy.isolation.process import CannotStartError, run
from biopsy.isolation.watch import Ended, Limits
from biopsy.text import printable

_SECONDS = 20.0
"""Seconds that an interpreter has to tell about itself."""

_SCRIPT = """\
import json, os, sys
told = {
    "path": os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
    "version": ".".join(map(str, sys.version_info[:3])),
}
if sys.version_info >= (3, 8):
    import importlib.util
    folder = sys.argv[1]
    where = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location("packaging", where, submodule_search_locations=[folder])
    sys.modules["packaging"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    from packaging import tags
    told["tags"] = [str(tag) for tag in tags.sys_tags()]
print(json.dumps(told))
"""
"""Asks an interpreter for the tags of wheels that it takes, by the very package that we use, which it need not have."""


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

    Raises UsageError if there is none, if it does not work, or if it is older than 3.8; BiopsyError if a package is
    missing that this needs.
    """
    if text is None:
        return _described(Path(sys.executable))
    if re.fullmatch(r"\d+\.\d+(\.\d+)?", text):
        return _of_version(text)
    program = shutil.which(Path(text).expanduser())
    if program is None:
        raise errors.UsageError(
            f"there is no program '{printable(text)}' that could be a Python",
            next_steps=["--python 3.11", "--python /path/to/python"],
        )
    return _described(Path(program))


def _of_version(version: str) -> Interpreter:
    for path in dict.fromkeys(_candidates(version)):
        try:
            found = _described(path)
        except errors.UsageError:  # a shim that leads nowhere
            continue
        if f"{found.version}.".startswith(f"{version}."):
            return found
    raise errors.UsageError(
        f"there is no Python {version} on this machine",
        next_steps=[f"uv python install {version}", "--python /path/to/python"],
    )


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
    with needing("packaging"):
        import packaging
    assert packaging.__file__ is not None
    ended = _run([str(path), "-I", "-S", "-c", _SCRIPT, str(Path(packaging.__file__).parent)])
    try:
        told: Any = json.loads(ended.output) if ended is not None and ended.status == 0 else None
        version, base = told["version"], told["path"]
    except (ValueError, KeyError, TypeError):
        raise errors.UsageError(f"{printable(str(path))} is no Python that works here") from None
    if "tags" not in told:
        raise errors.UsageError(f"{printable(str(path))} is Python {version}, and 3.8 is the oldest that can be used")
    return Interpreter(path=Path(base), version=version, tags=tuple(told["tags"]))


def _run(words: list[str]) -> Ended | None:
    try:
        return run(words, lambda: Limits(seconds=_SECONDS), environment=undisturbed())
    except CannotStartError:
        return None
