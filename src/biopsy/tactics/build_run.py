"""One build and its check, run on this machine or on another; and what is recorded of it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from biopsy import errors, events
from biopsy.checks.artifacts import write_iteration
from biopsy.checks.interactive import UndoError
from biopsy.checks.outcome import Check, Evidence
from biopsy.engines.registry import EngineSpec, class_of
from biopsy.isolation.cleanup import take_what_stands_at
from biopsy.tactics.build_plan import BuildPlan, CheckFor
from biopsy.tactics.builder import Builder, Built, Order
from biopsy.tactics.record import TacticRecord, write_record
from biopsy.tactics.setting_changes import CheckTemplate
from biopsy.tactics.variations import Drawn


@dataclass(frozen=True, kw_only=True)
class BuildRun:
    """What came of a build, and what its check left: None if that was not asked.

    ``line`` repeats the check by hand. ``machine`` is the kind of another machine that did it, and ``files`` are what
    came back from there.
    """

    number: int
    drawn: Drawn
    built: Built
    evidence: Evidence | None
    line: str
    machine: str = ""
    files: Mapping[Path, bytes] = field(default_factory=dict)


class BuildRuns(Protocol):
    """Whoever builds and checks."""

    def runs(self, order: Iterable[Drawn]) -> Generator[BuildRun, None, None]:
        """Build in this order, and check each build. Raises what ``Builder.build`` raises, and CheckError."""


class BuildsHere:
    """Builds and checks on this machine, one after the other."""

    def __init__(self, plan: BuildPlan, check_for: CheckFor, listener: events.Listener = events.ignore) -> None:
        self._plan = plan
        self._check_for = check_for
        self._listener = listener

    def runs(self, order: Iterable[Drawn]) -> Generator[BuildRun, None, None]:
        """Build and check, each when it is asked for."""
        with Builder(self._plan.model, self._plan.build_timeout) as builder:
            for number, drawn in enumerate(order):
                yield self._run(builder, number, drawn)

    def _run(self, builder: Builder, number: int, drawn: Drawn) -> BuildRun:
        plan = self._plan
        if plan.info is not None:
            write_iteration(plan.info, number)
        check = self._check_for(drawn.change)
        line = check.line(plan.candidate)
        self._listener(checking(plan, number, drawn, line))
        built = builder.build(Order(plan.spec_with(drawn.change).text, drawn.change.environment, plan.artifact))
        if plan.artifact is not None:
            take_what_stands_at(plan.artifact)
        if plan.record is not None:  # the check may want to look at it
            write_record(with_built(record_before(plan, number, drawn), built), plan.record)
        is_asked = built.failure is None and not plan.checks_building
        evidence = self._evidence(drawn, check) if is_asked else None
        return BuildRun(number=number, drawn=drawn, built=built, evidence=evidence, line=line)

    def _evidence(self, drawn: Drawn, check: Check) -> Evidence:
        """What the check leaves. A person who takes the last answer back is asked again: that build is sorted."""
        with CheckTemplate((), self._plan.spec).environment(drawn.change):
            while True:
                with contextlib.suppress(UndoError):
                    return check.run(self._plan.candidate)


def checking(plan: BuildPlan, number: int, drawn: Drawn, line: str) -> events.Checking:
    """What listeners are told when a build begins."""
    description = drawn.change.text or plan.spec_with(drawn.change).text
    return events.Checking(number=number, stage="build", description=description, line=line)


def record_before(plan: BuildPlan, number: int, drawn: Drawn) -> TacticRecord:
    """What is recorded of a build before it is made."""
    settings = plan.spec_with(drawn.change).settings
    return TacticRecord(
        engine=plan.spec.name,
        model=str(plan.model.path or ""),
        model_digest=plan.digest,
        settings={key: "true" if value is None else value for key, value in settings.items()},
        environment=drawn.change.environment,
        varied=tuple(variation.key for variation in plan.variations),
        iteration=number,
        seed=plan.seed if plan.variations else None,
        block=drawn.block if plan.variations else None,
    )


def with_built(record: TacticRecord, built: Built, machine: str = "") -> TacticRecord:
    """The record with what came of the build. Of one that failed the version is that of the engine here, if any."""
    devices = {layer.device for layer in built.layers}
    version = built.version
    if not version:
        with contextlib.suppress(errors.BiopsyError):
            version = class_of(EngineSpec(record.engine, dict(record.settings))).version()
    return replace(
        record,
        version=version,
        device=devices.pop() if len(devices) == 1 else "",
        build_seconds=round(built.seconds, 4),
        remarks=built.remarks,
        layers=built.layers,
        machine=machine,
    )
