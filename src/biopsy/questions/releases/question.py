"""What is asked of releases: which model fails which check, how the check comes to use a release, which releases are
looked at, and where the search begins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.command_line import LOAD_OUTPUTS, OwnRun, parse
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Evidence
from biopsy.engines.registry import EngineSpec, engines_of_distribution, release_settings
from biopsy.model.index import index_file
from biopsy.processes.environments.interpreter import Interpreter, parsed
from biopsy.processes.environments.prepared import Environment
from biopsy.processes.environments.releases import Release
from biopsy.questions.builds.settings import ENGINE_PLACE, SETTINGS_PLACE, VARIABLE, CheckTemplate, SettingChange
from biopsy.text import normalized, printable

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
        """Whether the words of the check have a place for the path of the interpreter."""
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


@dataclass(frozen=True, kw_only=True)
class ReleaseQuestion:
    """Which model fails which check. ``default_name`` stands for it in the words, as ``{}`` does.

    ``weights`` is the folder of its external weights, if that is not its own. ``timeout`` is in seconds; None for 20
    times as long as the first run took, at least 60.
    """

    check: ReleaseCheck
    model: Path
    rules: Rules = field(default_factory=Rules)
    weights: Path | None = None
    default_name: str = "{}"
    timeout: float | None = None

    @cached_property
    def operators(self) -> frozenset[str]:
        """The types of the nodes: messages of releases are told apart by those that they name."""
        return frozenset(node.op_type for node in index_file(self.model, self.weights).nodes)


# Which releases are looked at, and where the search begins: from what a person said of good and bad ones.

_NUMBERS = re.compile(r"\d+(?:\.\d+)+")
_SHOWN = 4
"""Releases that a message names on each side of one that is not there."""


@dataclass(frozen=True, kw_only=True)
class ReleaseSpan:
    """Releases to look at, the oldest first.

    ``start`` is the place of the release where the failure is looked for first. ``end`` is the place of the one that a
    person said to be without it; None if that is to be found.
    """

    releases: tuple[Release, ...]
    start: int
    end: int | None = None


@dataclass(frozen=True, kw_only=True)
class NamedReleases:
    """What a person said: a release without the failure, one with it, and which to look at; None where nothing.

    ``versions`` is ``A..B``, releases joined by commas, or a specifier such as ``>=1.20,!=1.23.0``.
    """

    good: str | None = None
    bad: str | None = None
    versions: str | None = None


def span_of(package: str, known: Sequence[Release], asked: NamedReleases) -> ReleaseSpan:
    """The releases to look at. Raises UsageError for a release that is not among the ``known`` ones."""
    chosen = _chosen(package, known, asked.versions)
    bad = _installed(package, chosen) if asked.bad is None else _place(package, chosen, asked.bad)
    if asked.good is None:
        return ReleaseSpan(releases=tuple(chosen), start=bad)
    good = _place(package, chosen, asked.good)
    if good == bad and asked.bad is not None:
        raise errors.UsageError(f"--good and --bad are the same release of {package}: {chosen[good].version}")
    if good == bad:  # the installed one is the one without the failure
        bad = len(chosen) - 1
    if good == bad:
        raise errors.UsageError(
            f"{package} {chosen[good].version} is the newest release to look at, and --good says it is without the "
            "failure",
            next_steps=["--bad VERSION    a release that fails"],
        )
    first, last = sorted((good, bad))
    return ReleaseSpan(releases=tuple(chosen[first : last + 1]), start=bad - first, end=good - first)


def _installed(package: str, chosen: Sequence[Release]) -> int:
    """The place of the release that is installed here, else that of the newest."""
    try:
        here = Version(metadata.version(package))
    except (metadata.PackageNotFoundError, InvalidVersion):
        return len(chosen) - 1
    found = [place for place, release in enumerate(chosen) if Version(release.version) == here]
    return found[0] if found else len(chosen) - 1


def _chosen(package: str, known: Sequence[Release], versions: str | None) -> Sequence[Release]:
    if not known:
        raise errors.UsageError(
            f"{package} has no release with a wheel for this Python", next_steps=["--python VERSION    another Python"]
        )
    if versions is None:
        return known
    found = _matching(package, known, versions)
    if not found:
        raise errors.UsageError(f"no release of {package} is in --versions {printable(versions)}; {_there_are(known)}")
    return found


def _matching(package: str, known: Sequence[Release], versions: str) -> list[Release]:
    first, dots, last = versions.partition("..")
    if dots:
        low, high = (_version(text, "--versions") if text.strip() else None for text in (first, last))
        return [
            one
            for one in known
            if (low is None or Version(one.version) >= low) and (high is None or Version(one.version) <= high)
        ]
    if versions.strip()[:1] in "<>=!~":
        try:
            wanted = SpecifierSet(versions)
        except InvalidSpecifier as error:
            raise errors.UsageError(
                f"--versions {printable(versions)} is no specifier", next_steps=["--versions '>=1.20,<1.25'"]
            ) from error
        return [one for one in known if wanted.contains(one.version)]
    places = {_place(package, known, text) for text in versions.replace(",", " ").split()}
    return [known[place] for place in sorted(places)]


def _place(package: str, known: Sequence[Release], text: str) -> int:
    wanted = _version(text, package)
    for place, release in enumerate(known):
        if Version(release.version) == wanted:
            return place
    raise errors.UsageError(
        f"{package} has no release {printable(text)} to look at with a wheel for this Python; "
        f"{_there_are(known, wanted)}"
    )


def _version(text: str, what: str) -> Version:
    try:
        return Version(text.strip())
    except InvalidVersion as error:
        found = _NUMBERS.findall(text)
        meant = "--versions " + "..".join(found) if len(found) == 2 else " ".join(found[:1])
        raise errors.UsageError(
            f"{what}: {printable(text)!r} is no version", next_steps=[meant or "1.20.1    the form of one"]
        ) from error


def _there_are(known: Sequence[Release], near: Version | None = None) -> str:
    before = [one.version for one in known if near is not None and Version(one.version) < near][-_SHOWN:]
    after = [one.version for one in known if near is not None and Version(one.version) > near][:_SHOWN]
    shown = [*before, *after] if near is not None else [known[0].version, "...", known[-1].version]
    return f"there are {', '.join(shown)}" if near is None else f"its neighbours: {', '.join(shown)}"
