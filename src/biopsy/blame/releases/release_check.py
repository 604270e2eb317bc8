"""A check that is run with one release of a package or another: what its words and its environment tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.command_line import LOAD_OUTPUTS, OwnRun, parse
from biopsy.checks.outcome import Evidence
from biopsy.engines.registry import EngineSpec, engines_of_distribution, release_settings
from biopsy.environments.interpreter import Interpreter
from biopsy.environments.prepared import Environment
from biopsy.environments.requirements import normalized, parsed
from biopsy.tactics.setting_changes import ENGINE_PLACE, SETTINGS_PLACE, VARIABLE, CheckTemplate, SettingChange
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
