"""Builds one after the other, each with its choices recorded and its result checked and sorted."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from biopsy import errors, events
from biopsy.checks.artifacts import Artifacts, write_iteration
from biopsy.checks.interactive import UndoError
from biopsy.checks.judge import Rules, judge
from biopsy.checks.outcome import Check, Evidence, Judged, Outcome
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EngineSpec, class_of, find_class
from biopsy.isolation.cleanup import take_what_stands_at
from biopsy.tactics.builder import Builder, Built, Order
from biopsy.tactics.difference import Build, build_of
from biopsy.tactics.record import TacticRecord, write_record
from biopsy.tactics.setting_changes import CheckTemplate, SettingChange
from biopsy.tactics.variations import Drawn, VariedSetting, changes
from biopsy.text import first_line

_OUTCOMES = {Outcome.PASSES: "good", Outcome.REPRODUCES: "bad"}

Until = int | Literal["good", "bad"]


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """What to build, how often, and what to leave where; see the options of ``biopsy debug build``.

    ``artifact`` is where the engine saves what it has built; None if it cannot, and the check then gets the model.
    ``checks_building``: a build that fails is the failure, and nothing else is checked. ``seed`` is that of the order.
    """

    model: ModelInput
    spec: EngineSpec
    until: Until
    artifact: Path | None = None
    variations: Sequence[VariedSetting] = ()
    seed: int = 0
    record: Path | None = None
    artifacts: Artifacts = field(default_factory=Artifacts)
    info: Path | None = None
    rules: Rules = field(default_factory=Rules)
    build_timeout: float | None = None
    checks_building: bool = False


@dataclass(frozen=True)
class BuildIteration:
    """One build and what was said of it."""

    number: int
    drawn: Drawn
    built: Built
    judged: Judged

    @property
    def change(self) -> SettingChange:
        """The settings that were built with."""
        return self.drawn.change


@dataclass
class BuildTally:
    """What many builds add up to. ``builds`` are the good and bad ones, with their choices."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    builds: list[Build] = field(default_factory=list)
    version: str = ""

    @property
    def runs(self) -> int:
        """How many builds were made."""
        return self.outcomes.total()


CheckFor = Callable[[SettingChange], Check]
"""Gives the check for a build with a change: its words may name the engine."""


def build_repeatedly(
    plan: BuildPlan, check_for: CheckFor, tally: BuildTally, listener: events.Listener = events.ignore
) -> Generator[BuildIteration, None, None]:
    """Build, check and sort as often as the plan says; yields each iteration when it is over.

    A build that fails is INVALID, unless building is what is checked. Raises CheckError if a check cannot be run, and
    what ``Builder.build`` raises.
    """
    digest = hashlib.sha256(plan.model.data).hexdigest()
    last = {"good": Outcome.PASSES, "bad": Outcome.REPRODUCES}.get(str(plan.until))
    order = changes(plan.variations, plan.seed, plan.until if isinstance(plan.until, int) else None)
    with Builder(plan.model, plan.build_timeout) as builder:
        building = _Building(
            plan=plan, builder=builder, check_for=check_for, listener=listener, digest=digest, tally=tally
        )
        for number, drawn in enumerate(order):
            iteration = building.iterate(number, drawn)
            yield iteration
            if iteration.judged.outcome is last:
                return


@dataclass(frozen=True, kw_only=True)
class _Building:
    """What every build of a plan needs: who builds, who checks, who listens, and what is counted."""

    plan: BuildPlan
    builder: Builder
    check_for: CheckFor
    listener: events.Listener
    digest: str
    tally: BuildTally

    def iterate(self, number: int, drawn: Drawn) -> BuildIteration:
        """Build once with what was drawn, and check what was built."""
        plan, change = self.plan, drawn.change
        spec = CheckTemplate((), plan.spec).changed(change)
        if plan.info is not None:
            write_iteration(plan.info, number)
        check = self.check_for(change)
        candidate = plan.artifact or plan.model.path or Path()
        self.listener(
            events.Checking(
                number=number,
                stage="build",
                description=change.text or spec.text,
                line=check.line(candidate),
            )
        )
        built = self.builder.build(Order(spec.text, change.environment, plan.artifact))
        if plan.artifact is not None:
            take_what_stands_at(plan.artifact)
        record = self._record(number, drawn, spec, built)
        judged = _judged(plan, change, built, check, candidate)
        self.listener(judged.event(number, "build"))
        if judged.outcome is Outcome.INFRASTRUCTURE:
            raise errors.CheckError(
                f"the check could not be run: {judged.reason}",
                kept=f"nothing was concluded from iteration {number}",
                next_steps=[f"run it by hand: {check.line(candidate)}"],
            )
        self._keep(record, judged)
        return BuildIteration(number, drawn, built, judged)

    def _record(self, number: int, drawn: Drawn, spec: EngineSpec, built: Built) -> TacticRecord:
        """The record of a build, written before it is checked: the check may want to look at it."""
        record = _record_of(self.plan, number, drawn, spec, built, digest=self.digest)
        if self.plan.record is not None:
            write_record(record, self.plan.record)
        return record

    def _keep(self, record: TacticRecord, judged: Judged) -> None:
        """Write the record again with what the check said, count it, and sort the artifacts."""
        plan, number = self.plan, record.iteration
        assert number is not None
        record = replace(record, outcome=_OUTCOMES.get(judged.outcome, "other"))
        if plan.record is not None:
            write_record(record, plan.record)
        _count(record, judged, self.tally)
        for missing in plan.artifacts.sort(judged.outcome, number, ""):
            self.listener(events.Remark(f"the artifact {missing} was not there after iteration {number}"))


def _record_of(
    plan: BuildPlan, number: int, drawn: Drawn, spec: EngineSpec, built: Built, *, digest: str
) -> TacticRecord:
    devices = {layer.device for layer in built.layers}
    version = built.version
    if not version:
        with contextlib.suppress(errors.BiopsyError):
            version = class_of(spec).version()
    return TacticRecord(
        engine=spec.name,
        version=version,
        device=devices.pop() if len(devices) == 1 else "",
        model=str(plan.model.path or ""),
        model_digest=digest,
        settings={key: "true" if value is None else value for key, value in spec.settings.items()},
        environment=drawn.change.environment,
        varied=tuple(variation.key for variation in plan.variations),
        iteration=number,
        build_seconds=round(built.seconds, 4),
        remarks=built.remarks,
        layers=built.layers,
        seed=plan.seed if plan.variations else None,
        block=drawn.block if plan.variations else None,
    )


def _judged(plan: BuildPlan, change: SettingChange, built: Built, check: Check, candidate: Path) -> Judged:
    failure = built.failure
    if failure is not None:
        outcome = Outcome.REPRODUCES if plan.checks_building else Outcome.INVALID
        evidence = Evidence(status=1, output=failure.message.encode(), seconds=built.seconds)
        return Judged(outcome, f"it does not {failure.stage}: {failure.kind}: {first_line(failure.message)}", evidence)
    if plan.checks_building:
        return Judged(Outcome.PASSES, "it builds", Evidence(status=0, seconds=built.seconds))
    with CheckTemplate((), plan.spec).environment(change):
        evidence = _said(check, candidate)
    judged = judge(evidence, plan.rules, None)
    if evidence.timed_out and judged.outcome is Outcome.REPRODUCES:
        return replace(judged, outcome=Outcome.TIMED_OUT, reason=f"no answer after {evidence.seconds:.3g} s")
    return judged


def _said(check: Check, candidate: Path) -> Evidence:
    """What the check says. A person who takes the last answer back is asked again: that build is sorted already."""
    while True:
        with contextlib.suppress(UndoError):
            return check.run(candidate)


def _count(record: TacticRecord, judged: Judged, tally: BuildTally) -> None:
    tally.outcomes[judged.outcome] += 1
    tally.version = tally.version or record.version
    if judged.outcome in _OUTCOMES:
        name = f"iteration {record.iteration}"
        tally.builds.append(build_of(name, record, is_bad=judged.outcome is Outcome.REPRODUCES))


def artifact_name(spec: EngineSpec) -> str | None:
    """The usual name of what an engine saves; None if it saves nothing.

    An ending that only built models have is preferred: what is saved as ONNX may be optimized again when it is run.
    """
    endings = find_class(spec.name).capabilities.saves
    chosen = next((ending for ending in endings if ending != ".onnx"), next(iter(endings), None))
    return None if chosen is None else f"polygraphy_debug{chosen}"


def remove(path: Path | None) -> None:
    """Remove what the last build has left."""
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
