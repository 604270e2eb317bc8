"""Releases of a distribution that can be installed for an interpreter, and why another one cannot."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.environments.index import IndexRefuses, Wheel, wheels_of
from biopsy.environments.interpreter import Interpreter, interpreter_of
from biopsy.environments.requirements import WantedPackage, pinned
from biopsy.environments.sources import Sources, configured
from biopsy.text import first_of, printable, series, shortened

if TYPE_CHECKING:
    from packaging.version import Version


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release: its ``version``, such as "1.20.1", and the day of its first wheel; None where no index tells that."""

    version: str
    date: datetime.date | None


def releases(
    distribution: str, *, python: Interpreter | None = None, sources: Sources | None = None, pre_releases: bool = False
) -> list[Release]:
    """The releases of a distribution that have a wheel for an interpreter and were not yanked, the oldest first.

    ``python``: this interpreter if it is None. ``sources``: those that are configured. Pre-releases only if they are
    asked for.

    Raises CannotInstall: "no such release" if nobody knows the distribution, "no wheel" if no release has one that
    fits, "network" if an index does not answer; and BiopsyError if a package that this needs is missing.
    """
    interpreter = interpreter_of() if python is None else python
    wheels = wheels_of(distribution, configured() if sources is None else sources)
    usable = [wheel for wheel in wheels if wheel.yanked is None and wheel.fits(interpreter)]
    found = [
        Release(version=str(version), date=_day(wheel for wheel in usable if wheel.version == version))
        for version in sorted({wheel.version for wheel in usable})
        if pre_releases or not version.is_prerelease
    ]
    if not found:
        raise errors.CannotInstall(
            f"no release of {printable(distribution)} has a wheel for Python {interpreter.series} on this machine",
            kind="no wheel",
            next_steps=_other_pythons(wheels, interpreter),
        )
    return found


def available(wanted: Sequence[WantedPackage], interpreter: Interpreter, sources: Sources) -> tuple[str, ...]:
    """The requirements as an installer is told them, if there are releases that can be installed.

    ``==1.0`` allows 1.0+cpu, and installers prefer that: builds of a release that nobody has asked for are excluded if
    there is one without a name of its own. Raises CannotInstall if no release that is asked for can be installed: as
    ``releases`` does, or it was yanked. Where an index wants a password that only the installer knows to get, nothing
    is known here.
    """
    return tuple(_available(each, interpreter, sources) for each in wanted)


def _available(wanted: WantedPackage, interpreter: Interpreter, sources: Sources) -> str:
    try:
        wheels = wheels_of(wanted.name, sources)
    except IndexRefuses:
        return wanted.text
    _require(wanted, wheels, interpreter)
    version = pinned(wanted)
    exact = [each for each in wheels if each.version == version and each.yanked is None and each.fits(interpreter)]
    others = {each.version for each in wheels if version is not None and _is_build_of(each.version, version)}
    if not exact or not others or "===" in wanted.text:
        return wanted.text
    excluded = [f"!={each}" for each in sorted(others)]
    from packaging.specifiers import SpecifierSet

    requirement = copy(wanted.requirement)
    requirement.specifier = requirement.specifier & SpecifierSet(",".join(excluded))
    return str(requirement)


def _is_build_of(version: Version, release: Version) -> bool:
    """Whether a version is another build of a release: of the same number, with a name of its own."""
    return release.local is None and version.local is not None and version.public == release.public


def _require(wanted: WantedPackage, wheels: Sequence[Wheel], interpreter: Interpreter) -> None:
    allowed = [wheel for wheel in wheels if wanted.requirement.specifier.contains(wheel.version, prereleases=True)]
    fitting = [wheel for wheel in allowed if wheel.fits(interpreter)]
    if any(wheel.yanked is None for wheel in fitting):
        return
    others = sorted({wheel.version for wheel in wheels if wheel.yanked is None and wheel.fits(interpreter)})
    neighbours = [f"{wanted.name}=={each}" for each in _nearest(others, wanted)]
    if fitting:
        reasons = sorted({wheel.yanked for wheel in fitting if wheel.yanked})
        why = f": {printable(shortened(reasons[0], 200))}" if reasons else ", it is not said why"
        raise errors.CannotInstall(
            f"{wanted.text} was yanked by its authors{why}", kind="yanked", next_steps=neighbours
        )
    if allowed:
        raise errors.CannotInstall(
            f"{wanted.text} has no wheel for Python {interpreter.series} on this machine",
            kind="no wheel",
            details=_what_there_is(allowed, interpreter),
            next_steps=[*_other_pythons(allowed, interpreter), *neighbours],
        )
    raise errors.CannotInstall(
        f"there is no release {wanted.text} with a wheel", kind="no such release", next_steps=neighbours
    )


def _day(wheels: Iterable[Wheel]) -> datetime.date | None:
    return min((wheel.uploaded.date() for wheel in wheels if wheel.uploaded is not None), default=None)


def _nearest(versions: Sequence[Version], wanted: WantedPackage) -> list[Version]:
    """The version before the one asked for, and the one after it; else the newest."""
    version = pinned(wanted)
    if version is None:
        return list(versions[-1:])
    return [each for each in versions if each < version][-1:] + [each for each in versions if each > version][:1]


def _what_there_is(wheels: Iterable[Wheel], interpreter: Interpreter) -> list[str]:
    """A line that names the versions of Python that there are wheels for on this machine, or the other machines."""
    tags = {tag for wheel in wheels for tag in wheel.tags}
    minors = _minors(tags, interpreter)
    if minors:
        return [f"on this machine its wheels are for Python {series([f'3.{minor}' for minor in minors])}"]
    platforms = sorted({tag.rpartition("-")[2] for tag in tags})
    return [f"its wheels are for {first_of(platforms, 6)}"]


def _other_pythons(wheels: Iterable[Wheel], interpreter: Interpreter) -> list[str]:
    """``--python 3.9`` if there are wheels for that on this machine, and none for newer ones."""
    minors = _minors({tag for wheel in wheels for tag in wheel.tags}, interpreter)
    return [f"--python 3.{minors[-1]}    if there is one on this machine"] if minors else []


def _minors(tags: Iterable[str], interpreter: Interpreter) -> list[int]:
    """The second parts of the versions of Python that tags of wheels are for, on the platform of an interpreter."""
    platforms = {tag.rpartition("-")[2] for tag in interpreter.tags}
    pythons = {tag.split("-")[0] for tag in tags if tag.rpartition("-")[2] in platforms}
    return sorted(int(python[3:]) for python in pythons if python.startswith("cp3") and python[3:].isdecimal())
