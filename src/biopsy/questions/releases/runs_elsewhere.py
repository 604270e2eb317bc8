"""Checks with releases on other machines, several at once: each machine makes the environment that it needs.

What will be asked for, or may be, is begun ahead. Answers are taken in the order of the search, which therefore comes
to the same end as on one machine.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Evidence
from biopsy.checks.task import Prepared, PreparedTask, TaskSite, require_names
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.environments.interpreter import Interpreter, interpreter_of
from biopsy.processes.environments.prepared import Environment, prepared
from biopsy.processes.environments.releases import Release
from biopsy.processes.server import as_json, from_json
from biopsy.processes.watch import Stop
from biopsy.questions.releases.runs import (
    PYTHON_PLACE,
    PYTHON_VARIABLE,
    ReleaseCheck,
    ReleaseRun,
    bare_python,
)
from biopsy.session.machines import OtherMachines, PreparedRun, tell_of_machines
from biopsy.session.pool import RunsAhead

_LOOK = 0.1
"""Seconds between two looks at whether an installation is still wanted."""


class RunsElsewhere:
    """Runs on ``machines``, of which up to ``ahead`` go on at once. ``close`` stops what nobody waits for any more."""

    def __init__(self, machines: OtherMachines, jobs: int, listener: events.Listener = events.ignore) -> None:
        self.ahead = jobs
        self._listener = listener
        self._runs: RunsAhead[ReleaseRun, PreparedRun] = RunsAhead(
            lambda run: machines.begin_prepared(task_of(run)),
            lambda run: (run.check.words, run.version, run.model, run.is_bare),
            machines,
            jobs,
        )
        tell_of_machines(machines, listener)

    @contextmanager
    def opened(self, check: ReleaseCheck, release: Release, listener: events.Listener) -> Iterator[Environment | None]:
        """Nothing is made here: environments are made on the machines that run the check with them."""
        yield None

    def command(self, run: ReleaseRun) -> CommandCheck:
        """The command, with a place for the interpreter."""
        return _command(run)

    def expect(self, run: ReleaseRun, times: int) -> None:
        """Begin so many runs, as far as there is room."""
        self._runs.expect(run, times)

    def foresee(self, runs: Iterable[ReleaseRun]) -> None:
        """Begin these, as far as there is room, and stop all others. A first run has no limit of time, and is alone."""
        likely = [run for run in runs if run.timeout is not None]
        self._runs.forget_all(but=likely)
        for run in likely:
            self._runs.expect(run)

    def close(self) -> None:
        """Stop what runs."""
        self._runs.forget_all()

    def run(self, run: ReleaseRun) -> tuple[Evidence, Environment]:
        """What came of a run, of one that was begun ahead if there is one. Raises CheckError, CannotInstall."""
        begun, prepared_run = self._runs.found(run)
        while begun.original != run.original and _mismatches(prepared_run):
            begun, prepared_run = self._runs.found(run)  # it was not known yet what it is to be compared with
        told, evidence = prepared_run.told, prepared_run.evidence
        if "failure" in told:
            raise from_json(told["failure"])
        assert evidence is not None
        if evidence.remark:
            self._listener(events.Remark(evidence.remark))
        environment = Environment(
            python=Path(told["python"]),
            added=told["added"],
            packages=told["packages"],
            interpreter=_interpreter_of(run.check),
        )
        return evidence, environment


def task_of(run: ReleaseRun) -> PreparedTask:
    """A run as a machine can do it, which makes the environment of its release first."""
    check = run.check
    return PreparedTask(
        check=_command(run),
        candidate=run.model,
        preparation=ReleasePreparation(
            requirements=tuple(check.requirements(run.version)),
            python=check.python_text,
            series=_interpreter_of(check).series,
            is_own_run=check.is_own_run,
            is_bare=run.is_bare,
        ),
        models=[run.model],
        original=run.original,
    )


def _command(run: ReleaseRun) -> CommandCheck:
    """The command of a run, with ``{python}`` for an interpreter that is known on the machine only."""
    words, told = run.check.words_of(run.version, PYTHON_PLACE), run.check.engine_variables(run.version)
    check = CommandCheck(words, run.default_name, run.timeout, environment=told)
    require_names(check, run.model)
    return check


def _mismatches(found: PreparedRun) -> bool:
    return found.evidence is not None and bool(found.evidence.verdict.mismatches)


_own_interpreter = cache(interpreter_of)


def _interpreter_of(check: ReleaseCheck) -> Interpreter:
    """That which the releases were chosen for."""
    return check.python or _own_interpreter()


# On the other machine


@dataclass(frozen=True, kw_only=True)
class ReleasePreparation:
    """An environment that another machine makes for a check; see ``checks.preparation``.

    ``python`` is the interpreter that it is for, as a person wrote it; it must be of the ``series`` ("3.11") that the
    releases were chosen for. ``is_bare``: the check is given this interpreter without any packages. It tells
    ``python``, the path of its interpreter there, ``added`` and ``packages``; or the ``failure``, as JSON has it.
    """

    requirements: tuple[str, ...]
    python: str | None
    series: str
    is_own_run: bool
    is_bare: bool

    @contextmanager
    def prepared(self, site: TaskSite, stop: Stop) -> Iterator[Prepared]:
        """Make it, or find it in the cache of this machine. Raises UsageError for another Python."""
        interpreter = self._interpreter()
        with ExitStack() as stack:
            try:
                if not _is_made(self.requirements, interpreter, stop):
                    yield Prepared(told={}, is_ready=False)  # nobody waits for it any more
                    return
                environment = stack.enter_context(prepared(self.requirements, python=interpreter))
            except errors.CannotInstall as error:
                yield Prepared(
                    told={
                        "failure": as_json(
                            errors.CannotInstall(
                                f"{platform.node()}: {error.summary}",
                                kind=error.kind,
                                details=error.details,
                                kept=error.kept,
                                next_steps=error.next_steps,
                            )
                        )
                    },
                    is_ready=False,
                )
                return
            python = environment.python
            if self.is_bare:
                python = bare_python(stack.enter_context(temporary_folder("biopsy-")), environment)
            variables: dict[str, str | None] = {} if self.is_own_run else dict(environment.variables)
            yield Prepared(
                told={"python": str(python), "added": environment.added, "packages": dict(environment.packages)},
                words={PYTHON_PLACE: str(python)},
                environment={**variables, PYTHON_VARIABLE: str(python)},
            )

    def _interpreter(self) -> Interpreter:
        found = interpreter_of(self.python)
        if found.series != self.series:
            raise errors.UsageError(
                f"{platform.node()} has Python {found.series}, and the releases are those for Python {self.series}",
                next_steps=[f"--python {self.series}    where a machine has it besides"],
            )
        return found


def _is_made(requirements: Sequence[str], interpreter: Interpreter, stop: Stop) -> bool:
    """Make an environment, unless the run is stopped before; whether it was made. Raises what ``prepared`` raises.

    What is being installed then is finished meanwhile, and stays in the cache: this machine may need it soon.
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
    while not is_over.wait(_LOOK):
        if stop.is_set:
            return False
    if raised:
        raise raised[0]
    return True
