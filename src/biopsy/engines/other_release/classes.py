"""The class of an engine that is run from another release: the engine's own, with other imports."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from biopsy import errors, events
from biopsy.engines.base import Engine
from biopsy.engines.other_release import release as releases
from biopsy.engines.other_release.death import ended_like
from biopsy.engines.other_release.release import EngineRelease
from biopsy.engines.other_release.remote import RemoteInterpreter
from biopsy.engines.other_release.starting import RunnerFork, RunnerProcess
from biopsy.engines.other_release.wire import GoneError

_SECONDS_OF_TRIAL = 20.0


class OtherImports:
    """Modules of the interpreter that has a release. It is started when the first one is asked for.

    One serves all engines of this process that have the same release, until it ends; a fork gets one of its own.
    """

    is_here = False

    def __init__(self, release: EngineRelease) -> None:
        self.release = release
        self._held = ExitStack()
        self._environment: releases.OpenEnvironment | None = None
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
    def environment(self) -> releases.OpenEnvironment | None:
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
            self._environment = releases.opened(self.release, self._held, listener)

    def warm(self) -> None:
        """Start an interpreter that can be forked later, where this platform allows that."""
        if sys.platform == "linux":
            self._server = RunnerProcess(self._python(), "warm")
            self._open = _OpenRunner(self._server, self.release)

    def serve(self, trial: Callable[[], None]) -> None:
        """Have the warm interpreter serve forks; it is ended if it cannot, and each fork starts one of its own.

        A release may have threads that do not survive a fork, and what needs them would hang: so the first one is
        tried.
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
            self._open = _OpenRunner(self._started(), self.release)
        return self._open.interpreter

    def _started(self) -> RunnerProcess | RunnerFork:
        if self._server is not None:
            try:
                return RunnerFork(self._server.inviting)
            except errors.BiopsyError:
                self._server = None  # it has ended: a process of our own is started
        return RunnerProcess(self._python(), "once")

    def _python(self) -> Path:
        self.install(events.ignore)
        assert self._environment is not None
        return self._environment.python


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
    return {releases.OPEN_VARIABLE: releases.told_to_children(known)} if known else {}


@cache
def class_from(engine: type[Engine], release: EngineRelease) -> type[Engine]:
    """The class of an engine that is run from a release: always the same one. Its interpreter is not started yet."""
    attributes = {"imports": OtherImports(release), "__module__": engine.__module__, "__doc__": engine.__doc__}
    made: type[Engine] = type(engine.__name__, (_FromOtherRelease, engine), attributes)
    return made
