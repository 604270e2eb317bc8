"""Running ``reproduce.py`` of a bundle before it is sent: in a Python that cannot import biopsy, then in this one."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from biopsy import errors
from biopsy.findings.bundle.script import Ending
from biopsy.processes import process
from biopsy.processes.watch import Limits

Reproduced = Literal["alone", "with biopsy", "not"]
"""Where a script reproduces the failure: without biopsy, only with it, or not at all."""

_TRIES_BEFORE_BIOPSY_IS_NEEDED = 5
"""Further runs without biopsy of a script that fails with it: a flaky failure may have passed by luck."""

_MOST_OUTPUT = 1 << 16  # bytes


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """The run of ``reproduce.py``: where it failed, its exit status (or minus the signal) and its output.

    ``steady`` is False if equal runs were seen to fail and to pass.
    """

    reproduced: Reproduced
    status: int
    output: str
    steady: bool = True


def reproduce(
    bundle: Path, scratch: Path, limits: Limits, ending: Ending, *, needs_biopsy: bool, tries: int
) -> Reproduction:
    """Unpack a bundle (.zip) into ``scratch`` and run its script up to ``tries`` times until it ends as it should.

    It runs without biopsy, unless it is known to need it, and then with biopsy. Raises CheckError if it cannot be
    started.
    """
    without: CleanEnvironment | None = None
    clean: Reproduction | None = None
    if not needs_biopsy:
        try:
            without = clean_environment(scratch / "environment")
        except OSError as error:
            raise errors.CheckError(f"no environment without biopsy can be made: {error}") from error
        clean = _run_script("alone", bundle, scratch, without, limits=limits, ending=ending, tries=tries)
        if clean.reproduced == "alone":
            return clean
    path = os.pathsep.join([str(Path(sys.executable).parent), *filter(None, [os.environ.get("PATH")])])
    environment = CleanEnvironment(Path(sys.executable), {"PATH": path})
    here = _run_script("with biopsy", bundle, scratch, environment, limits=limits, ending=ending, tries=tries)
    if here.reproduced == "not" or without is None:
        return clean if here.reproduced == "not" and clean is not None else here
    again = _run_script(
        "alone", bundle, scratch, without, limits=limits, ending=ending, tries=_TRIES_BEFORE_BIOPSY_IS_NEEDED
    )
    return replace(again, steady=False) if again.reproduced == "alone" else here


def _run_script(
    reproduced: Reproduced,
    bundle: Path,
    scratch: Path,
    interpreter: CleanEnvironment,
    *,
    limits: Limits,
    ending: Ending,
    tries: int,
) -> Reproduction:
    """Run the script in fresh copies of the bundle until it fails. The output does not name the folder of the copy."""
    folder, status, output, shown = scratch / "unpacked", 0, b"", False
    words = [str(interpreter.python), "reproduce.py"]
    for _ in range(tries):
        with zipfile.ZipFile(bundle) as stream:
            stream.extractall(folder)
        try:
            ended = process.run(
                words, lambda: limits, folder=folder, environment=interpreter.variables, kept=_MOST_OUTPUT
            )
        except process.CannotStartError as error:
            raise errors.CheckError(f"{words[0]} could not be started: {error.reason}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        status, output, shown = ended.status, ended.output, ending.is_that_of(ended)
        if shown:
            break
    text = output.decode("utf-8", "replace").replace(f"{folder}{os.sep}", "")
    return Reproduction(reproduced=reproduced if shown else "not", status=status, output=text)


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
    """A Python interpreter, and the environment variables that its processes get in addition to those of this one."""

    python: Path
    variables: Mapping[str, str]


def clean_environment(folder: Path) -> CleanEnvironment:
    """Make a Python with the packages of this one, but without biopsy, in a new folder. Raises OSError.

    It is a virtual environment whose search path continues with the package folders of this interpreter. Its importer
    refuses ``biopsy`` in every process of this interpreter, and the programs of that name on its PATH fail.
    """
    venv.EnvBuilder(with_pip=False, symlinks=os.name != "nt").create(folder)
    place = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", "venv", place))
    programs = Path(sysconfig.get_path("scripts", "venv", place))
    (packages / "without_biopsy.py").write_text(_BLOCKER, encoding="utf-8")
    standard = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    standard |= {library / "lib-dynload" for library in standard}
    folders = [folder for folder in (Path(entry).resolve() for entry in sys.path if entry) if folder.is_dir()]
    lines = ["import without_biopsy", *(str(folder) for folder in folders if folder not in standard)]
    (packages / "packages_of_another.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in ("biopsy", "polygraphy"):
        program = programs / name
        program.write_text(_NOT_HERE, encoding="utf-8")
        program.chmod(0o755)
    python = programs / ("python.exe" if os.name == "nt" else "python")
    path = os.pathsep.join([str(programs), *filter(None, [os.environ.get("PATH")])])
    # Python treats an empty variable as unset.
    unset = dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "BIOPSY_VERDICT"), "")
    return CleanEnvironment(python, {**unset, "PYTHONNOUSERSITE": "1", "VIRTUAL_ENV": str(folder), "PATH": path})
