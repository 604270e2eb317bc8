"""Which settings of an engine switch a failure off: the fewest of them, and of its optimizers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.checks.judge import Rules, judge
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.checks.repetition import interval, runs_needed
from biopsy.checks.signature import Signature, signature_of
from biopsy.search.drive import drive, first_that
from biopsy.search.removal import remove_each
from biopsy.search.rounds import Item, Search
from biopsy.search.subset import minimized
from biopsy.tactics.minimal_sets import minimal_sets, shortest
from biopsy.tactics.optimizers import RULES, Optimizers, optimizers_of, rules
from biopsy.tactics.setting_changes import CheckTemplate, SettingChange, VariedCheck, changes_to_try, without_optimizers

_RUNS_AT_FIRST = 3
_RUNS_TO_MEASURE = 20
_MOST_SETS = 12
"""Sets of settings or optimizers that are sought; what is not sought any more is said."""

_MOST_VALUES = 24
"""Choices of a value for each setting that are tried."""

_LEVELS = ("layout", "extended", "basic", "none")  # of onnxrt, from most to least


@dataclass(frozen=True)
class Tried:
    """What a change of settings did: the outcome of the check, and after how many runs."""

    change: SettingChange
    outcome: Outcome
    reason: str
    runs: int

    @property
    def gone(self) -> bool:
        """Whether the failure went away and nothing else came."""
        return self.outcome is Outcome.PASSES


@dataclass(frozen=True)
class Switch:
    """A smallest change that makes the failure go away. ``optimizers`` are those it switches off, if it is that.

    ``verified``: with it fresh processes pass, and without it they fail.
    """

    change: SettingChange
    optimizers: tuple[str, ...] = ()
    verified: bool = False

    @property
    def size(self) -> int:
        """How many things are changed."""
        return len(self.optimizers) or len(self.change.settings) + len(self.change.environment)

    @property
    def text(self) -> str:
        """Words that follow "it goes away": ``when A and B are disabled``, ``with threads=1``."""
        if not self.optimizers:
            return f"with {self.change.text}"
        names = " and ".join(filter(None, (", ".join(self.optimizers[:-1]), self.optimizers[-1])))
        return f"when {names} {'is' if len(self.optimizers) == 1 else 'are'} disabled"


@dataclass(kw_only=True)
class Flags:
    """What was found. ``switches`` stand in the order of their worth, the shortest and most particular first.

    ``complete``: whether no other of the same length is left.
    """

    failure: str = ""
    switches: list[Switch] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    optimizers: Optimizers | None = None
    checks: int = 0
    failed: int = 0
    runs: int = 0
    complete: bool = True

    def as_json(self) -> dict[str, Any]:
        """The part of the report that tells what was found."""
        return {
            "failure": self.failure,
            "rate": {"failed": self.failed, "runs": self.runs},
            "switches": [
                {**_json_of(one.change), "optimizers": list(one.optimizers), "verified": one.verified}
                for one in self.switches
            ],
            "complete": self.complete,
            "tried": [
                {**_json_of(one.change), "outcome": one.outcome.value, "reason": one.reason, "runs": one.runs}
                for one in self.tried
            ],
            "optimizers_that_changed_the_model": list(self.optimizers.changed) if self.optimizers else [],
            "checks": self.checks,
        }


def _json_of(change: SettingChange) -> dict[str, Mapping[str, str]]:
    return {"settings": change.settings, "environment": change.environment}


class SettingProbe:
    """Runs a check with changed settings, and judges and counts what it says."""

    def __init__(self, check: VariedCheck, model: Path, rules: Rules, listener: events.Listener) -> None:
        self._check = check
        self._template = check.template
        self._model = model
        self._rules = rules
        self._listener = listener
        self.reference: Signature | None = None
        self.needed = 1
        self.found = Flags()

    def once(self, change: SettingChange, description: str, *, cold: bool = False) -> Judged:
        """One run. Raises CheckError if the check cannot be started."""
        check = self._check.with_change(change, cold=cold)
        number, self.found.checks = self.found.checks, self.found.checks + 1
        self._listener(events.Checking(number, "flags", description, 0, 0, check.line(self._model)))
        with self._template.environment(change):
            evidence = self._template.as_if_unchanged(check.run(self._model), change)
        judged = judge(evidence, self._rules, self.reference)
        self._tell(number, judged, evidence)
        return judged

    def _tell(self, number: int, judged: Judged, evidence: Evidence) -> None:
        self._listener(
            events.Checked(
                number=number,
                stage="flags",
                outcome=judged.outcome.value,
                reason=judged.reason,
                nodes=0,
                left=0,
                seconds=evidence.seconds,
                output=evidence.output,
            )
        )

    def begin(self) -> None:
        """See the failure, and how often it shows. Raises OriginalPasses, or CheckError if nothing can be said."""
        nothing = SettingChange()
        answers = [self._first()]
        while len(answers) < _RUNS_AT_FIRST:
            answers.append(self.once(nothing, "the engine as it is set"))
        if any(judged.outcome is not Outcome.REPRODUCES for judged in answers):
            while len(answers) < _RUNS_TO_MEASURE:
                answers.append(self.once(nothing, "how often it fails"))
        failing = [judged for judged in answers if judged.outcome is Outcome.REPRODUCES]
        if not failing:
            raise errors.OriginalPasses(
                "the model does not fail this check as the engine is set, so no setting can switch it off",
                next_steps=[f"run it by hand: {self._line}"],
            )
        self.found.failed, self.found.runs = len(failing), len(answers)
        if len(failing) < len(answers):
            self.needed = runs_needed(interval(len(failing), len(answers), 1.0)[0], 0.99)
            self._listener(events.FlakyFailure(len(failing), len(answers), self.needed, 0.99))

    def _first(self) -> Judged:
        judged = self.once(SettingChange(), "the engine as it is set")
        if judged.outcome in (Outcome.INFRASTRUCTURE, Outcome.INVALID):
            raise errors.CheckError(
                f"the check could not be run: {judged.reason}",
                next_steps=[f"run it by hand: {self._line}"],
            )
        if judged.outcome is Outcome.REPRODUCES:
            self.reference = signature_of(judged.evidence)
            self.found.failure = judged.reason
            self._check.expect(judged.evidence.seconds)
            self._listener(events.OriginalFails(str(self.reference), judged.reason, judged.evidence.seconds))
        return judged

    @property
    def _line(self) -> str:
        return self._check.with_change(SettingChange()).line(self._model)

    def change(self, change: SettingChange, description: str = "") -> Tried:
        """Whether a change makes the failure go away: in every one of the runs that are needed to believe it."""
        for run in range(self.needed):
            judged = self.once(change, description or change.text)
            if judged.outcome is not Outcome.PASSES:
                return Tried(change, judged.outcome, judged.reason, run + 1)
        return Tried(change, Outcome.PASSES, judged.reason, self.needed)

    def verified(self, change: SettingChange) -> bool:
        """Whether fresh processes pass with a change, and still fail without it."""
        passing = all(
            self.once(change, f"fresh: {change.text}", cold=True).outcome is Outcome.PASSES for _ in range(self.needed)
        )
        failing = any(
            self.once(SettingChange(), "fresh: as it was", cold=True).outcome is Outcome.REPRODUCES
            for _ in range(self.needed)
        )
        return passing and failing


def find_switches(
    check: VariedCheck,
    model: Path,
    rules: Rules,
    listener: events.Listener = events.ignore,
    weights_folder: Path | None = None,
) -> Flags:
    """Find the smallest changes of an engine's settings with which a failing check passes.

    Single settings are tried first. Where the optimizer of ONNX Runtime is the switch, the fewest of its optimizers
    are sought; where no single setting is one, the fewest of all settings together. All of the shortest length are
    found. Everything is verified in fresh
    processes. Raises OriginalPasses if the check does not fail, CheckError if it cannot be run.
    """
    probe, template = SettingProbe(check, model, rules, listener), check.template
    started = time.monotonic()
    probe.begin()
    found = probe.found
    for change in changes_to_try(template.spec):
        found.tried.append(probe.change(change))
    gone = [tried.change for tried in found.tried if tried.gone]
    levels = [change for change in gone if "optimization" in change.settings] if template.spec.name == "onnxrt" else []
    particular = _fewest_optimizers(probe, template, model, weights_folder) if levels else []
    gone = [change for change in gone if change not in levels]
    if not particular:  # the level that leaves most as it was first
        gone[:0] = sorted(levels, key=lambda change: _LEVELS.index(change.settings["optimization"]))
    if not gone and not particular:
        gone = _fewest_together(probe)
    switches = sorted([*particular, *map(Switch, gone)], key=lambda switch: switch.size)
    found.switches = [Switch(one.change, one.optimizers, verified=probe.verified(one.change)) for one in switches]
    listener(events.StageDone("flags", 0, 0, found.checks, time.monotonic() - started))
    return found


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

    found: dict[str, list[SettingChange]] = {}
    for chosen in islice(product(*values.values()), _MOST_VALUES):
        sets, complete = minimal_sets(range(len(chosen)), _places(chosen, gone), _MOST_SETS)
        probe.found.complete = probe.found.complete and complete
        for places in sets:
            together = [chosen[place] for place in places]
            found.setdefault(_joined(together).text, together)
    probe.found.complete = probe.found.complete and prod(map(len, values.values())) <= _MOST_VALUES
    return [_joined(together) for together in shortest([*found.values()])]


def _places(
    items: Sequence[Item], gone: Callable[[Sequence[Item]], bool]
) -> Callable[[Sequence[int]], list[int] | None]:
    """Finds, among the places of some items, those of a smallest set that switches the failure off."""

    def are_enough(places: Sequence[int]) -> bool:
        return gone([items[place] for place in places])

    return lambda places: _search(places, are_enough) if places and are_enough(places) else None


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

    def one_of(names: Sequence[str]) -> list[str] | None:
        return _search(names, gone) if names and gone(names) else None

    suspects = _suspects(probe, template, model, folder, gone)
    sets, probe.found.complete = minimal_sets(suspects, one_of, _MOST_SETS)
    told = [_without_rules_that_do_not_matter(names, gone) for names in sets]
    different = {frozenset(names): names for names in reversed(told)}
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
            probe.found.optimizers = seen
        fresh = [name for name in seen.changed if name not in off]
        if not fresh:
            break
        off += fresh
        if gone(off):
            return off
    everything = list(dict.fromkeys([*off, *(probe.found.optimizers.ran), *rules()]))
    return everything if gone(everything) else []


def _without_rules_that_do_not_matter(names: list[str], gone: Callable[[Sequence[str]], bool]) -> list[str]:
    """The same set with all the rules of a level replaced by the few that matter, if they can be named."""
    together = [name for name in names if name.endswith(RULES)]
    if not together:
        return names
    rest = [name for name in names if name not in together]
    single = rules()
    if not gone([*single, *rest]):
        return names
    few = _search(single, lambda some: gone([*some, *rest]))
    return [*few, *rest]


def _search(items: Sequence[Item], gone: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """A small subset that still makes the failure go away, from which no single one can be left out."""
    needed = minimized(items, gone)
    removal: Search[list[Item], list[Item], list[Item]] = remove_each(needed, needed, list)
    return drive(removal, first_that(gone))
