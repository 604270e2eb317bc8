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
from biopsy.engines.registry import EngineSpec, find_class
from biopsy.isolation.cleanup import take_what_stands_at
from biopsy.tactics.builder import Builder, Built, Order
from biopsy.tactics.difference import Build, build_of
from biopsy.tactics.record import TacticRecord, write_record
from biopsy.tactics.setting_changes import CheckTemplate, SettingChange
from biopsy.tactics.variations import Drawn, Variation, changes
from biopsy.text import first_line

_OUTCOMES = {Outcome.PASSES: "good", Outcome.REPRODUCES: "bad"}

Until = int | Literal["good", "bad"]


@dataclass(frozen=True)
class BuildPlan:
    """What to build, how often, and what to leave where; see the options of ``biopsy debug build``.

    ``artifact`` is where the engine saves what it has built; None if it cannot, and the check then gets the model.
    ``checks_building``: a build that fails is the failure, and nothing else is checked. ``seed`` is that of the order.
    """

    model: ModelInput
    spec: EngineSpec
    until: Until
    artifact: Path | None = None
    variations: Sequence[Variation] = ()
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
        for number, drawn in enumerate(order):
            iteration = _one(plan, number, drawn, builder, check_for, listener, digest, tally)
            yield iteration
            if iteration.judged.outcome is last:
                return


def _one(
    plan: BuildPlan,
    number: int,
    drawn: Drawn,
    builder: Builder,
    check_for: CheckFor,
    listener: events.Listener,
    digest: str,
    tally: BuildTally,
) -> BuildIteration:
    change = drawn.change
    spec = CheckTemplate((), plan.spec).changed(change)
    if plan.info is not None:
        write_iteration(plan.info, number)
    check = check_for(change)
    candidate = plan.artifact or plan.model.path or Path()
    listener(events.Checking(number, "build", change.text or spec.text, 0, 0, check.line(candidate)))
    built = builder.build(Order(spec.text, change.environment, plan.artifact))
    if plan.artifact is not None:
        take_what_stands_at(plan.artifact)
    record = _record(plan, number, drawn, spec, built, digest)
    if plan.record is not None:
        write_record(record, plan.record)
    judged = _judged(plan, change, built, check, candidate)
    _tell(number, judged, listener)
    if judged.outcome is Outcome.INFRASTRUCTURE:
        raise errors.CheckError(
            f"the check could not be run: {judged.reason}",
            kept=f"nothing was concluded from iteration {number}",
            next_steps=[f"run it by hand: {check.line(candidate)}"],
        )
    record = replace(record, outcome=_OUTCOMES.get(judged.outcome, "other"))
    if plan.record is not None:
        write_record(record, plan.record)
    _count(record, judged, tally)
    for missing in plan.artifacts.sort(judged.outcome, number, ""):
        listener(events.Remark(f"the artifact {missing} was not there after iteration {number}"))
    return BuildIteration(number, drawn, built, judged)


def _record(plan: BuildPlan, number: int, drawn: Drawn, spec: EngineSpec, built: Built, digest: str) -> TacticRecord:
    devices = {layer.device for layer in built.layers}
    version = built.version
    if not version:
        with contextlib.suppress(errors.BiopsyError):
            version = find_class(spec.name).version()
    return TacticRecord(
        spec.name,
        version,
        devices.pop() if len(devices) == 1 else "",
        str(plan.model.path or ""),
        digest,
        {key: "true" if value is None else value for key, value in spec.settings.items()},
        drawn.change.environment,
        tuple(variation.key for variation in plan.variations),
        number,
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
        evidence = Evidence(1, failure.message.encode(), seconds=built.seconds)
        return Judged(outcome, f"it does not {failure.stage}: {failure.kind}: {first_line(failure.message)}", evidence)
    if plan.checks_building:
        return Judged(Outcome.PASSES, "it builds", Evidence(0, seconds=built.seconds))
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


def _tell(number: int, judged: Judged, listener: events.Listener) -> None:
    evidence = judged.evidence
    told = events.Checked(number, "build", judged.outcome.value, judged.reason, 0, 0, evidence.seconds, evidence.output)
    listener(told)


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
