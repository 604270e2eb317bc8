"""Runs of a check with releases: on this machine, one at a time; or on other machines, several at once.

Other machines make the environments that they need, and begin runs that will or may be needed ahead of time. Answers
are used in the order of the search, so its result is the same as on one machine.
"""

from __future__ import annotations

import platform
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Evidence
from biopsy.checks.task import Prepared, PreparedTask, Task, TaskSite, require_names, run_check
from biopsy.comparison.mismatch import Mismatch
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.environments.interpreter import Interpreter, interpreter_of
from biopsy.processes.environments.prepared import Environment, prepared
from biopsy.processes.environments.releases import Release
from biopsy.processes.server import as_json, from_json
from biopsy.processes.watch import Stop
from biopsy.questions.releases.question import PYTHON_PLACE, PYTHON_VARIABLE, ReleaseCheck
from biopsy.session.machines import OtherMachines, PreparedRun, tell_of_machines
from biopsy.session.pool import RunsAhead

_POLL_SECONDS = 0.1
"""Seconds between two tests of whether an installation is still wanted."""

Preparing: TypeAlias = Callable[[ReleaseCheck, Release, events.Listener], AbstractContextManager[Environment]]
"""Makes the environment with a release. Raises CannotInstall."""


def installed(check: ReleaseCheck, release: Release, listener: events.Listener) -> AbstractContextManager[Environment]:
    """The environment of a release, from the package index or from the cache."""
    return prepared(check.requirements(release.version), python=check.python, listener=listener)


@dataclass(frozen=True, kw_only=True)
class ReleaseRun:
    """One run of a check with a release. ``default_name`` stands for the ``model`` in its words, as ``{}`` does.

    ``timeout`` is in seconds; ``original`` is as in ``checks.task.Task``. ``is_bare``: the interpreter has no packages.
    """

    check: ReleaseCheck
    release: Release
    model: Path
    default_name: str
    timeout: float | None = None
    original: tuple[Mismatch, ...] = ()
    is_bare: bool = False


class RunsHere:
    """Runs in environments of this machine, one at a time; up to ``ahead`` environments are made at once.

    If making one ahead of time fails, ``opened`` fails again and raises the error. After ``close``, the one that is
    being made may be finished, and stays in the cache.
    """

    def __init__(self, preparing: Preparing = installed, ahead: int = 1) -> None:
        self.ahead = ahead
        self._preparing = preparing
        self._environment: Environment | None = None
        self._pool = ThreadPoolExecutor(ahead)
        self._begun: dict[str, Future[None]] = {}

    @contextmanager
    def opened(self, check: ReleaseCheck, release: Release, listener: events.Listener) -> Iterator[Environment | None]:
        """The environment with a release, in which ``run`` runs the check. Raises CannotInstall."""
        begun = self._begun.get(release.version)
        if begun is not None:
            begun.result()
        with self._preparing(check, release, listener) as self._environment:
            yield self._environment

    def command(self, run: ReleaseRun) -> CommandCheck:
        """The command in the open environment."""
        assert self._environment is not None
        return run.check.command(run.release.version, self._environment, run.default_name, run.timeout)

    def run(self, run: ReleaseRun) -> tuple[Evidence, Environment]:
        """The evidence of a run in the open environment, and that environment. Raises CheckError if it cannot run."""
        assert self._environment is not None
        if not run.is_bare:
            return run_check(Task(self.command(run), run.model, None, run.original)), self._environment
        with temporary_folder("biopsy-") as folder:
            bare = replace(self._environment, python=bare_python(folder, self._environment))
            command = run.check.command(run.release.version, bare, run.default_name, run.timeout)
            return run_check(Task(command, run.model, None, run.original)), self._environment

    def expect(self, run: ReleaseRun, times: int) -> None:
        """Announce that a run will be needed several times; nothing is begun ahead of time here."""

    def foresee(self, runs: Iterable[ReleaseRun]) -> None:
        """Announce runs that may be needed next, the likeliest first: their environments are made, each once.

        Environments announced before that are not begun yet are not made.
        """
        for version, future in list(self._begun.items()):
            if future.cancel():
                del self._begun[version]
        for run in runs:
            if run.release.version not in self._begun:
                self._begun[run.release.version] = self._pool.submit(self._make, run)

    def close(self) -> None:
        """Make no more environments."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _make(self, run: ReleaseRun) -> None:
        with suppress(errors.BiopsyError), self._preparing(run.check, run.release, events.ignore):
            return


def bare_python(folder: Path, environment: Environment) -> Path:
    """A program in ``folder`` that starts the interpreter of an environment without its packages."""
    bare = folder / "python"
    bare.write_text(f'#!/bin/sh\nexec {shlex.quote(str(environment.interpreter.path))} -S "$@"\n')
    bare.chmod(0o700)
    return bare


class RunsElsewhere:
    """Runs on ``machines``, up to ``ahead`` at once. ``close`` stops runs that are not needed any more."""

    def __init__(self, machines: OtherMachines, jobs: int, listener: events.Listener = events.ignore) -> None:
        self.ahead = jobs
        self._listener = listener
        self._runs: RunsAhead[ReleaseRun, PreparedRun] = RunsAhead(
            lambda run: machines.begin_prepared(task_of(run)),
            lambda run: (run.check.words, run.release.version, run.model, run.is_bare),
            machines,
            jobs,
        )
        tell_of_machines(machines, listener)

    @contextmanager
    def opened(self, check: ReleaseCheck, release: Release, listener: events.Listener) -> Iterator[Environment | None]:
        """None: environments are made on the machines that run the check."""
        yield None

    def command(self, run: ReleaseRun) -> CommandCheck:
        """The command, with a placeholder for the interpreter."""
        return _command(run)

    def expect(self, run: ReleaseRun, times: int) -> None:
        """Begin a run ``times`` times, as far as there is room."""
        self._runs.expect(run, times)

    def foresee(self, runs: Iterable[ReleaseRun]) -> None:
        """Begin these, as far as there is room, and stop all others. The first run has no timeout, so it runs alone."""
        likely = [run for run in runs if run.timeout is not None]
        self._runs.forget_all(but=likely)
        for run in likely:
            self._runs.expect(run)

    def close(self) -> None:
        """Stop all runs."""
        self._runs.forget_all()

    def run(self, run: ReleaseRun) -> tuple[Evidence, Environment]:
        """The evidence of a run, perhaps begun ahead of time, and its environment. Raises CheckError, CannotInstall."""
        begun, prepared_run = self._runs.result(run)
        while begun.original != run.original and prepared_run.evidence and prepared_run.evidence.verdict.mismatches:
            begun, prepared_run = self._runs.result(run)  # it was begun before the original's mismatches were known
        report, evidence = prepared_run.report, prepared_run.evidence
        if "failure" in report:
            raise from_json(report["failure"])
        assert evidence is not None
        if evidence.remark:
            self._listener(events.Remark(evidence.remark))
        environment = Environment(
            python=Path(report["python"]),
            added=report["added"],
            packages=report["packages"],
            interpreter=_interpreter_of(run.check),
        )
        return evidence, environment


def task_of(run: ReleaseRun) -> PreparedTask:
    """A run for another machine, which makes the environment of the release first."""
    check = run.check
    return PreparedTask(
        check=_command(run),
        candidate=run.model,
        preparation=ReleasePreparation(
            requirements=tuple(check.requirements(run.release.version)),
            python=check.python_text,
            series=_interpreter_of(check).series,
            is_own_run=check.is_own_run,
            is_bare=run.is_bare,
        ),
        models=[run.model],
        original=run.original,
    )


def _command(run: ReleaseRun) -> CommandCheck:
    """The command of a run, with ``{python}`` for the interpreter, whose path only the other machine knows."""
    version = run.release.version
    words, variables = run.check.words_of(version, PYTHON_PLACE), run.check.engine_variables(version)
    check = CommandCheck(words, run.default_name, run.timeout, environment=variables)
    require_names(check, run.model)
    return check


_own_interpreter = cache(interpreter_of)


def _interpreter_of(check: ReleaseCheck) -> Interpreter:
    """The interpreter for which the releases were chosen."""
    return check.python or _own_interpreter()


ReleaseRuns: TypeAlias = RunsHere | RunsElsewhere
"""Runs checks with releases; ``ahead`` says how many runs or environments may be begun at once."""


@dataclass(frozen=True, kw_only=True)
class ReleasePreparation:
    """An environment that another machine makes for a check; see ``checks.task.Preparation``.

    ``python`` is the interpreter, as the user wrote it; it must be of the ``series`` ("3.11") that the releases were
    chosen for. ``is_bare``: the check gets this interpreter without packages. The other machine reports ``python``, the
    path of the interpreter there, ``added`` and ``packages``; or the ``failure`` as JSON.
    """

    requirements: tuple[str, ...]
    python: str | None
    series: str
    is_own_run: bool
    is_bare: bool

    @contextmanager
    def prepared(self, site: TaskSite, stop: Stop) -> Iterator[Prepared]:
        """Make the environment, or find it in the cache of this machine.

        Raises UsageError if this machine has another series of Python.
        """
        interpreter = interpreter_of(self.python)
        if interpreter.series != self.series:
            raise errors.UsageError(
                f"{platform.node()} has Python {interpreter.series}, and the releases are those for Python "
                f"{self.series}",
                next_steps=[f"--python {self.series}    where a machine has it besides"],
            )
        with ExitStack() as stack:
            try:
                if not _is_made(self.requirements, interpreter, stop):
                    yield Prepared(report={}, is_ready=False)  # the run was stopped
                    return
                environment = stack.enter_context(prepared(self.requirements, python=interpreter))
            except errors.CannotInstall as error:
                message = f"{platform.node()}: {error.summary}"
                yield Prepared(report={"failure": as_json(error) | {"message": message}}, is_ready=False)
                return
            python = environment.python
            if self.is_bare:
                python = bare_python(stack.enter_context(temporary_folder("biopsy-")), environment)
            variables: dict[str, str | None] = {} if self.is_own_run else dict(environment.variables)
            yield Prepared(
                report={"python": str(python), "added": environment.added, "packages": dict(environment.packages)},
                words={PYTHON_PLACE: str(python)},
                environment={**variables, PYTHON_VARIABLE: str(python)},
            )


def _is_made(requirements: Sequence[str], interpreter: Interpreter, stop: Stop) -> bool:
    """Make an environment; returns False if the run is stopped before. Raises what ``prepared`` raises.

    The installation is finished in the background then, and stays in the cache: this machine may need it soon.
    """
    raised: list[BaseException] = []
    is_over = threading.Event()

    def make() -> None:
        try:
            with prepared(requirements, python=interpreter):
                pass
        except BaseException as error:
            raised.append(error)
        is_over.set()

    threading.Thread(target=make, name="biopsy-environment", daemon=True).start()
    while not is_over.wait(_POLL_SECONDS):
        if stop.is_set:
            return False
    if raised:
        raise raised[0]
    return True
