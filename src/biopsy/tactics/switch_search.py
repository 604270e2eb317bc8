"""Which settings of an engine switch a failure off: the fewest of them, and of its optimizers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice, product
from math import prod
from pathlib import Path

from biopsy import events
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Outcome
from biopsy.engines.onnxrt.optimizer_names import RULES
from biopsy.search.drive import drive, first_that
from biopsy.search.minimal_subsets import minimal_subsets, shortest
from biopsy.search.subset import minimal_subset
from biopsy.session.machines import tell_of_machines
from biopsy.session.workers import Workers
from biopsy.tactics.flags import Flags, SettingProbe, Switch, runs_ahead
from biopsy.tactics.optimizers import optimizers_of, rules
from biopsy.tactics.setting_changes import CheckTemplate, SettingChange, VariedCheck, changes_to_try, without_optimizers

_MOST_SETS = 12
"""Sets of settings or optimizers that are sought; what is not sought any more is said."""

_MOST_VALUES = 24
"""Choices of a value for each setting that are tried."""

_LEVELS = ("layout", "extended", "basic", "none")  # of onnxrt, from most to least


def find_switches(
    check: VariedCheck,
    model: Path,
    rules: Rules,
    listener: events.Listener = events.ignore,
    weights_folder: Path | None = None,
    workers: Workers | None = None,
) -> Flags:
    """Find the smallest changes of an engine's settings with which a failing check passes.

    Single settings are tried first. Where the optimizer of ONNX Runtime is the switch, the fewest of its optimizers
    are sought; where no single setting is one, the fewest of all settings together. All of the shortest length are
    found. Everything is verified in fresh processes. ``workers`` run the check, as many at once as will be needed; this
    process, one after the other, if they are None. The result is the same.

    Raises OriginalPasses if the check does not fail, CheckError if it cannot be run.
    """
    ahead = None if workers is None else runs_ahead(check, model, workers)
    tell_of_machines(workers, listener)
    probe = SettingProbe(check, model, rules, listener, ahead)
    started = time.monotonic()
    probe.begin()
    found = switches_of(probe, check.template, model, weights_folder)
    listener(events.StageDone(stage="flags", checks=found.checks, seconds=time.monotonic() - started))
    return found


def switches_of(probe: SettingProbe, template: CheckTemplate, model: Path, weights_folder: Path | None) -> Flags:
    """The same for a probe that has seen the failure already."""
    changes = changes_to_try(template.spec)
    probe.foresee(changes)
    for change in changes:
        tried = probe.change(change)
        probe.found = replace(probe.found, tried=(*probe.found.tried, tried))
    gone = [tried.change for tried in probe.found.tried if tried.gone]
    levels = [change for change in gone if "optimization" in change.settings] if template.spec.name == "onnxrt" else []
    particular = _fewest_optimizers(probe, template, model, weights_folder) if levels else []
    gone = [change for change in gone if change not in levels]
    if not particular:  # the level that leaves most as it was first
        gone[:0] = sorted(levels, key=lambda change: _LEVELS.index(change.settings["optimization"]))
    if not gone and not particular:
        gone = _fewest_together(probe)
    switches = sorted([*particular, *map(Switch, gone)], key=lambda switch: switch.size)
    verified = tuple(Switch(one.change, one.optimizers, verified=probe.verified(one.change)) for one in switches)
    return replace(probe.found, switches=verified)


def _fewest_together(probe: SettingProbe) -> list[SettingChange]:
    """All smallest sets of changes that work together only; none if no choice of values does with all of them set."""
    values: dict[str, list[SettingChange]] = {}
    for tried in probe.found.tried:
        if tried.outcome in (Outcome.REPRODUCES, Outcome.UNSTABLE):
            values.setdefault(" ".join([*tried.change.settings, *tried.change.environment]), []).append(tried.change)
    if len(values) < 2:
        return []
    known: dict[str, bool] = {}

    def gone(changes: Sequence[SettingChange]) -> bool:
        whole = _joined(changes)
        if whole.text not in known:
            known[whole.text] = probe.change(whole, "" if len(changes) < len(values) else "all settings together").gone
        return known[whole.text]

    together: dict[str, list[SettingChange]] = {}
    all_found = prod(map(len, values.values())) <= _MOST_VALUES
    for chosen in islice(product(*values.values()), _MOST_VALUES):
        sets, complete = _minimal_sets(chosen, gone)
        all_found = all_found and complete
        for changes in sets:
            together.setdefault(_joined(changes).text, changes)
    probe.found = replace(probe.found, complete=probe.found.complete and all_found)
    return [_joined(changes) for changes in shortest([*together.values()])]


def _minimal_sets(
    changes: Sequence[SettingChange], gone: Callable[[Sequence[SettingChange]], bool]
) -> tuple[list[list[SettingChange]], bool]:
    """The minimal sets of some changes that switch the failure off; and whether these are all."""

    def switch_off(places: Sequence[int]) -> bool:
        return gone([changes[place] for place in places])

    sets, complete = drive(minimal_subsets(range(len(changes)), _MOST_SETS), first_that(switch_off))
    return [[changes[place] for place in places] for places in sets], complete


def _joined(changes: Sequence[SettingChange]) -> SettingChange:
    whole = SettingChange()
    for change in changes:
        whole = whole.joined(change)
    return whole


def _fewest_optimizers(probe: SettingProbe, template: CheckTemplate, model: Path, folder: Path | None) -> list[Switch]:
    """All smallest sets of optimizers that must be off; none if optimizers alone are not the switch."""
    known: dict[frozenset[str], bool] = {}

    def gone(names: Sequence[str]) -> bool:
        if frozenset(names) not in known:
            change = without_optimizers(template.spec, names)
            known[frozenset(names)] = probe.change(change, f"without {', '.join(names)}").gone
        return known[frozenset(names)]

    suspects = _suspects(probe, template, model, folder, gone)
    sets, complete = drive(minimal_subsets(suspects, _MOST_SETS), first_that(gone))
    probe.found = replace(probe.found, complete=complete)
    known_rules = rules(template.spec)
    particular = [_without_rules_that_do_not_matter(names, known_rules, gone) for names in sets]
    different = {frozenset(names): names for names in reversed(particular)}
    return [
        Switch(without_optimizers(template.spec, names), tuple(names))
        for names in shortest([*different.values()][::-1])
    ]


def _suspects(
    probe: SettingProbe,
    template: CheckTemplate,
    model: Path,
    folder: Path | None,
    gone: Callable[[Sequence[str]], bool],
) -> list[str]:
    """Optimizers that together switch the failure off: those that change the model, and those that then do instead.

    Where one is off, another may do its work: so what changes the model is asked again until the failure is gone.
    """
    off: list[str] = []
    while True:
        spec = template.changed(without_optimizers(template.spec, off)) if off else template.spec
        seen = optimizers_of(model, spec, folder)
        if probe.found.optimizers is None:
            probe.found = replace(probe.found, optimizers=seen)
        fresh = [name for name in seen.changed if name not in off]
        if not fresh:
            break
        off += fresh
        if gone(off):
            return off
    ran = probe.found.optimizers.ran if probe.found.optimizers is not None else ()
    everything = list(dict.fromkeys([*off, *ran, *rules(template.spec)]))
    return everything if gone(everything) else []


def _without_rules_that_do_not_matter(
    names: list[str], known: Sequence[str], gone: Callable[[Sequence[str]], bool]
) -> list[str]:
    """A set with all the rules of a level replaced by the few of the ``known`` that matter, if any do."""
    together = [name for name in names if name.endswith(RULES)]
    if not together:
        return names
    rest = [name for name in names if name not in together]
    needed = drive(minimal_subset(known), first_that(lambda some: gone([*some, *rest])))
    return names if needed is None else [*needed, *rest]
