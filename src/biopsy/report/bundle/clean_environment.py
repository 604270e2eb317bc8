"""A Python in which biopsy cannot be imported: the packages of this one, and nothing else of it."""

from __future__ import annotations

import os
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_BLOCKER = """\
import sys


class WithoutBiopsy:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {"biopsy", "polygraphy"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


sys.meta_path.insert(0, WithoutBiopsy)
"""

_NOT_HERE = """\
#!/bin/sh
echo "biopsy is not installed in this environment" >&2
exit 127
"""


@dataclass(frozen=True)
class CleanEnvironment:
    """The interpreter, and the variables that a process gets besides those of this one."""

    python: Path
    variables: Mapping[str, str]


def clean_environment(folder: Path) -> CleanEnvironment:
    """Make one in a folder that is not there yet. Raises OSError if that cannot be done.

    It is a virtual environment whose search path goes on where the packages of this interpreter are. ``biopsy`` is
    refused by its importer, in every process that is started with this interpreter, and as a program on the PATH.
    """
    venv.EnvBuilder(with_pip=False, symlinks=os.name != "nt").create(folder)
    place = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", "venv", place))
    programs = Path(sysconfig.get_path("scripts", "venv", place))
    (packages / "without_biopsy.py").write_text(_BLOCKER, encoding="utf-8")
    lines = ["import without_biopsy", *_package_folders()]
    (packages / "packages_of_another.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in ("biopsy", "polygraphy"):
        program = programs / name
        program.write_text(_NOT_HERE, encoding="utf-8")
        program.chmod(0o755)
    python = programs / ("python.exe" if os.name == "nt" else "python")
    path = os.pathsep.join([str(programs), *filter(None, [os.environ.get("PATH")])])
    # An empty variable is none to Python.
    unset = dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "BIOPSY_VERDICT"), "")
    return CleanEnvironment(python, {**unset, "PYTHONNOUSERSITE": "1", "VIRTUAL_ENV": str(folder), "PATH": path})


def _package_folders() -> Iterator[str]:
    """Where this interpreter finds packages that are not the standard library's."""
    standard = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    for entry in sys.path:
        folder = os.path.realpath(entry) if entry else ""
        own = folder in standard or (os.path.dirname(folder) in standard and os.path.basename(folder) == "lib-dynload")  # noqa: PTH119, PTH120
        if folder and os.path.isdir(folder) and not own:  # noqa: PTH112 -- as the entries of sys.path are compared
            yield folder
