"""What switching settings of an engine does to a failing check: each change is run, judged and counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.judge import Rules, judge
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.checks.repetition import measured_rate
from biopsy.checks.signature import Signature, signature_of
from biopsy.checks.task import NO_CANDIDATE, Task
from biopsy.quantities import count
from biopsy.session.runs_ahead import RunsAhead
from biopsy.session.workers import Workers
from biopsy.tactics.optimizers import Optimizers
from biopsy.tactics.setting_changes import SettingChange, VariedCheck
from biopsy.text import html_table, printable


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


def runs_ahead(check: VariedCheck, model: Path, workers: Workers) -> RunsAhead[SettingChange, Evidence]:
    """Runs of a check of ``model`` with changed settings. Each is a process of its own."""

    def begin(change: SettingChange) -> Future[Evidence]:
        changed = check.elsewhere(change)
        # The words may name the model instead of a place for it; then it goes with the other files that they name.
        named = not changed.names_candidate and changed.names_file(model)
        return workers.begin(Task(changed, NO_CANDIDATE if named else model, None))

    return RunsAhead(begin, lambda change: change.text, workers)


class SettingProbe:
    """Runs a check with changed settings, and judges and counts what it says: here, or where ``ahead`` runs it."""

    def __init__(
        self,
        check: VariedCheck,
        model: Path,
        rules: Rules,
        listener: events.Listener,
        ahead: RunsAhead[SettingChange, Evidence] | None = None,
    ) -> None:
        self._check = check
        self._template = check.template
        self._model = model
        self._rules = rules
        self._listener = listener
        self._ahead = ahead
        self.reference: Signature | None = None
        self.needed = 1
        self.found = Flags()

    def once(self, change: SettingChange, description: str, *, cold: bool = False) -> Judged:
        """One run. Raises CheckError if the check cannot be started."""
        check = self._check.with_change(change, cold=cold)
        number = self.found.checks
        self.found = replace(self.found, checks=number + 1)
        line = check.line(self._model)
        self._listener(events.Checking(number=number, stage="flags", description=description, line=line))
        evidence = self._template.as_if_unchanged(self._evidence(check, change), change)
        if evidence.remark:
            self._listener(events.Remark(evidence.remark))
        judged = judge(evidence, self._rules, self.reference)
        self._listener(judged.event(number, "flags"))
        return judged

    def _evidence(self, check: CommandCheck, change: SettingChange) -> Evidence:
        if self._ahead is not None:
            return self._ahead.found(change)[1]
        with self._template.environment(change):
            return check.run(self._model)

    def foresee(self, changes: Iterable[SettingChange], times: int = 1) -> None:
        """Say what will be asked for soon, so that other machines may begin with it."""
        if self._ahead is not None:
            for change in changes:
                self._ahead.expect(change, times)

    def begin(self) -> None:
        """See the failure, and how often it shows. Raises OriginalPasses, or CheckError if nothing can be said."""
        first = self._first()
        as_it_is = SettingChange()
        rate = measured_rate(
            first, lambda why: self.once(as_it_is, why), expect=lambda runs: self.foresee([as_it_is], runs)
        )
        if not rate.failed:
            raise errors.OriginalPasses(
                f"the model does not fail this check as the engine is set ({first.reason}), "
                "so no setting can switch it off",
                next_steps=[f"run it by hand: {self._line}"],
            )
        self.found = replace(self.found, failed=rate.failed, runs=rate.runs)
        if rate.failed < rate.runs:
            self.needed = rate.needed
            self._listener(events.FlakyFailure(rate.failed, rate.runs, rate.needed, 0.99))

    def _first(self) -> Judged:
        judged = self.once(SettingChange(), "the engine as it is set")
        if judged.outcome in (Outcome.INFRASTRUCTURE, Outcome.INVALID):
            raise errors.CheckError(
                f"the check could not be run: {judged.reason}",
                next_steps=[f"run it by hand: {self._line}"],
            )
        if judged.outcome is Outcome.REPRODUCES:
            self.reference = signature_of(judged.evidence)
            self.found = replace(self.found, failure=judged.reason)
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
                self._forget(change)
                return Tried(change, judged.outcome, judged.reason, run + 1)
            if run == 0:
                self.foresee([change], self.needed - 1)
        return Tried(change, Outcome.PASSES, judged.reason, self.needed)

    def verified(self, change: SettingChange) -> bool:
        """Whether fresh processes pass with a change, and still fail without it."""
        self.foresee([change, SettingChange()], self.needed)
        passing = all(
            self.once(change, f"fresh: {change.text}", cold=True).outcome is Outcome.PASSES for _ in range(self.needed)
        )
        failing = any(
            self.once(SettingChange(), "fresh: as it was", cold=True).outcome is Outcome.REPRODUCES
            for _ in range(self.needed)
        )
        self._forget(change, SettingChange())
        return passing and failing

    def _forget(self, *changes: SettingChange) -> None:
        if self._ahead is not None:
            for change in changes:
                self._ahead.forget(change)
