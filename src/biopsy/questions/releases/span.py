"""Which releases are looked at, and where the search begins: from what a person said of good and bad ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from biopsy import errors
from biopsy.processes.environments.releases import Release
from biopsy.text import printable

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
    if asked.good is None or asked.bad is None:
        return _from_one_end(package, chosen, asked)
    good, bad = (_place(package, chosen, text) for text in (asked.good, asked.bad))
    if good == bad:
        raise errors.UsageError(f"--good and --bad are the same release of {package}: {chosen[good].version}")
    first, last = sorted((good, bad))
    return ReleaseSpan(releases=tuple(chosen[first : last + 1]), start=bad - first, end=good - first)


def _from_one_end(package: str, chosen: Sequence[Release], asked: NamedReleases) -> ReleaseSpan:
    bad = _installed(package, chosen) if asked.bad is None else _place(package, chosen, asked.bad)
    if asked.good is None:
        return ReleaseSpan(releases=tuple(chosen), start=bad)
    good = _place(package, chosen, asked.good)
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
