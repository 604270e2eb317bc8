"""Workarounds that leave the model as it is: settings of the engine, and other releases of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from biopsy.checks.outcome import Outcome
from biopsy.tactics.flags import Flags, SettingProbe, Tried
from biopsy.tactics.setting_changes import CheckTemplate
from biopsy.tactics.switch_search import switches_of
from biopsy.workarounds.candidate import Candidate
from biopsy.workarounds.result import TriedChange


def settings(
    probe: SettingProbe, template: CheckTemplate, model: Path, weights_folder: Path | None
) -> tuple[list[Candidate], list[TriedChange]]:
    """The smallest changes of settings with which the check passes; and those with which it does not, or cannot say.

    ``probe`` has seen the failure.
    """
    found: Flags = switches_of(probe, template, model, weights_folder)
    candidates = [Candidate(kind="setting", text=switch.change.text, change=switch.change) for switch in found.switches]
    return candidates, list(_tried(found.tried))


def _tried(tried: Sequence[Tried]) -> Iterator[TriedChange]:
    for one in tried:
        if one.gone:
            continue
        why = "the check still fails" if one.outcome is Outcome.REPRODUCES else f"{one.outcome.value}: {one.reason}"
        yield TriedChange(kind="setting", text=one.change.text, right=False, reason=" ".join(why.split())[:300])
