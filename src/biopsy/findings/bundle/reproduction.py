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
from biopsy.processes.watch import Ended, Limits

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
    clean, environment, folder = None, None, scratch / "unpacked"
    if not needs_biopsy:
        try:
            made = clean_environment(scratch / "environment")
        except OSError as error:
            raise errors.CheckError(f"no environment without biopsy can be made: {error}") from error
        environment = (made.python, dict(made.variables))
        clean = _tried(bundle, folder, limits, environment, tries)
        if clean.status == FAILS:
            return _said("alone", clean, folder)
    path = os.pathsep.join([str(Path(sys.executable).parent), *filter(None, [os.environ.get("PATH")])])
    here = _tried(bundle, folder, limits, (Path(sys.executable), {"PATH": path}), tries)
    if here.status == FAILS and clean is not None and environment is not None:
        again = _tried(bundle, folder, limits, environment, _TRIES_BEFORE_BIOPSY_IS_NEEDED)
        if again.status == FAILS:  # it had passed by luck
            return replace(_said("alone", again, folder), steady=False)
    if here.status == FAILS:
        return _said("with biopsy", here, folder)
    return _said("not", clean or here, folder)


def _tried(
    bundle: Path, folder: Path, limits: Limits, interpreter: tuple[Path, Mapping[str, str]], tries: int
) -> Ended:
    for _ in range(tries):
        ended = _run(bundle, folder, limits, *interpreter)
        if ended.status == FAILS:
            break
    return ended


def _run(bundle: Path, folder: Path, limits: Limits, python: Path, variables: Mapping[str, str]) -> Ended:
    """Run the script of a fresh copy."""
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(bundle) as stream:
        stream.extractall(folder)
    words = [str(python), str(folder / "reproduce.py")]
    try:
        return process.run(words, lambda: limits, environment=variables, kept=_MOST_KEPT)
    except process.CannotStartError as error:
        raise errors.CheckError(f"{words[0]} could not be started: {error.reason}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _said(standing: Standing, ended: Ended, folder: Path) -> Reproduction:
    """What is to be told; the folder of the copy tells nothing."""
    output = ended.output.decode("utf-8", "replace").replace(f"{folder}{os.sep}", "")
    return Reproduction(standing=standing, status=ended.status, output=output)


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
