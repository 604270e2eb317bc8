"""Finding the fewest settings of an engine that switch a failure off."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.checks.judge import UNKNOWN_RATE, MeasuredRate, Rules
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.checks.task import NO_CANDIDATE, Task
from biopsy.comparison.mismatch import COSTS
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
from biopsy.records import plain, plain_of
from biopsy.search.drive import drive, first_that
from biopsy.search.subset import minimal_subsets, shortest
from biopsy.session.machines import tell_of_machines
from biopsy.session.pool import RunsAhead, Workers
from biopsy.session.trial import CheckRuns, cannot_run, steps_after_pass, until_no_pass
from biopsy.text import count, html_table, printable

STAGE = "flags"


@dataclass(frozen=True)
class Tried:
    """A change of settings that was tried, the outcome of the check, and after how many runs."""

    change: SettingChange
    outcome: Outcome
    reason: str
    runs: int

    @property
    def gone(self) -> bool:
        """Whether the check passes."""
        return self.outcome is Outcome.PASSES


@dataclass(frozen=True)
class Switch:
    """A smallest change that makes the failure go away; ``optimizers`` are those that it switches off, if any.

    ``verified``: fresh processes pass with it, and fail without it.
    """

    change: SettingChange
    optimizers: tuple[str, ...] = ()
    verified: bool = False

    @property
    def size(self) -> int:
        """How many optimizers, or settings and variables, are changed."""
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

    ``failure`` is the failure in words, seen in ``failed`` of ``runs`` runs without a change. ``switches`` are the
    smallest changes with which it goes away, the shortest and most specific first; empty if there are none. ``tried``
    are the single changes with their outcomes. ``optimizers`` are those of ONNX Runtime that ran on the model, None if
    they were not looked up. ``checks`` counts all runs of the check. ``complete``: there is no other of
    this kind and length, provided that what helps also helps beside other changes, as in all that was tried.
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
        answer = (
            f"{printable(self.failure)} goes away {printable(self.switches[0].text)}" if self.switches else "no switch"
        )
        others = f", or with {count(len(self.switches) - 1, 'other change')}" if len(self.switches) > 1 else ""
        return f"<Flags: {answer}{others}; {count(self.checks, 'check')}>"

    def _repr_html_(self) -> str:
        rows = [
            (f"goes away {switch.text}", "", "confirmed" if switch.verified else "not confirmed")
            for switch in self.switches
        ]
        rows += [(tried.change.text, tried.outcome.value, tried.reason) for tried in self.tried]
        return html_table(
            f"{self.failure} ({count(self.checks, 'check')})", ["settings", "outcome", "reason"], rows, 40
        )

    def as_json(self) -> dict[str, Any]:
        """The part of the report with these findings."""
        return {
            "failure": self.failure,
            "rate": plain_of(self, "failed runs"),
            "switches": [
                {**plain(switch.change), "optimizers": list(switch.optimizers), "verified": switch.verified}
                for switch in self.switches
            ],
            "complete": self.complete,
            "tried": [
                {**plain(tried.change), "outcome": tried.outcome.value, "reason": tried.reason, "runs": tried.runs}
                for tried in self.tried
            ],
            "optimizers_that_changed_the_model": list(self.optimizers.changed) if self.optimizers else [],
            "checks": self.checks,
        }


class SettingProbe:
    """Runs a check with changed settings, here or through ``ahead``. ``flags`` are the findings so far."""

    def __init__(
        self,
        check: VariedCheck,
        model: Path,
        runs: CheckRuns,
        listener: events.Listener,
        ahead: RunsAhead[SettingChange, Evidence] | None = None,
    ) -> None:
        self.flags = Flags()
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
        """How many runs must pass before a change counts as passing in a search."""
        return self.rate.needed

    @property
    def rate(self) -> MeasuredRate:
        """How often the failure shows without a change, as far as known."""
        return self._runs.rate

    @property
    def is_of_cost(self) -> bool:
        """Whether an engine fails for the time or memory that it needs, so that its outputs are right."""
        return self._runs.failure.reference is not None and self._runs.failure.reference.kind in COSTS

    def once(self, change: SettingChange, description: str, *, cold: bool = False) -> Judged:
        """Run the check once with a change of settings. Raises CheckError if it cannot be started."""
        check = self._check.with_change(change, cold=cold)
        self.flags = replace(self.flags, checks=self._runs.checks + 1)

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
        """Announce changes that will be run soon, so that other machines may begin with them."""
        if self._ahead is not None:
            for change in changes:
                self._ahead.expect(change, times)

    def begin(self) -> None:
        """Run without a change, and measure how often it fails. Raises OriginalPasses, or CheckError if it cannot."""
        as_it_is = SettingChange()
        first = self.once(as_it_is, "the engine as it is set")
        line = self._check.with_change(as_it_is).line(self._model)
        if first.outcome in (Outcome.INFRASTRUCTURE, Outcome.INVALID):
            raise cannot_run(first, line)
        self._take_failure(first)
        if not self._measure(first).failed:
            raise errors.OriginalPasses(
                f"the model does not fail this check as the engine is set ({first.reason}), "
                "so no setting can switch it off",
                model=str(self._model),
                runs=self.rate.runs if first.outcome is Outcome.PASSES else 0,
                next_steps=steps_after_pass(first, line),
            )

    def _take_failure(self, judged: Judged) -> Judged:
        """Compare later failures with this one, if it is the first."""
        if judged.outcome is Outcome.REPRODUCES and not self.flags.failure:
            self._runs.take_failure(judged)
            self.flags = replace(self.flags, failure=judged.reason)
            self._check.expect(judged.evidence.seconds)
        return judged

    def _measure(self, first: Judged, *, is_doubtful: bool = False) -> MeasuredRate:
        """Measure how often the check fails without a change, after a ``first`` run."""
        as_it_is = SettingChange()
        measured = self._runs.measure(
            first,
            lambda why: self._take_failure(self.once(as_it_is, why)),
            lambda times: self.foresee([as_it_is], times),
            is_doubtful=is_doubtful,
        )
        self.flags = replace(self.flags, failed=self.rate.failed, runs=self.rate.runs)
        return measured

    def change(self, change: SettingChange, description: str = "") -> Tried:
        """Try a change: it passes if all ``needed`` runs do."""
        judged, runs = until_no_pass(
            lambda: self.once(change, description or change.text),
            self.needed,
            lambda times: self.foresee([change], times),
        )
        if judged.outcome is not Outcome.PASSES:
            self._forget(change)
        return Tried(change, judged.outcome, judged.reason, runs)

    def fresh(self, change: SettingChange, description: str, passed: int = 1) -> Judged:
        """Run a change in fresh processes until it is proved: the first run that does not pass, or the last.

        ``passed`` runs have passed before. The fresh process that fails without the change (``still_fails``) is proof
        too, and is counted in advance.
        """
        times = self._fresh_runs(passed)
        return until_no_pass(lambda: self.once(change, f"fresh: {description}", cold=True), times)[0]

    def _fresh_runs(self, passed: int) -> int:
        rate = self.rate
        return rate.needed if rate.is_flaky else max(1, rate.with_runs(1, 1).proof - passed)

    def still_fails(self) -> bool:
        """Whether one of the ``needed`` fresh processes fails without any change.

        If none does, although the failure seemed steady, it is measured again.
        """
        for _ in range(self.needed):
            judged = self.once(SettingChange(), "fresh: as it was", cold=True)
            if judged.outcome is Outcome.REPRODUCES:
                return True
        if judged.outcome is Outcome.PASSES and not self.rate.is_flaky:
            self._measure(judged)
        return False

    def verified(self, change: SettingChange) -> bool | None:
        """Whether fresh processes still fail without a change, and pass with it; None if they do not pass."""
        self.foresee([change], self._fresh_runs(1))
        self.foresee([SettingChange()], self.needed)
        passing = self.fresh(change, change.text).outcome is Outcome.PASSES
        failing = self.still_fails()
        if failing and not passing and not self.rate.is_flaky:  # it has passed before: by luck, perhaps
            self._measure(self.once(SettingChange(), "whether it fails every time"), is_doubtful=True)
        self._forget(change, SettingChange())
        return failing if passing else None

    def _forget(self, *changes: SettingChange) -> None:
        if self._ahead is not None:
            for change in changes:
                self._ahead.forget(change)


_MOST_SETS = 12
"""How many sets of settings or optimizers are searched for; if there may be more, ``complete`` is false."""

_MOST_VALUES = 24
"""How many combinations of values are tried for all settings together."""

_LEVELS = ("layout", "extended", "basic", "none")  # of onnxrt, from most to least


def find_switches(
    check: VariedCheck,
    model: Path,
    rules: Rules,
    listener: events.Listener = events.ignore,
    weights_folder: Path | None = None,
    workers: Workers | None = None,
    known: MeasuredRate = UNKNOWN_RATE,
) -> Flags:
    """Find the smallest changes of an engine's settings with which a failing check passes.

    Single settings are tried first. If the optimization level of ONNX Runtime is a switch, the smallest sets of its
    optimizers are searched for; if no single setting is one, the smallest sets of settings. All of the shortest length
    are found, and verified in fresh processes. ``workers`` run several checks at once; without them this process runs
    one after the other. The result is the same. ``known`` is how often the failure showed before.

    Raises OriginalPasses if the check does not fail, CheckError if it cannot be run.
    """
    ahead: RunsAhead[SettingChange, Evidence] | None = None
    if workers is not None:
        runs_elsewhere = workers

        def begin(change: SettingChange) -> Future[Evidence]:
            changed = check.elsewhere(change)
            # a command that names the model itself gets it with the other files that it names
            names_model = not changed.names_candidate and changed.names_file(model)
            return runs_elsewhere.begin(Task(changed, NO_CANDIDATE if names_model else model, None))

        ahead = RunsAhead(begin, lambda change: change.text, workers)
    tell_of_machines(workers, listener)
    runs = CheckRuns(STAGE, rules, listener, known=known)
    probe = SettingProbe(check, model, runs, listener, ahead)
    started = time.monotonic()
    probe.begin()
    flags = switches_of(probe, check.template, model, weights_folder)
    listener(events.StageDone(stage=STAGE, checks=flags.checks, seconds=time.monotonic() - started))
    return flags


def switches_of(probe: SettingProbe, template: CheckTemplate, model: Path, weights_folder: Path | None) -> Flags:
    """``find_switches`` for a probe that has seen the failure already.

    If it turns out to be flaky only when a switch is verified, what passed by then may have been luck: the search is
    repeated.
    """
    was_flaky = probe.rate.is_flaky
    flags = _switches_of(probe, template, model, weights_folder)
    if was_flaky or not probe.rate.is_flaky:
        return flags
    probe.flags = replace(probe.flags, tried=(), complete=True)
    return _switches_of(probe, template, model, weights_folder)


def _switches_of(probe: SettingProbe, template: CheckTemplate, model: Path, weights_folder: Path | None) -> Flags:
    changes = changes_to_try(template.spec)
    probe.foresee(changes)
    for change in changes:
        tried = probe.change(change)
        probe.flags = replace(probe.flags, tried=(*probe.flags.tried, tried))
    gone = [tried.change for tried in probe.flags.tried if tried.gone]
    levels = [change for change in gone if "optimization" in change.settings] if template.spec.name == "onnxrt" else []
    optimizers = _fewest_optimizers(probe, template, model, weights_folder) if levels else []
    gone = [change for change in gone if change not in levels]
    if not optimizers:  # of the levels, the one that keeps most optimizers first
        gone[:0] = sorted(levels, key=lambda change: _LEVELS.index(change.settings["optimization"]))
    if not gone and all(switch.size > 1 for switch in optimizers):
        gone = _fewest_together(probe)
    switches = sorted([*optimizers, *map(Switch, gone)], key=lambda switch: switch.size)
    answers = [(switch, probe.verified(switch.change)) for switch in switches]
    held = tuple(replace(switch, verified=answer) for switch, answer in answers if answer is not None)
    return replace(probe.flags, switches=held, complete=probe.flags.complete and len(held) == len(answers))


def _fewest_together(probe: SettingProbe) -> list[SettingChange]:
    """All smallest sets of changes that work only together; none if even all settings together do not."""
    values: dict[str, list[SettingChange]] = {}
    for tried in probe.flags.tried:
        if tried.outcome in (Outcome.REPRODUCES, Outcome.UNSTABLE):
            values.setdefault(" ".join([*tried.change.settings, *tried.change.environment]), []).append(tried.change)
    if len(values) < 2:
        return []
    known: dict[frozenset[str], bool] = {}

    def gone(by_text: Mapping[str, SettingChange], texts: Sequence[str]) -> bool:
        if frozenset(texts) not in known:
            description = "" if len(texts) < len(values) else "all settings together"
            known[frozenset(texts)] = probe.change(joined(by_text[text] for text in texts), description).gone
        return known[frozenset(texts)]

    together: dict[frozenset[str], list[SettingChange]] = {}
    # a setting with which another failure comes first may help beside others, but would hide what they do
    hidden = {Outcome.OTHER_FAILURE, Outcome.TIMED_OUT, Outcome.INVALID} & {each.outcome for each in probe.flags.tried}
    all_found = prod(map(len, values.values())) <= _MOST_VALUES and not hidden
    for chosen in islice(product(*values.values()), _MOST_VALUES):
        by_text = {change.text: change for change in chosen}
        sets, complete = drive(minimal_subsets(list(by_text), _MOST_SETS), first_that(partial(gone, by_text)))
        all_found = all_found and complete
        for texts in sets:
            together.setdefault(frozenset(texts), [by_text[text] for text in texts])
    all_found = all_found and _is_monotone(known)
    probe.flags = replace(probe.flags, complete=probe.flags.complete and all_found)
    return [joined(changes) for changes in shortest([*together.values()])]


def _is_monotone(known: Mapping[frozenset[str], bool]) -> bool:
    """Whether every set that was tried helps if a part of it does; without that, a search may overlook sets."""
    helping = [names for names, helps in known.items() if helps]
    return not any(part < names for names, helps in known.items() if not helps for part in helping)


def _fewest_optimizers(probe: SettingProbe, template: CheckTemplate, model: Path, folder: Path | None) -> list[Switch]:
    """All smallest sets of optimizers that must be off; none if switching optimizers off does not help."""
    known: dict[frozenset[str], bool] = {}

    def gone(names: Sequence[str]) -> bool:
        if frozenset(names) not in known:
            change = without_optimizers(template.spec, names)
            known[frozenset(names)] = probe.change(change, f"without {', '.join(names)}").gone
        return known[frozenset(names)]

    ran, changed = _suspects(probe, template, model, folder)
    known_rules = rules(template.spec)
    rules_alone = {*known_rules} - {*ran}

    def beside_rules(names: Sequence[str]) -> frozenset[str]:
        return frozenset(name for name in names if name not in rules_alone and not name.endswith(RULES))

    alone = [[name] for name in changed if not name.endswith(RULES) and gone([name])]
    left = [name for name in dict.fromkeys([*changed, *ran, *known_rules]) if [name] not in alone]
    left.sort(key=lambda name: name.endswith(RULES))
    sets, complete = drive(minimal_subsets(left, _MOST_SETS), first_that(gone))
    probe.flags = replace(probe.flags, complete=complete and _is_monotone(known))
    # the rules of a level run as one optimizer, which is named only where the known rules do not explain it
    named = [*alone, *(names for names in sets if not names[-1].endswith(RULES))]
    explained = {*map(beside_rules, named)}
    named += [names for names in sets if names[-1].endswith(RULES) and beside_rules(names) not in explained]
    return [Switch(without_optimizers(template.spec, names), tuple(names)) for names in shortest(named)]


def _suspects(
    probe: SettingProbe, template: CheckTemplate, model: Path, folder: Path | None
) -> tuple[tuple[str, ...], list[str]]:
    """The optimizers that run on the model, and those that change it.

    When one is off, another may do its work, so the optimizers that change the model are looked up again without those
    that are known to, until there are no more.
    """
    off: list[str] = []
    first: Optimizers | None = None
    while True:
        spec = template.changed(without_optimizers(template.spec, off)) if off else template.spec
        optimizers = optimizers_of(model, spec, folder)
        first = first or optimizers
        further = [name for name in optimizers.changed if name not in off]
        if not further:
            probe.flags = replace(probe.flags, optimizers=first)
            return first.ran, off
        off += further
