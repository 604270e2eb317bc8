"""Runs of a check with releases: in environments of this machine, one at a time; or wherever else somebody has them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias

from biopsy import events
from biopsy.blame.releases.release_check import ReleaseCheck
from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Evidence
from biopsy.checks.task import Task, run_check
from biopsy.comparison.mismatch import Mismatch
from biopsy.environments.prepared import Environment, prepared
from biopsy.environments.releases import Release
from biopsy.isolation.cleanup import temporary_folder

Preparing: TypeAlias = Callable[[ReleaseCheck, Release, events.Listener], AbstractContextManager[Environment]]
"""Makes the environment that holds a release. Raises CannotInstall."""


def installed(check: ReleaseCheck, release: Release, listener: events.Listener) -> AbstractContextManager[Environment]:
    """The environment of a release, from the package index or from the cache."""
    return prepared(check.requirements(release.version), python=check.python, listener=listener)


@dataclass(frozen=True, kw_only=True)
class ReleaseRun:
    """One run of a check with a release. ``default_name`` stands for the ``model`` in its words, as ``{}`` does.

    ``timeout`` is in seconds; ``original`` is as in ``checks.task.Task``. ``is_bare``: the interpreter has no packages.
    """

    check: ReleaseCheck
    version: str
    model: Path
    default_name: str
    timeout: float | None = None
    original: tuple[Mismatch, ...] = ()
    is_bare: bool = False


class OpenRelease(Protocol):
    """A release that checks can be run with, as long as it is open."""

    def command(self, run: ReleaseRun) -> CommandCheck:
        """The command of a run; where its environment is not known yet, with a place for it."""

    def run(self, run: ReleaseRun) -> Evidence:
        """What the check leaves. Raises CheckError if it cannot be run, CannotInstall."""

    @property
    def environment(self) -> Environment:
        """The environment in which the last run was."""


class ReleaseRuns(Protocol):
    """Whoever runs checks with releases."""

    def opened(
        self, check: ReleaseCheck, release: Release, listener: events.Listener
    ) -> AbstractContextManager[OpenRelease]:
        """A release, to run the check with. Raises CannotInstall, if not its runs do."""

    def expect(self, run: ReleaseRun, times: int) -> None:
        """Say that this run will be asked for so many times: the runs may begin."""

    def foresee(self, runs: Iterable[ReleaseRun]) -> None:
        """Say what may be asked for next, the likeliest first; what was foreseen before and is none of it is not."""

    @property
    def ahead(self) -> int:
        """How many runs may go on at once; one: what is foreseen is of no use."""


class RunsHere:
    """Runs in environments of this machine, one at a time."""

    ahead = 1

    def __init__(self, preparing: Preparing = installed) -> None:
        self.preparing = preparing

    @contextmanager
    def opened(self, check: ReleaseCheck, release: Release, listener: events.Listener) -> Iterator[OpenRelease]:
        """The environment is made, if there is none, and kept meanwhile. Raises CannotInstall."""
        with self.preparing(check, release, listener) as environment:
            yield _OpenHere(environment)

    def expect(self, run: ReleaseRun, times: int) -> None:
        """Each is run when it is asked for."""

    def foresee(self, runs: Iterable[ReleaseRun]) -> None:
        """So is this."""


@dataclass(frozen=True)
class _OpenHere:
    environment: Environment

    def command(self, run: ReleaseRun) -> CommandCheck:
        """The command in this environment."""
        return run.check.command(run.version, self.environment, run.default_name, run.timeout)

    def run(self, run: ReleaseRun) -> Evidence:
        """Run it."""
        if not run.is_bare:
            return run_check(Task(self.command(run), run.model, None, run.original))
        with temporary_folder("biopsy-") as folder:
            bare = replace(self.environment, python=bare_python(folder, self.environment))
            command = run.check.command(run.version, bare, run.default_name, run.timeout)
            return run_check(Task(command, run.model, None, run.original))


def bare_python(folder: Path, environment: Environment) -> Path:
    """The interpreter of an environment without any packages, as a program in ``folder``."""
    bare = folder / "python"
    bare.write_text(f'#!/bin/sh\nexec {shlex.quote(str(environment.interpreter.path))} -S "$@"\n')
    bare.chmod(0o700)
    return bare
