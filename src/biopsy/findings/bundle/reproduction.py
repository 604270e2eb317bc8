"""Running ``reproduce.py`` of a bundle before anybody is sent it: in a Python that cannot import biopsy, then in
this one.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from biopsy import errors
from biopsy.processes import process
from biopsy.processes.watch import Limits

FAILS = 1
"""The exit status of a script while the failure is there."""

Standing = Literal["alone", "with biopsy", "not"]
"""Where a script shows the failure: without biopsy, only with it, or not at all."""

_TRIES_BEFORE_BIOPSY_IS_NEEDED = 5
"""Further runs without biopsy of what fails only with it: a flaky failure may have passed by luck."""

_MOST_KEPT = 1 << 16  # bytes of what it prints


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What ``reproduce.py`` did: where it failed, its exit status there, or minus the signal, and what it printed.

    ``steady``: it was not seen to fail in some runs and pass in others that were alike.
    """

    standing: Standing
    status: int
    output: str
    steady: bool = True


def reproduce(bundle: Path, scratch: Path, limits: Limits, *, needs_biopsy: bool, tries: int) -> Reproduction:
    """Unpack a bundle (.zip) into ``scratch`` and run its script, up to so many times until it fails.

    First without biopsy, unless it is known to need it; then with it. Raises CheckError if it cannot be started.
    """
    without: CleanEnvironment | None = None
    clean: Reproduction | None = None
    if not needs_biopsy:
        try:
            without = clean_environment(scratch / "environment")
        except OSError as error:
            raise errors.CheckError(f"no environment without biopsy can be made: {error}") from error
        clean = _tried("alone", bundle, scratch, limits, without, tries)
        if clean.standing == "alone":
            return clean
    path = os.pathsep.join([str(Path(sys.executable).parent), *filter(None, [os.environ.get("PATH")])])
    here = _tried("with biopsy", bundle, scratch, limits, CleanEnvironment(Path(sys.executable), {"PATH": path}), tries)
    if here.standing == "not" or without is None:
        return clean if here.standing == "not" and clean is not None else here
    again = _tried("alone", bundle, scratch, limits, without, _TRIES_BEFORE_BIOPSY_IS_NEEDED)
    return replace(again, steady=False) if again.standing == "alone" else here  # it may have passed by luck


def _tried(
    standing: Standing, bundle: Path, scratch: Path, limits: Limits, interpreter: CleanEnvironment, tries: int
) -> Reproduction:
    """Run the script of a fresh copy until it fails; the folder of the copy tells nothing."""
    folder, status, output = scratch / "unpacked", 0, b""
    words = [str(interpreter.python), str(folder / "reproduce.py")]
    for _ in range(tries):
        with zipfile.ZipFile(bundle) as stream:
            stream.extractall(folder)
        try:
            ended = process.run(words, lambda: limits, environment=interpreter.variables, kept=_MOST_KEPT)
        except process.CannotStartError as error:
            raise errors.CheckError(f"{words[0]} could not be started: {error.reason}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        status, output = ended.status, ended.output
        if status == FAILS:
            break
    text = output.decode("utf-8", "replace").replace(f"{folder}{os.sep}", "")
    return Reproduction(standing=standing if status == FAILS else "not", status=status, output=text)


# A Python in which biopsy cannot be imported: the packages of this one, and nothing else of it.

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
