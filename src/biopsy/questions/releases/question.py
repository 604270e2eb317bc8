"""The question which release broke a model: the model, the check and how it uses a release, the releases to try."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
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
"""The placeholder in a command for the interpreter of the environment with a release."""

PYTHON_VARIABLE = "BIOPSY_PYTHON"
"""The environment variable with the path of the same interpreter."""

_JUDGES = frozenset({"--compare-with", "--compare-func-script", "--validate"})
"""Options of ``biopsy run`` that judge otherwise than by comparing engines with each other or with a file."""

_PLACES = (PYTHON_PLACE, ENGINE_PLACE, SETTINGS_PLACE)


@dataclass(frozen=True, kw_only=True)
class ReleaseCheck:
    """The words of a check, and how they use a release of ``package``.

    ``words`` hold ``{python}``, or ``{engine}`` or ``{settings}`` for the engine ``spec``, or none of them: then only
    environment variables name the release. ``beside`` are further requirements for every environment, such as
    "numpy<2". ``python`` is the interpreter of the environments, and ``python_text`` how the user wrote it; None: this
    interpreter. ``yardstick`` says which engines of the same package do not vary, "" if there are none.
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

    def requirements(self, version: str) -> list[str]:
        """The requirements of the environment with a release."""
        return [f"{self.package}=={version}", *self.beside]

    def settings(self, version: str) -> SettingChange:
        """The settings with which the engine uses a release."""
        assert self.spec is not None
        distribution = normalized(self.package)
        return SettingChange(
            release_settings(self.spec.name, distribution, version, beside=self.beside, python=self.python_text)
        )

    def words_of(self, version: str, python: str) -> tuple[str, ...]:
        """The words for a release whose environment has the interpreter ``python``."""
        words = self.words if self._template is None else self._template.with_change(self.settings(version))
        return tuple(word.replace(PYTHON_PLACE, python) for word in words)

    def variables_of(self, version: str, environment: Environment) -> Mapping[str, str | None]:
        """The environment variables to change. A check of the user's takes modules from its environment only."""
        variables = {PYTHON_VARIABLE: str(environment.python), **self.engine_variables(version)}
        return variables if self.is_own_run else {**environment.variables, **variables}

    def engine_variables(self, version: str) -> Mapping[str, str]:
        """The environment variable with the engine and its release; empty if the check has no engine."""
        return {} if self._template is None else {VARIABLE: self._template.changed(self.settings(version)).text}

    def command(
        self, version: str, environment: Environment, default_name: str, timeout: float | None = None
    ) -> CommandCheck:
        """The check with a release. Each run is a new process; ``timeout`` is in seconds."""
        words, variables = self.words_of(version, str(environment.python)), self.variables_of(version, environment)
        return CommandCheck(words, default_name, timeout, environment=variables)

    def by_itself(self) -> ReleaseCheck | None:
        """``biopsy run`` of the varying engine alone, judged against float64; None for any other check."""
        run = parse(self.words)
        if not isinstance(run, OwnRun):
            return None
        numbers = [
            number
            for number, (first, count) in enumerate(run.engine_places)
            if ENGINE_PLACE in run.words[first + count - 1]
        ]
        if len(numbers) != 1 or any(word.partition("=")[0] in _JUDGES for word in run.words):
            return None
        alone = run.with_only_engine(numbers[0]).without_option(LOAD_OUTPUTS)
        return replace(self, words=alone.with_options("--compare-with", "noise").words)

    def as_if_installed(self, evidence: Evidence, version: str) -> Evidence:
        """Evidence that names the engine as if its release were the installed one."""
        if self._template is None:
            return evidence
        return self._template.as_if_unchanged(evidence, self.settings(version))

    @property
    def _template(self) -> CheckTemplate | None:
        return None if self.spec is None else CheckTemplate(self.words, self.spec, is_own_run=self.is_own_run)


def engine_of(package: str) -> str | None:
    """The engine that a distribution provides; None if it provides none."""
    return next(iter(engines_of_distribution(normalized(package))), None)


def requirements_of(package: str, beside: Sequence[str]) -> tuple[str, ...]:
    """The requirements ``beside`` a package. Raises UsageError if one is invalid, or ``package`` is not a mere name."""
    (parsed_package,) = parsed([package])
    name = parsed_package.name
    if parsed_package.text != parsed_package.requirement.name:
        raise errors.UsageError(
            f"{printable(package)!r} is more than the name of a package",
            next_steps=[
                *(f"--package {name} --bad {each.version}" for each in parsed_package.requirement.specifier),
                f"--package {name} --versions RANGE",
            ],
        )
    return tuple(each.text for each in parsed(beside)) if beside else ()


def has_place(words: Sequence[str]) -> bool:
    """Whether the words of a check have a placeholder for a release."""
    return any(place in word for word in words for place in _PLACES)


@dataclass(frozen=True, kw_only=True)
class ReleaseQuestion:
    """A model and the check that it fails. ``default_name`` stands for the model in the words, as ``{}`` does.

    ``weights`` is the folder of its external weights, if not its own. ``timeout`` is in seconds; None: 20 times as long
    as the first run takes, at least 60.
    """

    check: ReleaseCheck
    model: Path
    rules: Rules = field(default_factory=Rules)
    weights: Path | None = None
    default_name: str = "{}"
    timeout: float | None = None

    @cached_property
    def operators(self) -> frozenset[str]:
        """The types of the nodes. Messages that name different ones are different failures."""
        return frozenset(node.op_type for node in index_file(self.model, self.weights).nodes)


_NUMBERS = re.compile(r"\d+(?:\.\d+)+")
_SHOWN = 4
"""How many releases a message names on each side of one that does not exist."""


@dataclass(frozen=True, kw_only=True)
class ReleaseSpan:
    """Releases to try, the oldest first.

    ``start`` is the place of the release to try first, ``end`` that of the one that the user says is good; None if the
    user names none. ``left_out`` are all known releases that ``--versions`` leaves out.
    """

    releases: tuple[Release, ...]
    start: int
    end: int | None = None
    left_out: tuple[Release, ...] = ()

    def left_out_between(self, before: Release, after: Release) -> Iterator[Release]:
        """Those that are left out between two of the releases, the oldest first."""
        low, high = Version(before.version), Version(after.version)
        return (release for release in self.left_out if low < Version(release.version) < high)


@dataclass(frozen=True, kw_only=True)
class NamedReleases:
    """What the user says: a release without the failure, one with it, and which ones to try; None if not said.

    ``versions`` is ``A..B``, releases joined by commas, or a specifier such as ``>=1.20,!=1.23.0``.
    """

    good: str | None = None
    bad: str | None = None
    versions: str | None = None


def span_of(package: str, known: Sequence[Release], named: NamedReleases) -> ReleaseSpan:
    """The releases to try. Raises UsageError for a release that is not among the ``known`` ones."""
    chosen = _chosen(package, known, named.versions)
    left_out = tuple(release for release in known if release not in chosen)
    bad = _installed(package, chosen) if named.bad is None else _place(package, chosen, named.bad)
    if named.good is None:
        return ReleaseSpan(releases=tuple(chosen), start=bad, left_out=left_out)
    good = _place(package, chosen, named.good)
    if good == bad and named.bad is not None:
        raise errors.UsageError(f"--good and --bad are the same release of {package}: {chosen[good].version}")
    if good == bad:  # the installed release is the good one
        bad = len(chosen) - 1
    if good == bad:
        raise errors.UsageError(
            f"{package} {chosen[good].version} is the newest release to try, and --good says it is without the failure",
            next_steps=["--bad VERSION    a release that fails"],
        )
    first, last = sorted((good, bad))
    tried = tuple(chosen[first : last + 1])
    return ReleaseSpan(releases=tried, start=bad - first, end=good - first, left_out=left_out)


def _installed(package: str, chosen: Sequence[Release]) -> int:
    """The place of the installed release; of the newest if none of the ``chosen`` ones is installed."""
    newest = len(chosen) - 1
    try:
        installed = Version(metadata.version(package))
    except (metadata.PackageNotFoundError, InvalidVersion):
        return newest
    return next((place for place, release in enumerate(chosen) if Version(release.version) == installed), newest)


def _chosen(package: str, known: Sequence[Release], versions: str | None) -> Sequence[Release]:
    if not known:
        raise errors.UsageError(
            f"{package} has no release with a wheel for this Python", next_steps=["--python VERSION    another Python"]
        )
    if versions is None:
        return known
    matching = _matching(package, known, versions)
    if not matching:
        raise errors.UsageError(
            f"no release of {package} is in --versions {printable(versions)}; "
            f"there are {known[0].version}, ..., {known[-1].version}"
        )
    return matching


def _matching(package: str, known: Sequence[Release], versions: str) -> list[Release]:
    first, dots, last = versions.partition("..")
    if dots:
        low, high = (_version(text, "--versions") if text.strip() else None for text in (first, last))
        return [
            release
            for release in known
            if (low is None or Version(release.version) >= low) and (high is None or Version(release.version) <= high)
        ]
    if versions.strip()[:1] in "<>=!~":
        try:
            specifiers = SpecifierSet(versions)
        except InvalidSpecifier as error:
            raise errors.UsageError(
                f"--versions {printable(versions)} is not a specifier", next_steps=["--versions '>=1.20,<1.25'"]
            ) from error
        return [release for release in known if specifiers.contains(release.version)]
    places = {_place(package, known, text) for text in versions.replace(",", " ").split()}
    return [known[place] for place in sorted(places)]


def _place(package: str, known: Sequence[Release], text: str) -> int:
    version = _version(text, package)
    for place, release in enumerate(known):
        if Version(release.version) == version:
            return place
    older = [release.version for release in known if Version(release.version) < version]
    newer = [release.version for release in known if Version(release.version) > version]
    raise errors.UsageError(
        f"{package} has no release {printable(text)} with a wheel for this Python among those to try; "
        f"its neighbours: {', '.join([*older[-_SHOWN:], *newer[:_SHOWN]])}"
    )


def _version(text: str, what: str) -> Version:
    try:
        return Version(text.strip())
    except InvalidVersion as error:
        numbers = _NUMBERS.findall(text)
        meant = "--versions " + "..".join(numbers) if len(numbers) == 2 else " ".join(numbers[:1])
        raise errors.UsageError(
            f"{what}: {printable(text)!r} is not a version", next_steps=[meant or "1.20.1    the form of one"]
        ) from error
