"""Workarounds that leave the model as it is: settings of the engine, and other releases of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy.checks.outcome import Outcome
from biopsy.engines.other_release.release import RELEASE
from biopsy.engines.registry import EngineSpec, find_class, release_now, release_settings
from biopsy.tactics.flags import SettingProbe, Tried
from biopsy.tactics.setting_changes import CheckTemplate, SettingChange
from biopsy.tactics.switch_search import switches_of
from biopsy.workarounds.candidate import ChangeCandidate
from biopsy.workarounds.result import TriedChange

if TYPE_CHECKING:
    from packaging.version import Version


def settings_that_pass(
    probe: SettingProbe, template: CheckTemplate, model: Path, weights_folder: Path | None
) -> list[ChangeCandidate]:
    """The smallest changes of settings with which the check passes. ``probe`` has seen the failure."""
    found = switches_of(probe, template, model, weights_folder)
    return [setting_candidate(switch.change) for switch in found.switches]


def setting_candidate(change: SettingChange) -> ChangeCandidate:
    """A change of settings as what may be a workaround."""
    return ChangeCandidate(kind="setting", text=change.text, change=change)


def refused(tried: Sequence[Tried]) -> Iterator[TriedChange]:
    """The changes of settings with which the check does not pass, or cannot say."""
    for one in tried:
        if one.gone:
            continue
        why = "the check still fails" if one.outcome is Outcome.REPRODUCES else f"{one.outcome.value}: {one.reason}"
        yield TriedChange(kind="setting", text=one.change.text, right=False, reason=" ".join(why.split())[:300])


# Releases

_OLDER = (1, 2, 4, 8)
"""Minor releases back that are tried: near ones first, and some so old that a regression may be younger."""


def releases_to_try(spec: EngineSpec) -> list[ChangeCandidate]:
    """The newest release, and the last ones of some older minor releases, near ones first.

    None for an engine that cannot be run from another release. Raises CannotInstall if the package index cannot be
    asked, EngineMissing if the engine is not installed.
    """
    from packaging.version import InvalidVersion, Version

    from biopsy.environments.interpreter import interpreter_of
    from biopsy.environments.releases import releases

    distributions = find_class(spec.name).distributions
    asked = spec.settings.get(RELEASE) or ""
    if not distributions or (spec.settings.get("python") and not asked):
        return []
    distribution = asked.rpartition("==")[0] or distributions[0]
    try:
        now = Version(release_now(spec))
    except InvalidVersion:
        return []
    known = [
        Version(each.version) for each in releases(distribution, python=interpreter_of(spec.settings.get("python")))
    ]
    newer = [max(known)] if known and max(known) > now else []
    return [
        ChangeCandidate(
            kind="release",
            text=f"{distribution} {version}",
            change=SettingChange(release_settings(spec.name, distribution, str(version))),
        )
        for version in [*newer, *_older(known, now)]
    ]


def _older(known: Sequence[Version], now: Version) -> list[Version]:
    """The last release of the minor releases before one, as many back as ``_OLDER`` says."""
    last: dict[tuple[int, ...], Version] = {}
    for version in sorted(known):
        if version.release[:2] < now.release[:2]:
            last[version.release[:2]] = version
    back = list(last.values())[::-1]
    return [back[number - 1] for number in _OLDER if number <= len(back)]
