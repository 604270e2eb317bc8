"""A check that is run with one release of a package or another, in environments of this machine."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.command_line import LOAD_OUTPUTS, OwnRun, parse
from biopsy.checks.outcome import Evidence
from biopsy.checks.task import Task, run_check
from biopsy.comparison.mismatch import Mismatch
from biopsy.engines.registry import EngineSpec, engines_of_distribution, release_settings
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.environments.interpreter import Interpreter, normalized, parsed
from biopsy.processes.environments.prepared import Environment, prepared
from biopsy.processes.environments.releases import Release
from biopsy.questions.builds.settings import ENGINE_PLACE, SETTINGS_PLACE, VARIABLE, CheckTemplate, SettingChange
from biopsy.text import printable

PYTHON_PLACE = "{python}"
"""What stands in a command for the interpreter of the environment that holds a release."""

PYTHON_VARIABLE = "BIOPSY_PYTHON"
"""Environment variable that tells a check the same."""

_JUDGES = frozenset({"--compare-with", "--compare-func-script", "--validate"})
"""Options of our own ``run`` by which something else judges than the comparison of two engines, or with a file."""

_PLACES = (PYTHON_PLACE, ENGINE_PLACE, SETTINGS_PLACE)


@dataclass(frozen=True, kw_only=True)
class ReleaseCheck:
    """The words of a check, and how they come to use a release of ``package``.

    ``words`` hold ``{python}``, or ``{engine}`` or ``{settings}`` for the engine ``spec``, or none of them: then only
    the environment tells. ``beside`` are requirements that every release gets, such as "numpy<2". ``python`` is the
    interpreter that environments are made for, by ``python_text`` as a person wrote it; None: this interpreter.
    ``yardstick`` says which engines of the same package do not vary, "" if there are none.
    """

    package: str
    words: tuple[str, ...]
    spec: EngineSpec | None = None
    is_own_run: bool = False
    beside: tuple[str, ...] = ()
    python: Interpreter | None = None
    python_text: str | None = None
    yardstick: str = ""

    @property
    def names_release(self) -> bool:
        """Whether another release changes the words."""
        return has_place(self.words)

    @property
    def names_python(self) -> bool:
        """Whether the words say where the interpreter belongs."""
        return any(PYTHON_PLACE in word for word in self.words)

    def requirements(self, version: str) -> list[str]:
        """What the environment of a release holds."""
        return [f"{self.package}=={version}", *self.beside]

    def settings(self, version: str) -> SettingChange:
        """What an engine is told so that it uses a release."""
        assert self.spec is not None
        distribution = normalized(self.package)
        return SettingChange(
            release_settings(self.spec.name, distribution, version, beside=self.beside, python=self.python_text)
        )

    def words_of(self, version: str, python: str) -> tuple[str, ...]:
        """The words with a release whose environment has the interpreter ``python``."""
        words = self.words if self._template is None else self._template.with_change(self.settings(version))
        return tuple(word.replace(PYTHON_PLACE, python) for word in words)

    def variables_of(self, version: str, environment: Environment) -> Mapping[str, str | None]:
        """Changes of the variables of a check. A foreign one takes no module from elsewhere than its environment."""
        told = {PYTHON_VARIABLE: str(environment.python), **self.engine_variables(version)}
        return told if self.is_own_run else {**environment.variables, **told}

    def engine_variables(self, version: str) -> Mapping[str, str]:
        """The variable that tells a check the engine with its release; none if it has no engine."""
        return {} if self._template is None else {VARIABLE: self._template.changed(self.settings(version)).text}

    def command(
        self, version: str, environment: Environment, default_name: str, timeout: float | None = None
    ) -> CommandCheck:
        """The check with a release. Each run is a process of its own; ``timeout`` is in seconds."""
        words, variables = self.words_of(version, str(environment.python)), self.variables_of(version, environment)
        return CommandCheck(words, default_name, timeout, environment=variables)

    def by_itself(self) -> ReleaseCheck | None:
        """Our own ``run`` of the engine that varies alone, judged against float64; None for any other check."""
        own = parse(self.words)
        if not isinstance(own, OwnRun):
            return None
        numbers = [
            at for at, (first, count) in enumerate(own.engine_places) if ENGINE_PLACE in own.words[first + count - 1]
        ]
        if len(numbers) != 1 or any(word.partition("=")[0] in _JUDGES for word in own.words):
            return None
        alone = own.with_only_engine(numbers[0]).without_option(LOAD_OUTPUTS)
        return replace(self, words=alone.with_options("--compare-with", "noise").words)

    def as_if_installed(self, evidence: Evidence, version: str) -> Evidence:
        """What a check left, with the engine called as if its release were the installed one."""
        if self._template is None:
            return evidence
        return self._template.as_if_unchanged(evidence, self.settings(version))

    @property
    def _template(self) -> CheckTemplate | None:
        return None if self.spec is None else CheckTemplate(self.words, self.spec, is_own_run=self.is_own_run)


def engine_of(package: str) -> str | None:
    """The name of the engine that a distribution is; None if it is none."""
    return next(iter(engines_of_distribution(normalized(package))), None)


def requirements_of(package: str, beside: Sequence[str]) -> tuple[str, ...]:
    """What stands beside a package, as it was given. Raises UsageError for what is no name or no requirement."""
    (wanted,) = parsed([package])
    if wanted.text != wanted.requirement.name:
        raise errors.UsageError(
            f"{printable(package)!r} is more than the name of a package",
            next_steps=[
                *(f"--package {wanted.name} --bad {one.version}" for one in wanted.requirement.specifier),
                f"--package {wanted.name} --versions RANGE",
            ],
        )
    return tuple(each.text for each in parsed(beside)) if beside else ()


def has_place(words: Sequence[str]) -> bool:
    """Whether words of a check say themselves where a release belongs."""
    return any(place in word for word in words for place in _PLACES)


# Runs of a check with releases: in environments of this machine, one at a time; or wherever else somebody has them.

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


class ReleaseRuns(Protocol):
    """Whoever runs checks with releases."""

    @property
    def ahead(self) -> int:
        """How many runs may go on at once; one: what is foreseen is of no use."""

    def opened(
        self, check: ReleaseCheck, release: Release, listener: events.Listener
    ) -> AbstractContextManager[Environment | None]:
        """Have a release to run the check with, as long as it is open. Raises CannotInstall, if not its runs do."""

    def command(self, run: ReleaseRun) -> CommandCheck:
        """The command of a run; where its environment is not known yet, with a place for it."""

    def run(self, run: ReleaseRun) -> tuple[Evidence, Environment]:
        """What the check leaves with the release that is open, and where. Raises CheckError if it cannot be run,
        CannotInstall.
        """

    def expect(self, run: ReleaseRun, times: int) -> None:
        """Say that this run will be asked for so many times: the runs may begin."""

    def foresee(self, runs: Iterable[ReleaseRun]) -> None:
        """Say what may be asked for next, the likeliest first; what was foreseen before and is none of it is not."""


class RunsHere:
    """Runs in environments of this machine, one at a time."""

    ahead = 1

    def __init__(self, preparing: Preparing = installed) -> None:
        self.preparing = preparing
        self._environment: Environment | None = None

    @contextmanager
    def opened(self, check: ReleaseCheck, release: Release, listener: events.Listener) -> Iterator[Environment | None]:
        """The environment is made, if there is none, and kept meanwhile. Raises CannotInstall."""
        with self.preparing(check, release, listener) as self._environment:
            yield self._environment

    def command(self, run: ReleaseRun) -> CommandCheck:
        """The command in the environment that is open."""
        assert self._environment is not None
        return run.check.command(run.version, self._environment, run.default_name, run.timeout)

    def run(self, run: ReleaseRun) -> tuple[Evidence, Environment]:
        """Run it."""
        assert self._environment is not None
        if not run.is_bare:
            return run_check(Task(self.command(run), run.model, None, run.original)), self._environment
        with temporary_folder("biopsy-") as folder:
            bare = replace(self._environment, python=bare_python(folder, self._environment))
            command = run.check.command(run.version, bare, run.default_name, run.timeout)
            return run_check(Task(command, run.model, None, run.original)), self._environment

    def expect(self, run: ReleaseRun, times: int) -> None:
        """Each is run when it is asked for."""

    def foresee(self, runs: Iterable[ReleaseRun]) -> None:
        """So is this."""


def bare_python(folder: Path, environment: Environment) -> Path:
    """The interpreter of an environment without any packages, as a program in ``folder``."""
    bare = folder / "python"
    bare.write_text(f'#!/bin/sh\nexec {shlex.quote(str(environment.interpreter.path))} -S "$@"\n')
    bare.chmod(0o700)
    return bare
