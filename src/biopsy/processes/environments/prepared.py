"""Python environments with given packages, from the cache, or made by one process and tested by importing the packages
once; and errors that help if that fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.processes import cleanup
from biopsy.processes.environments.cache import Cache, Record, size_of
from biopsy.processes.environments.interpreter import (
    INSTALLING_SECONDS,
    Installer,
    Interpreter,
    Sources,
    WantedPackage,
    configured,
    installer_for,
    interpreter_of,
    names,
    origin_in_variables,
    parsed,
    python_of,
    without_secrets,
)
from biopsy.processes.environments.releases import available
from biopsy.processes.own_files import InUseError
from biopsy.processes.process import CannotStartError, isolating_variables, run
from biopsy.processes.watch import Ended, Limits, signal_name
from biopsy.text import count, printable, series, shortened, size_text

_SHORT_WAIT = 1.0
"""Seconds until a remark says that another process is installing an environment."""
_LONG_WAIT = 2 * INSTALLING_SECONDS


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An environment with packages, which is not changed or removed while it is open.

    ``python`` is its interpreter: start it with ``-I`` and ``variables``, so that it imports no modules from elsewhere.
    ``added`` are requirements that turned out to be needed in addition, such as "numpy<2". ``packages`` are the
    versions of all distributions in it, by their normalized names ("onnxruntime", "ml-dtypes"). It was made with
    ``interpreter``.
    """

    python: Path
    added: tuple[str, ...]
    packages: Mapping[str, str]
    interpreter: Interpreter

    @property
    def variables(self) -> dict[str, str | None]:
        """Changes of the environment variables for a process that runs in it, for ``Process``."""
        return isolating_variables()


@contextmanager
def prepared(
    requirements: Sequence[str],
    *,
    python: Interpreter | None = None,
    listener: events.Listener = events.ignore,
    sources: Sources | None = None,
) -> Iterator[Environment]:
    """Open an environment with requirements such as ``["onnxruntime==1.20.1", "numpy<2"]``.

    It is made if there is none yet: by uv or pip, from wheels only, from ``sources`` (by default the configured ones),
    for ``python`` (by default this interpreter). The required packages are imported in it once. If that fails because
    another package is too new, for which no version is required, an older one is added.

    Raises CannotInstall if it cannot be made, UsageError for an invalid requirement, BiopsyError if a package is
    missing here that this needs.
    """
    interpreter = interpreter_of() if python is None else python
    origin = origin_in_variables() if sources is None else sources.origin
    plan = Plan(wanted=parsed(requirements), interpreter=interpreter, origin=origin)
    cache, is_new = Cache.of_user(), False
    while True:
        with _waited_for(cache, plan, listener, shared=True):
            record = cache.record(plan.key)
            if record is not None:
                cache.touch(plan.key)
                listener(
                    events.InstallationDone(
                        requirements=record.requirements,
                        added=record.added,
                        python=record.python,
                        packages=record.packages,
                        bytes=record.bytes,
                        seconds=record.seconds if is_new else 0.0,
                        cached=not is_new,
                    )
                )
                yield Environment(
                    python=python_of(cache.place(plan.key)),
                    added=record.added,
                    packages=record.packages,
                    interpreter=interpreter,
                )
                return
        with _waited_for(cache, plan, listener, shared=False) as lock:
            if cache.record(plan.key) is None:  # no other process has made it meanwhile
                make(plan, cache, lock, configured() if sources is None else sources, listener)
                is_new = True


@contextmanager
def _waited_for(cache: Cache, plan: Plan, listener: events.Listener, *, shared: bool) -> Iterator[int]:
    """Lock an environment, and wait while another process installs it. Raises CannotInstall."""
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(cache.locked(plan.key, shared=shared, patience=_SHORT_WAIT))
        except InUseError:
            packages = series(plan.requirements)
            listener(events.Remark(f"another process installs {packages}: waiting for it"))
            try:
                lock = stack.enter_context(cache.locked(plan.key, shared=shared, patience=_LONG_WAIT))
            except InUseError as error:
                raise errors.CannotInstall(
                    f"another process has been installing {packages} for {_LONG_WAIT / 60:.0f} minutes", kind="other"
                ) from error
        yield lock


_MOST_ADDED = 3
"""The most requirements that are added because a package is too new."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The packages of an environment, and its interpreter; ``origin`` are the sources of packages, if they are set."""

    wanted: tuple[WantedPackage, ...]
    interpreter: Interpreter
    origin: tuple[str, ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        """The requirements."""
        return tuple(each.text for each in self.wanted)

    @property
    def key(self) -> str:
        """The name of the environment, which begins with the name of a package for people who look into the folder."""
        origin = [self.origin] if self.origin else []
        if "openvino" in names(self.wanted):
            origin.append(("tried with an array",))  # environments of older releases of biopsy were not
        identity = json.dumps([self.requirements, str(self.interpreter.path), self.interpreter.version, *origin])
        return f"{self.wanted[0].name[:40]}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def make(plan: Plan, cache: Cache, lock: int, sources: Sources, listener: events.Listener) -> None:
    """Make an environment whose ``lock`` this process has, and room for it. Raises CannotInstall and leaves nothing."""
    started = time.monotonic()
    installer = installer_for(plan.interpreter.path, sources)
    listener(
        events.InstallationStarted(
            requirements=plan.requirements, python=plan.interpreter.version, installer=installer.name
        )
    )
    _make_room(plan, cache, listener)
    wanted = available(plan.wanted, plan.interpreter, sources)
    with _kept_if_finished(plan, cache) as keep:
        added, trial = _filled(plan, wanted, cache, lock, sources, installer)
        record = Record(
            requirements=plan.requirements,
            added=added,
            interpreter=str(plan.interpreter.path),
            python=plan.interpreter.version,
            packages=trial.packages,
            bytes=size_of(cache.place(plan.key)),
            seconds=time.monotonic() - started,
        )
        keep.keep()  # before it is finished: if this process is killed in between, the next one removes the rest
        cache.finish(plan.key, record)
    _make_room(plan, cache, listener)


def _make_room(plan: Plan, cache: Cache, listener: events.Listener) -> None:
    if removed := cache.keep_below_limit(plan.key):
        were = "was" if len(removed) == 1 else "were"
        removed_text = f"{count(len(removed), 'environment')} that had not been used for longest {were} removed"
        listener(events.Remark(f"{removed_text}: together, environments may have {size_text(cache.limit)}"))


@contextmanager
def _kept_if_finished(plan: Plan, cache: Cache) -> Iterator[cleanup.TransientFolder]:
    """A folder for the environment, which is removed with its lock if something is raised."""
    listed = ("lock", str(cache.lock(plan.key)))
    cache.empty(plan.key)  # a process that was killed may have left something
    cleanup.register(*listed)  # so that the folder of a later owner of the lock is not removed
    try:
        folder = cleanup.TransientFolder(cache.whole(plan.key))
        try:
            yield folder
        except BaseException:
            cache.discard(plan.key)
            folder.keep()
            raise
    except OSError as error:
        cache.discard(plan.key)
        raise cache.unusable(error) from error
    finally:
        cleanup.unregister(*listed)


def _filled(
    plan: Plan, wanted: tuple[str, ...], cache: Cache, lock: int, sources: Sources, installer: Installer
) -> tuple[tuple[str, ...], ImportTrial]:
    """Make an environment, install ``wanted`` and import it; returns the added requirements and the trial.

    A requirement is added if an import needs it and the user requires no version of its package. Raises CannotInstall.
    """
    place, added = cache.place(plan.key), tuple[str, ...]()
    python = python_of(place)

    def require(ended: Ended, requirements: Sequence[str]) -> None:
        if ended.status != 0:
            raise refusal(ended, requirements, sources, cache.folder)

    distributions, trial = sorted(names(plan.wanted)), None
    try:
        require(installer.make(place, lock), plan.requirements)
        while True:
            try:
                require(installer.install(python, (*wanted, *added), lock), (*wanted, *added))
            except errors.CannotInstall as error:
                if trial is None or trial.problem is None or error.concerns_all:
                    raise
                raise trial.problem from error
            trial = tried(python, distributions)
            if trial.problem is None:
                return added, trial
            required = names([*plan.wanted, *(parsed(added) if added else ())])
            more = tuple(need for need in trial.needs if not names(parsed([need])) & required)
            if not more or len(added) + len(more) > _MOST_ADDED:
                raise trial.problem
            added += more
    except CannotStartError as error:
        raise errors.CannotInstall(error.message, kind="other") from error


_SECONDS = 300.0
"""Wall time for all imports: the first import compiles modules, and may read a gigabyte from the disk."""
_KEPT_OUTPUT = 1 << 20
_LONGEST_LINE = 300

_NEEDS = (
    (r"compiled using NumPy 1\.x|_ARRAY_API not found|reads arrays of this NumPy wrongly", "numpy<2"),
    (r"module 'numpy' has no attribute '(bool|object|int|float|complex|str)'", "numpy<1.24"),
    (r"Descriptors cannot be created directly", "protobuf<4"),
    (r"No module named '(pkg_resources|distutils)", "setuptools<81"),
)
"""Output of an import that fails because another package is too new, and the requirement that surely mends it.

NumPy reports extensions that were compiled for version 1, but not those that pybind11 before 2.12 made, which read the
memory of arrays elsewhere: OpenVINO, whose older releases have those, is tried with an array. NumPy documents the
release that removed old names; protobuf names the release for generated code that is too old; setuptools has announced
the release that removes ``pkg_resources``, and since Python 3.12 only setuptools has ``distutils``.
"""

_SCRIPT = """\
import json, re, sys
from importlib import metadata
token = sys.argv[1]

def say(**values):
    sys.stdout.flush()
    print("\\n" + token + json.dumps(values), flush=True)

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
            imported = __import__(module)
            if name == "openvino":
                import numpy
                of_runtime = __import__("openvino.runtime").runtime if not hasattr(imported, "Tensor") else imported
                given = numpy.arange(1, 25, dtype=numpy.float32).reshape(4, 6)
                if not (numpy.array(of_runtime.Tensor(given).data) == given).all():
                    raise RuntimeError(f"it reads arrays of this NumPy wrongly: {numpy.__version__}")
        except BaseException as error:
            say(failed=f"{type(error).__name__}: {error}")
            raise
say(done=True)
"""


@dataclass(frozen=True, kw_only=True)
class ImportTrial:
    """The result of importing the required packages in an environment.

    ``packages`` are the versions of all distributions in it, by their normalized names. ``problem`` is None if the
    imports work. ``needs`` are requirements that would make them work.
    """

    packages: dict[str, str]
    problem: errors.CannotInstall | None
    needs: tuple[str, ...]


def tried(python: Path, distributions: Sequence[str]) -> ImportTrial:
    """Import the main module of each distribution in an interpreter. Raises CannotStartError."""
    token = f"{os.urandom(8).hex()} "
    words = [str(python), "-I", "-c", _SCRIPT, token, *distributions]
    ended = run(words, lambda: Limits(seconds=_SECONDS), environment=isolating_variables(), kept=_KEPT_OUTPUT)
    progress: dict[str, Any] = {"packages": {}, "importing": "", "failed": "", "done": False}
    printed = []
    for line in ended.output.decode(errors="replace").splitlines():
        if line.startswith(token):
            progress |= json.loads(line.removeprefix(token))
        else:
            printed.append(line)
    needs = tuple(need for pattern, need in _NEEDS if re.search(pattern, "\n".join(printed)))
    works = progress["done"] and ended.status == 0 and not needs
    problem = None if works else _problem(ended, progress, printed, needs)
    return ImportTrial(packages=progress["packages"], problem=problem, needs=needs)


def _problem(
    ended: Ended, progress: Mapping[str, Any], printed: Sequence[str], needs: Sequence[str]
) -> errors.CannotInstall:
    release = f"{progress['importing']} {progress['packages'].get(progress['importing'], '')}".strip()
    if not release:
        details = [shortened(printable(line), _LONGEST_LINE) for line in printed[-4:]]
        return errors.CannotInstall("the new environment does not work", kind="other", details=details)
    if progress["failed"]:
        problem = f"{release} cannot be imported: {shortened(printable(progress['failed']), _LONGEST_LINE)}"
    elif ended.cause == "time":
        problem = f"the import of {release} takes too long"
    elif needs and ended.status >= 0:
        problem = f"{release} does not work with what is installed beside it"
    else:
        how = signal_name(-ended.status) if ended.status < 0 else f"status {ended.status}"
        problem = f"the import of {release} ended its process with {how}"
    missing = re.search(r"No module named '([\w.]+)'", progress["failed"])
    steps = [f"--with '{need}'" for need in needs] or ([f"--with {missing[1].split('.')[0]}"] if missing else [])
    details = [f"it needs {series(needs)}"] if needs else []
    return errors.CannotInstall(problem, kind="import fails", details=details, next_steps=steps)


_DISK_FULL = re.compile(r"No space left on device|os error 28\b|Errno 28\b|Disk quota exceeded|File too large")
_REFUSALS: tuple[tuple[str, errors.Obstacle, str], ...] = (
    (
        r"(?i)Failed to fetch|Could not connect|error sending request|NewConnectionError|ConnectTimeout|Read timed out"
        r"|Name or service not known|name resolution|dns error|Connection refused|Connection reset|ProxyError|SSLError"
        r"|CERTIFICATE_VERIFY_FAILED|invalid peer certificate|Network is unreachable|HTTP error|HTTP status|tunnel",
        "network",
        "cannot be fetched: an index or its files cannot be reached",
    ),
    (
        r"has no wheels|no usable wheels|No matching distribution found|only sdists|no matching wheel",
        "no wheel",
        "cannot be installed: something that it needs has no wheel for this Python, or none that the rest allows",
    ),
    (
        r"unsatisfiable|ResolutionImpossible|conflicting dependencies|conflict is caused by|No solution found",
        "conflict",
        "cannot be installed together",
    ),
    ("", "other", "cannot be installed"),
)
"""Pattern in an installer's output, the obstacle, and its description; the first pattern that matches counts."""
_NOISE = re.compile(
    r"^(Using Python|Resolved|Prepared|Installed|Collecting|Downloading|Looking in|warning|WARNING|\[no)"
)
_MOST_LINES = 8


def refusal(ended: Ended, requirements: Sequence[str], sources: Sources, folder: Path) -> errors.CannotInstall:
    """The error for an installer that has failed; environments are in ``folder``."""
    printed = without_secrets(ended.output.decode(errors="replace"), sources)
    packages = series([printable(each) for each in requirements])
    if _DISK_FULL.search(printed) or -ended.status == getattr(signal, "SIGXFSZ", None):
        return errors.CannotInstall(
            f"there is not enough space for {packages} in {folder}",
            kind="disk full",
            next_steps=["biopsy cache clear", "BIOPSY_CACHE_DIR=/a/folder/with/space"],
        )
    lines = [line for line in map(str.strip, printed.splitlines()) if line and not _NOISE.match(line)]
    details = [shortened(printable(line), _LONGEST_LINE) for line in lines[-_MOST_LINES:]]  # the error is at the end
    if ended.cause == "time" or ended.status < 0:
        how = "took too long" if ended.cause == "time" else f"ended with {signal_name(-ended.status)}"
        return errors.CannotInstall(f"the installation of {packages} {how}", kind="other", details=details)
    kind, problem = next((kind, problem) for pattern, kind, problem in _REFUSALS if re.search(pattern, printed))
    steps = ["pip install uv"] if kind == "other" and "ensurepip" in printed else []
    return errors.CannotInstall(f"{packages} {problem}", kind=kind, details=details, next_steps=steps)
