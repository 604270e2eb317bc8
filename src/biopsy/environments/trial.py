"""What was installed is imported once, in a child: a package that cannot be imported here is of no use to anybody."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from biopsy import errors
from biopsy.environments.surroundings import undisturbed
from biopsy.isolation.death import signal_name
from biopsy.isolation.process import run
from biopsy.isolation.watch import Ended, Limits
from biopsy.text import printable, series, shortened

_SECONDS = 300.0
"""Wall time for all imports: a first one compiles, and reads a gigabyte from the disk."""
_KEPT_OUTPUT = 1 << 20
_LONGEST_LINE = 300

_NEEDS = (
    (r"compiled using NumPy 1\.x|_ARRAY_API not found", "numpy<2"),
    (r"module 'numpy' has no attribute '(bool|object|int|float|complex|str)'", "numpy<1.24"),
    (r"Descriptors cannot be created directly", "protobuf<4"),
    (r"No module named '(pkg_resources|distutils)", "setuptools<81"),
)
"""What an import prints that fails, or is about to, since another package is too new; and what mends that for certain.

NumPy says so itself of extensions that were compiled for its first version, and has named the release that removed its
old names; protobuf says of generated code that is too old for it which release to go back to; setuptools has announced
which release no longer brings ``pkg_resources``, and Python 3.12 has no ``distutils`` but that of setuptools.
"""

_SCRIPT = """\
import json, re, sys
from importlib import metadata
token = sys.argv[1]

def say(**told):
    sys.stdout.flush()
    print("\\n" + token + json.dumps(told), flush=True)

def module_of(name, files):
    counts = {}
    for file in files:
        first = file.parts[0]
        if file.suffix in (".py", ".so", ".pyd"):
            module = first.partition(".")[0] if len(file.parts) == 1 else first
            if module.isidentifier():
                counts[module] = counts.get(module, 0) + 1
    own = name.replace("-", "_")
    return next((each for each in counts if each.lower() == own), None) or max(counts, key=counts.get, default=None)

found = {}
for each in metadata.distributions():
    if each.metadata["Name"]:
        found.setdefault(re.sub(r"[-_.]+", "-", each.metadata["Name"]).lower(), each)
say(packages={name: each.version for name, each in found.items()})
for name in sys.argv[2:]:
    module = module_of(name, found[name].files or ()) if name in found else None
    if module is not None:
        say(importing=name)
        try:
            __import__(module)
        except BaseException as error:
            say(failed=f"{type(error).__name__}: {error}")
            raise
say(done=True)
"""


@dataclass(frozen=True, kw_only=True)
class ImportTrial:
    """What an environment says of itself.

    ``packages`` are the versions of all distributions in it, by their normalized names. ``problem`` is why what was
    asked for cannot be imported, None if it can. ``needs`` are requirements that would mend that.
    """

    packages: dict[str, str]
    problem: errors.CannotInstall | None
    needs: tuple[str, ...]


def tried(python: Path, distributions: Sequence[str]) -> ImportTrial:
    """Import the main module of each distribution by an interpreter. Raises CannotStartError."""
    token = f"{os.urandom(8).hex()} "
    words = [str(python), "-I", "-c", _SCRIPT, token, *distributions]
    ended = run(words, lambda: Limits(seconds=_SECONDS), environment=undisturbed(), kept=_KEPT_OUTPUT)
    printed = ended.output.decode(errors="replace")
    said = _Said.of(printed, token)
    plain = [line for line in printed.splitlines() if not line.startswith(token)]
    needs = tuple(need for pattern, need in _NEEDS if re.search(pattern, "\n".join(plain)))
    problem = None if said.done and ended.status == 0 and not needs else _problem(ended, said, plain, needs)
    return ImportTrial(packages=said.packages, problem=problem, needs=needs)


@dataclass
class _Said:
    """What the script has said, as far as it came."""

    packages: dict[str, str] = field(default_factory=dict)
    importing: str = ""
    failed: str = ""
    done: bool = False

    @classmethod
    def of(cls, printed: str, token: str) -> _Said:
        said = cls()
        for line in printed.splitlines():
            if line.startswith(token):
                vars(said).update(json.loads(line.removeprefix(token)))
        return said


def _problem(ended: Ended, said: _Said, printed: Sequence[str], needs: Sequence[str]) -> errors.CannotInstall:
    release = f"{said.importing} {said.packages.get(said.importing, '')}".strip()
    if not said.importing:
        details = [shortened(printable(line), _LONGEST_LINE) for line in printed[-4:]]
        return errors.CannotInstall("the new environment does not work", kind="other", details=details)
    if said.failed:
        why = f"{release} cannot be imported: {shortened(printable(said.failed), _LONGEST_LINE)}"
    elif ended.cause == "time":
        why = f"the import of {release} takes too long"
    elif ended.status < 0:
        why = f"the import of {release} ended its process with {signal_name(-ended.status)}"
    elif needs:
        why = f"{release} does not work with what is installed beside it"
    else:
        why = f"the import of {release} ended its process with status {ended.status}"
    missing = re.search(r"No module named '([\w.]+)'", said.failed)
    steps = [f"--with '{need}'" for need in needs] or ([f"--with {missing[1].split('.')[0]}"] if missing else [])
    details = [f"it needs {series(needs)}"] if needs else []
    return errors.CannotInstall(why, kind="import fails", details=details, next_steps=steps)
