"""What switching settings of an engine does to a failing check, and the fewest of them that switch the failure off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.checks.task import NO_CANDIDATE, Task
from biopsy.engines.onnxrt_optimizers import RULES
from biopsy.questions.builds.optimizers import Optimizers, optimizers_of, rules
from biopsy.questions.builds.settings import (
    CheckTemplate,
    SettingChange,
    VariedCheck,
    changes_to_try,
    joined,
    without_optimizers,
)
from biopsy.records import plain
from biopsy.search.drive import drive, first_that
from biopsy.search.subset import minimal_subset, minimal_subsets, shortest
from biopsy.session.machines import tell_of_machines
from biopsy.session.pool import RunsAhead, Workers
from biopsy.session.trial import CheckRuns, cannot_run, until_no_pass
from biopsy.text import count, html_table, printable

STAGE = "flags"


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


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What switches a failure off.

    ``failure`` is the failure in words, seen in ``failed`` of ``runs`` runs of the engine as it is set. ``switches``
    are the smallest changes with which it goes away, the shortest and most particular first; none if nothing that was
    tried does. ``tried`` are the single changes, with what each did. ``optimizers`` are those of ONNX Runtime that ran
    on the model, where that was asked. ``checks`` counts all runs of the check. ``complete``: whether no other switch
    of the same length is left.
    """

    failure: str = ""
    switches: tuple[Switch, ...] = ()
    tried: tuple[Tried, ...] = ()
    optimizers: Optimizers | None = None
    checks: int = 0
    failed: int = 0
    runs: int = 0
    complete: bool = True

    def __repr__(self) -> str:
        found = (
            f"{printable(self.failure)} goes away {printable(self.switches[0].text)}" if self.switches else "no switch"
        )
        others = f", or with {count(len(self.switches) - 1, 'other change')}" if len(self.switches) > 1 else ""
        return f"<Flags: {found}{others}; {count(self.checks, 'check')}>"

    def _repr_html_(self) -> str:
        rows = [
            (f"goes away {one.text}", "", "confirmed" if one.verified else "not confirmed") for one in self.switches
        ]
        rows += [(one.change.text, one.outcome.value, one.reason) for one in self.tried]
        return html_table(
            f"{self.failure} ({count(self.checks, 'check')})", ["settings", "outcome", "reason"], rows, 40
        )

    def as_json(self) -> dict[str, Any]:
        """The part of the report that tells what was found."""
        return {
            "failure": self.failure,
            "rate": {"failed": self.failed, "runs": self.runs},
            "switches": [
                {**plain(one.change), "optimizers": list(one.optimizers), "verified": one.verified}
                for one in self.switches
            ],
            "complete": self.complete,
            "tried": [
                {**plain(one.change), "outcome": one.outcome.value, "reason": one.reason, "runs": one.runs}
                for one in self.tried
            ],
            "optimizers_that_changed_the_model": list(self.optimizers.changed) if self.optimizers else [],
            "checks": self.checks,
        }


class SettingProbe:
    """Runs a check with changed settings: here, or where ``ahead`` runs it. ``found`` is what is known by now."""

    def __init__(
        self,
        check: VariedCheck,
        model: Path,
        runs: CheckRuns,
        listener: events.Listener,
        ahead: RunsAhead[SettingChange, Evidence] | None = None,
    ) -> None:
        self.found = Flags()
        self._check = check
        self._model = model
        self._runs = runs
        self._listener = listener
        self._ahead = ahead

    def on(self, model: Path) -> SettingProbe:
        """A probe of another model, which knows the failure of this one."""
        return SettingProbe(self._check, model, self._runs.on_another_model(), self._listener)

    @property
    def needed(self) -> int:
        """How many runs that pass make a pass."""
        return self._runs.rate.needed

    def once(self, change: SettingChange, description: str, *, cold: bool = False) -> Judged:
        """One run. Raises CheckError if the check cannot be started."""
        check = self._check.with_change(change, cold=cold)
        self.found = replace(self.found, checks=self._runs.checks + 1)

        def run() -> Evidence:
            if self._ahead is not None:
                evidence = self._ahead.result(change)[1]
            else:
                with self._check.template.environment(change):
                    evidence = check.run(self._model)
            if evidence.remark:
                self._listener(events.Remark(evidence.remark))
            return self._check.template.as_if_unchanged(evidence, change)

        return self._runs.once(run, line=check.line(self._model), description=description)

    def foresee(self, changes: Iterable[SettingChange], times: int = 1) -> None:
        """Say what will be asked for soon, so that other machines may begin with it."""
        if self._ahead is not None:
            for change in changes:
                self._ahead.expect(change, times)

    def begin(self) -> None:
        """See the failure, and how often it shows. Raises OriginalPasses, or CheckError if nothing can be said."""
        as_it_is = SettingChange()
        first = self.once(as_it_is, "the engine as it is set")
        line = self._check.with_change(as_it_is).line(self._model)
        if first.outcome in (Outcome.INFRASTRUCTURE, Outcome.INVALID):
            raise cannot_run(first, line)
        if first.outcome is Outcome.REPRODUCES:
            self._runs.take_failure(first)
            self.found = replace(self.found, failure=first.reason)
            self._check.expect(first.evidence.seconds)
        rate = self._runs.measure(
            first, lambda why: self.once(as_it_is, why), lambda times: self.foresee([as_it_is], times)
        )
        if not rate.failed:
            raise errors.OriginalPasses(
                f"the model does not fail this check as the engine is set ({first.reason}), "
                "so no setting can switch it off",
                next_steps=[f"run it by hand: {line}"],
            )
        self.found = replace(self.found, failed=rate.failed, runs=rate.runs)

    def change(self, change: SettingChange, description: str = "") -> Tried:
        """Whether a change makes the failure go away: in every one of the runs that are needed to believe it."""
        judged, runs = until_no_pass(
            lambda: self.once(change, description or change.text),
            self.needed,
            lambda times: self.foresee([change], times),
        )
        if judged.outcome is not Outcome.PASSES:
            self._forget(change)
        return Tried(change, judged.outcome, judged.reason, runs)

    def fresh(self, change: SettingChange, description: str) -> Judged:
        """What fresh processes say of a change: the first that does not pass, or the last of those that are needed."""
        return until_no_pass(lambda: self.once(change, f"fresh: {description}", cold=True), self.needed)[0]

    def still_fails(self) -> bool:
        """Whether one of the fresh processes that are needed fails without any change."""
        runs = (self.once(SettingChange(), "fresh: as it was", cold=True) for _ in range(self.needed))
        return any(judged.outcome is Outcome.REPRODUCES for judged in runs)

    def verified(self, change: SettingChange) -> bool:
        """Whether fresh processes pass with a change, and still fail without it."""
        self.foresee([change, SettingChange()], self.needed)
        passing = self.fresh(change, change.text).outcome is Outcome.PASSES
        failing = self.still_fails()
        self._forget(change, SettingChange())
        return passing and failing

    def _forget(self, *changes: SettingChange) -> None:
        if self._ahead is not None:
            for change in changes:
                self._ahead.forget(change)


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
    ahead: RunsAhead[SettingChange, Evidence] | None = None
    if workers is not None:
        runs_elsewhere = workers

        def begin(change: SettingChange) -> Future[Evidence]:
            """A run with changed settings, in a process of its own."""
            changed = check.elsewhere(change)
            # The words may name the model instead of a place for it; then it goes with the other files that they name.
            named = not changed.names_candidate and changed.names_file(model)
            return runs_elsewhere.begin(Task(changed, NO_CANDIDATE if named else model, None))

        ahead = RunsAhead(begin, lambda change: change.text, workers)
    tell_of_machines(workers, listener)
    probe = SettingProbe(check, model, CheckRuns(STAGE, rules, listener), listener, ahead)
    started = time.monotonic()
    probe.begin()
    found = switches_of(probe, check.template, model, weights_folder)
    listener(events.StageDone(stage=STAGE, checks=found.checks, seconds=time.monotonic() - started))
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
        whole = joined(changes)
        if whole.text not in known:
            known[whole.text] = probe.change(whole, "" if len(changes) < len(values) else "all settings together").gone
        return known[whole.text]

    def switch_off(by_text: Mapping[str, SettingChange], texts: Sequence[str]) -> bool:
        return gone([by_text[text] for text in texts])

    together: dict[str, list[SettingChange]] = {}
    all_found = prod(map(len, values.values())) <= _MOST_VALUES
    for chosen in islice(product(*values.values()), _MOST_VALUES):
        by_text = {change.text: change for change in chosen}
        sets, complete = drive(minimal_subsets(list(by_text), _MOST_SETS), first_that(partial(switch_off, by_text)))
        all_found = all_found and complete
        for texts in sets:
            changes = [by_text[text] for text in texts]
            together.setdefault(joined(changes).text, changes)
    probe.found = replace(probe.found, complete=probe.found.complete and all_found)
    return [joined(changes) for changes in shortest([*together.values()])]


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
