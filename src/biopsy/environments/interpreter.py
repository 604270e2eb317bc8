"""Interpreters of Python that packages are installed for: this one, or another on the machine."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from biopsy import errors
from biopsy.isolation.process import CannotStartError, run
from biopsy.isolation.watch import Limits
from biopsy.text import printable

_SECONDS = 20.0
"""Seconds that an interpreter has to tell about itself."""

_SCRIPT = """\
import importlib.util, json, os, sys
folder = sys.argv[1]
where = os.path.join(folder, "__init__.py")
spec = importlib.util.spec_from_file_location("packaging", where, submodule_search_locations=[folder])
sys.modules["packaging"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from packaging import markers, tags
print(json.dumps({
    "version": ".".join(map(str, sys.version_info[:3])),
    "implementation": sys.implementation.name,
    "markers": markers.default_environment(),
    "tags": [str(tag) for tag in tags.sys_tags()],
}))
"""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """An interpreter of Python.

    ``version`` is such as "3.11.7". ``tags`` are those of the wheels that it takes, the best first, such as
    "cp311-cp311-manylinux_2_28_x86_64".
    """

    path: Path
    version: str
    tags: tuple[str, ...]

    @property
    def series(self) -> str:
        """The version without its last part: "3.11"."""
        return ".".join(self.version.split(".")[:2])


def interpreter_of(text: str | None = None) -> Interpreter:
    """The interpreter that a person means: a version such as "3.11", a path or the name of a program; None: this one.

    Raises UsageError if there is none, or if it does not work.
    """
    return _described(Path(sys.executable) if text is None else _found(text))


def _found(text: str) -> Path:
    named = shutil.which(os.path.expanduser(text)) or shutil.which(f"python{text}")
    if named is None:
        raise errors.UsageError(
            f"no Python {printable(text)} was found on this machine",
            next_steps=[f"uv python install {printable(text)}", "--python /path/to/python"],
        )
    return Path(named)


def _described(path: Path) -> Interpreter:
    import packaging

    folder = str(Path(packaging.__file__).parent)
    try:
        ended = run([str(path), "-I", "-S", "-c", _SCRIPT, folder], lambda: Limits(seconds=_SECONDS))
        told = json.loads(ended.output) if ended.status == 0 else None
    except (CannotStartError, ValueError):
        told = None
    if told is None:
        raise errors.UsageError(f"{path} is no Python that works here")
    return Interpreter(path=path, version=told["version"], tags=tuple(told["tags"]))
