"""The class of an engine that is run from another release of its package: which release is asked for, and what
becomes of us if it dies there.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from biopsy import errors, events
from biopsy.engines.base import RELEASE_SETTINGS, Engine, Imports
from biopsy.engines.other_release.remote import RemoteInterpreter, RunnerFork, RunnerProcess
from biopsy.engines.other_release.wire import GoneError
from biopsy.processes import own_process
from biopsy.processes.environments.interpreter import normalized
from biopsy.processes.reaper import VERDICT_VARIABLE
from biopsy.processes.watch import signal_name

_SECONDS_OF_TRIAL = 20.0


class OtherImports(Imports):
    """Modules of the interpreter that has a release. It is started when the first one is asked for.

    One serves all engines of this process that have the same release, until it ends; a fork gets one of its own.
    """

    is_here = False

    def __init__(self, release: EngineRelease) -> None:
        self.release = release
        self._held = ExitStack()
        self._environment: OpenEnvironment | None = None
        self._open: _OpenRunner | None = None
        self._server: RunnerProcess | None = None

    def module(self, name: str) -> Any:
        """A module by its full name. Raises ImportError, and EngineMissing for a package that is not there at all."""
        try:
            return self._interpreter().module(name)
        except ImportError as error:
            if "." in name:
                raise
            raise errors.EngineMissing(f"{name} cannot be imported in {self.release.place}: {error}") from error

    def gathered(self, objects: Sequence[Any], *steps: str) -> list[Any]:
        """What stands at the end of some steps from each object, all in one list, for one question."""
        return self._interpreter().gathered(objects, *steps)

    @property
    def environment(self) -> OpenEnvironment | None:
        """The environment that is open; None before it was asked for."""
        return self._environment

    def packages(self) -> Mapping[str, str]:
        """The versions of all packages in the environment; of one that the user has made, ``facts``."""
        self.install(events.ignore)
        if self._environment is not None and self._environment.packages:
            return self._environment.packages
        was_open = self._open is not None
        found = self.facts()
        if not was_open:
            self.close()
        return found

    def facts(self) -> Mapping[str, str]:
        """The versions of ``python``, of the release and of NumPy, as that interpreter tells them."""
        return self._interpreter().facts([self.release.distribution, "numpy"])

    def install(self, listener: events.Listener) -> None:
        """Have an environment that holds the release, unless one is open. Raises CannotInstall, UsageError."""
        if self._environment is None:
            self._environment = opened(self.release, self._held, listener)

    def warm(self) -> None:
        """Start an interpreter that can be forked later, where this platform allows that."""
        if sys.platform == "linux":
            self._server = self._process("warm")
            self._open = _OpenRunner(self._server, self.release)

    def serve(self, trial: Callable[[], None]) -> None:
        """Have the warm interpreter serve forks. If it cannot, it is ended, and each fork starts its own interpreter.

        Threads of a release may not survive a fork, and whatever needs them would hang. So ``trial`` runs in the first
        fork.
        """
        server, is_warm = self._server, self._open
        self._open = None
        if server is None or is_warm is None:
            return
        try:
            is_warm.interpreter.say_serve()
            if not server.is_ready_to_fork():
                raise GoneError
            fork = RunnerFork(server.inviting)
            fork.connection.settimeout(_SECONDS_OF_TRIAL)
            self._open = _OpenRunner(fork, self.release)
            trial()
        except (errors.BiopsyError, GoneError):
            self._server = None
            server.close()
        finally:
            self.close()

    def close(self) -> None:
        """End the interpreter that answers this process; the next thing that is asked starts another."""
        is_open, self._open = self._open, None
        if is_open is not None:
            is_open.close()

    def _interpreter(self) -> RemoteInterpreter:
        if self._open is None or not self._open.is_ours:
            runner: RunnerProcess | RunnerFork | None = None
            if self._server is not None:
                try:
                    runner = RunnerFork(self._server.inviting)
                except errors.BiopsyError:
                    self._server = None  # it has ended: a process of our own is started
            self._open = _OpenRunner(runner or self._process("once"), self.release)
        return self._open.interpreter

    def _process(self, mode: str) -> RunnerProcess:
        self.install(events.ignore)
        assert self._environment is not None
        return RunnerProcess(self._environment.python, mode)


class _OpenRunner:
    """A runner that answers this process."""

    def __init__(self, runner: RunnerProcess | RunnerFork, release: EngineRelease) -> None:
        self._runner = runner
        self._release = release
        self._process = os.getpid()
        self._error: errors.BiopsyError | None = None
        self.interpreter = RemoteInterpreter(runner.connection, self._gone)

    @property
    def is_ours(self) -> bool:
        """Whether it still answers, and answers this process rather than the one that this is a fork of."""
        return self._process == os.getpid() and self._error is None and self.interpreter.is_open

    def close(self) -> None:
        """End it."""
        self._runner.close()

    def _gone(self) -> NoReturn:
        """It has ended: so does this process, or this is raised."""
        if self._error is None:
            status = self._runner.status()
            self._runner.close()
            self._error = ended_like(status, f"the interpreter of {self._release}")
        raise self._error


class _FromOtherRelease(Engine):
    """What engines of other releases have besides: their interpreter is warmed up, too."""

    def warm_up(self) -> None:
        """Warm up an interpreter of the release, for forks of this process to have a fork of."""
        imports = type(self).imports
        imports.warm()
        try:
            super().warm_up()
        finally:
            imports.serve(lambda: Engine.warm_up(self))


def variables_of(engines: Iterable[type[Engine]]) -> dict[str, str]:
    """The environment variables by which checks find the releases again that this process holds open."""
    imports = [engine.imports for engine in engines if isinstance(engine.imports, OtherImports)]
    known = {each.release: each.environment for each in imports if each.release.version and each.environment}
    # Finding an environment again costs a check some tenths of a second.
    told = {str(release): [str(each.python), dict(each.packages)] for release, each in known.items()}
    return {OPEN_VARIABLE: json.dumps(told)} if known else {}


@cache
def class_from(engine: type[Engine], release: EngineRelease) -> type[Engine]:
    """The class of an engine that is run from a release: always the same one. Its interpreter is not started yet."""
    attributes = {"imports": OtherImports(release), "__module__": engine.__module__, "__doc__": engine.__doc__}
    made: type[Engine] = type(engine.__name__, (_FromOtherRelease, engine), attributes)
    return made


# Which release of an engine's package is asked for: the settings that every such engine takes besides its own.

RELEASE, WITH, PYTHON = RELEASE_SETTINGS

_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!+_-]*")
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>.*)")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(\[[\w.,-]*\])?\s*([<>=!~][^;@]*)?")
_EXAMPLE = "onnxrt:release=1.20.1,with=numpy<2,python=3.11"


@dataclass(frozen=True, kw_only=True)
class EngineRelease:
    """A release of a distribution, what is installed with it, and the Python that it is for.

    ``version`` None: what is there in the environment of the interpreter ``python``, into which nothing is installed.
    """

    distribution: str
    version: str | None = None
    others: tuple[str, ...] = ()
    python: str | None = None

    @property
    def requirements(self) -> tuple[str, ...]:
        """What is installed."""
        return (f"{self.distribution}=={self.version}", *self.others)

    @property
    def place(self) -> str:
        """Where it stands, in words."""
        return f"the environment of {self.python}" if self.version is None else f"the environment with {self}"

    def __str__(self) -> str:
        if self.version is None:
            return f"{self.distribution} of {self.python}"
        python = f" on Python {self.python}" if self.python else ""
        return f"{' with '.join(self.requirements)}{python}"


def release_of(settings: Mapping[str, str | None], distributions: tuple[str, ...], engine: str) -> EngineRelease:
    """The release that settings ask for, of one of these distributions. Raises UsageError."""
    version, others, python = (_text(settings, key, engine) for key in RELEASE_SETTINGS)
    if version is None:  # what is there in an environment of the user's own
        if python is None or "/" not in python:
            asked = f"{PYTHON}={python}" if others is None else f"{WITH}={others}"
            raise _wrong(engine, f"{asked} asks for no release: {RELEASE}=VERSION is missing")
        if others is not None:
            raise _wrong(engine, f"{WITH}={others}: nothing is installed into the environment of {python}")
        return EngineRelease(distribution=distributions[0], python=python)
    distribution, named = distributions[0], _NAMED.fullmatch(version)
    if named is not None:  # as in onnxruntime-gpu==1.20.1
        distribution = normalized(named["name"])
        if distribution not in distributions:
            raise _wrong(engine, f"{RELEASE}={version}: it is run from {' or '.join(distributions)}")
        version = named["version"]
    if not _VERSION.fullmatch(version):
        raise _wrong(engine, f"{RELEASE}={version} is no release")
    wanted = tuple(filter(None, (each.strip() for each in (others or "").split("+"))))
    for each in wanted:
        if not _REQUIREMENT.fullmatch(each):
            raise _wrong(engine, f"{WITH}={each} is no package, and no range of its releases")
    return EngineRelease(distribution=distribution, version=version, others=wanted, python=python)


def _text(settings: Mapping[str, str | None], key: str, engine: str) -> str | None:
    if key in settings and not settings[key]:
        raise _wrong(engine, f"{key} needs a value")
    return settings.get(key)


def _wrong(engine: str, problem: str) -> errors.UsageError:
    return errors.UsageError(f"engine {engine!r}: {problem}", next_steps=[f"such as {_EXAMPLE}"])


OPEN_VARIABLE = "BIOPSY_OPEN_RELEASES"
"""Under this name, the environment of a check says which releases the process that asks it holds open, as JSON."""


def _told_by_parent() -> Mapping[str, OpenEnvironment]:
    try:
        told = json.loads(os.environ.get(OPEN_VARIABLE, "{}"))
        found = {str(name): OpenEnvironment(Path(python), dict(held)) for name, (python, held) in told.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
    return {name: each for name, each in found.items() if each.python.is_file()}


class OpenEnvironment(NamedTuple):
    """The interpreter of an environment, and what it holds; nothing is known of one that the user has made."""

    python: Path
    packages: Mapping[str, str]


def opened(release: EngineRelease, held: ExitStack, listener: events.Listener) -> OpenEnvironment:
    """An environment that has a release, which ``held`` keeps from being removed.

    It is installed first if it is not there. Raises CannotInstall, and UsageError for an interpreter that is none.
    """
    if release.version is None:
        assert release.python is not None
        path = Path(release.python).expanduser()
        if not path.is_file():
            raise errors.UsageError(f"there is no interpreter {release.python}")
        return OpenEnvironment(path.absolute(), {})
    told = _told_by_parent().get(str(release))
    if told is not None:
        return told
    from biopsy.processes.environments.interpreter import interpreter_of
    from biopsy.processes.environments.prepared import prepared

    interpreter = interpreter_of(release.python)
    environment = held.enter_context(prepared(release.requirements, python=interpreter, listener=listener))
    return OpenEnvironment(environment.python, {"python": interpreter.version, **environment.packages})


# What becomes of this process when an engine has ended the interpreter of its release: the same, if somebody watches.
#
# A check, and a command that is watched, end just as that interpreter has: a crash there looks to them exactly as one
# here. Any other process goes on, and the crash is an error in it.


def ended_like(status: int, where: str) -> errors.BiopsyError:
    """End this process by this status, negative for a signal; or the error to raise, where nobody would see that.

    Its class has the name of the signal, which engines take for the kind of a failure. ``where`` names the interpreter.
    """
    if VERDICT_VARIABLE in os.environ or own_process.is_watched():
        if status >= 0:
            os._exit(status)
        with suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
            time.sleep(0.1)  # it comes at once, unless this is the first process of a container
        os._exit(128 - status)
    kind = signal_name(-status) if status < 0 else "ProcessEnded"
    how = kind if status < 0 else f"status {status}"
    made: type[errors.BiopsyError] = type(kind, (errors.BiopsyError,), {})
    return made(f"{where} ended with {how}")
