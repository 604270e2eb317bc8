"""Builds of one model: what is to be built and left where, a process of its own for each, its choices recorded, its
result judged and sorted; and what they show together.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from biopsy import errors, events
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Artifacts, Check, Evidence, Judged, Outcome, UndoError, write_iteration
from biopsy.engines.base import LayerRecord, ModelInput
from biopsy.engines.registry import EngineSpec, class_of, find_class, parse_spec
from biopsy.processes import process
from biopsy.processes.cleanup import mark_existing_transient, temporary_folder
from biopsy.processes.own_process import own_python
from biopsy.processes.server import from_json
from biopsy.processes.warm import ForkServer, ServerGoneError
from biopsy.processes.watch import Ended, Limits, Stop, engine_death
from biopsy.processes.writing import write_whole
from biopsy.questions.builds.difference import Build, Difference, build_of, difference
from biopsy.questions.builds.record import TacticRecord, write_record
from biopsy.questions.builds.settings import CheckTemplate, Drawn, SettingChange, VariedSetting, changes
from biopsy.session.trial import cannot_run, judge_any_failure
from biopsy.text import count, first_line, html_table, printable

Until = int | Literal["good", "bad"]

CheckFor = Callable[[SettingChange], Check]
"""Gives the check for a build with a change: its words may name the engine."""

_WORDS = {Outcome.PASSES: "good", Outcome.REPRODUCES: "bad"}


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
    record_to: Path | None = None
    artifacts: Artifacts = field(default_factory=Artifacts)
    info: Path | None = None
    rules: Rules = field(default_factory=Rules)
    build_timeout: float | None = None
    checks_building: bool = False

    @property
    def candidate(self) -> Path:
        """What the check looks at."""
        return self.artifact or self.model.path or Path()

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the model's file."""
        return hashlib.sha256(self.model.data).hexdigest()

    def spec_with(self, change: SettingChange) -> EngineSpec:
        """The engine of a build with a change."""
        return CheckTemplate((), self.spec).changed(change)

    def record(self, number: int, drawn: Drawn) -> TacticRecord:
        """What is recorded of a build before it is made."""
        settings = self.spec_with(drawn.change).settings
        return TacticRecord(
            engine=self.spec.name,
            model=str(self.model.path or ""),
            model_digest=self.digest,
            settings={key: "true" if value is None else value for key, value in settings.items()},
            environment=drawn.change.environment,
            varied=tuple(variation.key for variation in self.variations),
            iteration=number,
            seed=self.seed if self.variations else None,
            block=drawn.block if self.variations else None,
        )

    def beginning(self, number: int, drawn: Drawn, line: str) -> events.Checking:
        """What listeners are told when a build begins; ``line`` is its check."""
        description = drawn.change.text or self.spec_with(drawn.change).text
        return events.Checking(number=number, stage="build", description=description, line=line)


def artifact_name(spec: EngineSpec) -> str | None:
    """The usual name of what an engine saves; None if it saves nothing.

    An ending that only built models have is preferred: what is saved as ONNX may be optimized again when it is run.
    """
    endings = find_class(spec.name).capabilities.saves
    chosen = next((ending for ending in endings if ending != ".onnx"), next(iter(endings), None))
    return None if chosen is None else f"polygraphy_debug{chosen}"


# Building one model again and again, each time in a process of its own: a crash, or a variable of the environment, is
# that of one build.
#
# Where the engine allows it, the model is read and the engine loaded once, and each build is a fork of that process
# (``build_process``); otherwise, and where the environment differs, each build is a process. What came of a build
# stands in a file.

# It is named, not imported: it is what child processes do.
_PROCESS = "biopsy.questions.builds.build_process"

_SECONDS_TO_LOAD = 600.0
"""For the warm process, where nobody has set a limit; after that each build is a process of its own."""


@dataclass(frozen=True)
class Order:
    """What to build: an engine with its settings, in which environment, and where to save the result, if anywhere."""

    engine: str
    environment: Mapping[str, str] = field(default_factory=dict)
    save_to: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Built:
    """What came of a build: its layers as far as the engine tells them, or how it failed."""

    version: str = ""
    seconds: float = 0.0
    layers: tuple[LayerRecord, ...] = ()
    remarks: tuple[str, ...] = ()
    failure: errors.EngineFailure | None = None

    def noted_in(self, record: TacticRecord, machine: str = "") -> TacticRecord:
        """The record of a build with what came of it. Of one that failed the version is that of the engine here."""
        devices, version = {layer.device for layer in self.layers}, self.version
        if not version:
            with contextlib.suppress(errors.BiopsyError):
                version = class_of(EngineSpec(record.engine, dict(record.settings))).version()
        return replace(
            record,
            version=version,
            device=devices.pop() if len(devices) == 1 else "",
            build_seconds=round(self.seconds, 4),
            remarks=self.remarks,
            layers=self.layers,
            machine=machine,
        )


class Builder:
    """Builds a model that is a file. ``timeout`` is in seconds for one build. Use it in a ``with``."""

    def __init__(self, model: ModelInput, timeout: float | None = None) -> None:
        assert model.path is not None
        self._model = model
        self._timeout = timeout
        self._stack = contextlib.ExitStack()
        self._report = self._stack.enter_context(temporary_folder("biopsy-build-")) / "report.json"
        self._server: ForkServer | None = None
        self._is_cold = False

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the warm process."""
        self._stop_server()
        self._stack.close()

    def build(self, order: Order, stop: Stop | None = None) -> Built:
        """Build once, unless ``stop`` ends it.

        A failure of the engine, its crash and its taking too long are in the result.
        Raises what else is wrong: EngineMissing, UsageError, ModelError.
        """
        self._report.unlink(missing_ok=True)
        request = {
            "model": str(self._model.path),
            "folder": str(self._model.folder),
            "engine": order.engine,
            "save_to": None if order.save_to is None else str(order.save_to),
            "report": str(self._report),
        }
        started = time.monotonic()
        ended = self._ended(request, order, stop)
        report: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            report = json.loads(self._report.read_bytes())
        failure: errors.BiopsyError
        if ended.cause == "itself" and "error" in report:
            failure = from_json(report)
        elif ended.cause != "itself" or ended.status < 0 or "layers" not in report:
            failure = engine_death(order.engine, "build" if report else None, ended)
        else:
            layers = tuple(LayerRecord(**{**layer, "nodes": tuple(layer["nodes"])}) for layer in report["layers"])
            return Built(
                version=report["version"], seconds=report["seconds"], layers=layers, remarks=tuple(report["remarks"])
            )
        if not isinstance(failure, errors.EngineFailure):
            raise failure
        return Built(failure=failure, seconds=time.monotonic() - started)

    def _ended(self, request: Mapping[str, Any], order: Order, stop: Stop | None) -> Ended:
        """Build in a fork if that is possible; else, and if the warm process is lost, in a process of its own."""

        def limits() -> Limits:
            return Limits(seconds=self._timeout)

        if not self._is_cold and not order.environment and class_of(parse_spec(order.engine)).forks_warm:
            try:
                if self._server is None:
                    words = [*own_python(_PROCESS), str(self._model.path), str(self._model.folder), order.engine]
                    patience = _SECONDS_TO_LOAD if self._timeout is None else self._timeout
                    self._server = ForkServer(words, patience=patience)
                return self._server.run(request, limits, stop)
            except ServerGoneError:
                self._is_cold = True
                self._stop_server()
                self._report.unlink(missing_ok=True)
        command = [*own_python(_PROCESS), json.dumps(request)]
        return process.run(command, limits, stop, environment=order.environment, patient=False)

    def _stop_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()


# One build and its check, run on this machine or on another; and many of them, judged, kept and counted.


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
        plan = self._plan
        with Builder(plan.model, plan.build_timeout) as builder:
            for number, drawn in enumerate(order):
                if plan.info is not None:
                    write_iteration(plan.info, number)
                check = self._check_for(drawn.change)
                line = check.line(plan.candidate)
                self._listener(plan.beginning(number, drawn, line))
                spec = plan.spec_with(drawn.change)
                built = builder.build(Order(spec.text, drawn.change.environment, plan.artifact))
                if plan.artifact is not None:
                    mark_existing_transient(plan.artifact)
                if plan.record_to is not None:  # the check may want to look at it
                    write_record(built.noted_in(plan.record(number, drawn)), plan.record_to)
                evidence = None
                with CheckTemplate((), plan.spec).environment(drawn.change):
                    while evidence is None and built.failure is None and not plan.checks_building:
                        with contextlib.suppress(UndoError):  # who takes the last answer back is asked again
                            evidence = check.run(plan.candidate)
                yield BuildRun(number=number, drawn=drawn, built=built, evidence=evidence, line=line)


@dataclass(frozen=True)
class BuildIteration:
    """One build and what was said of it."""

    number: int
    change: SettingChange
    built: Built
    judged: Judged

    @property
    def word(self) -> str:
        """What users call the outcome."""
        return _WORDS.get(self.judged.outcome, "other")


@dataclass(kw_only=True)
class BuildTally:
    """What many builds add up to. ``builds`` are the good and bad ones, with their choices."""

    plan: BuildPlan
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    builds: list[Build] = field(default_factory=list)
    version: str = ""
    started: float = field(default_factory=time.monotonic)

    @property
    def runs(self) -> int:
        """How many builds were made."""
        return self.outcomes.total()

    def keep(self, run: BuildRun, judged: Judged) -> BuildIteration:
        """Write the record of a build with what the check said, and count it."""
        iteration = BuildIteration(run.number, run.drawn.change, run.built, judged)
        record = run.built.noted_in(self.plan.record(run.number, run.drawn), run.machine)
        record = replace(record, outcome=iteration.word)
        if self.plan.record_to is not None:
            write_record(record, self.plan.record_to)
        for path, content in run.files.items():
            write_whole(path, [content])
        self.outcomes[judged.outcome] += 1
        self.version = self.version or record.version
        if judged.outcome in _WORDS:
            is_bad = judged.outcome is Outcome.REPRODUCES
            self.builds.append(build_of(f"iteration {run.number}", record, is_bad=is_bad))
        return iteration

    def findings(self) -> BuildFindings:
        """What was counted until now."""
        return BuildFindings(
            engine=self.plan.spec.text,
            version=self.version,
            outcomes=dict(self.outcomes),
            builds=tuple(self.builds),
            difference=difference(self.builds),
            seconds=time.monotonic() - self.started,
        )


def build_repeatedly(
    runs: BuildRuns, tally: BuildTally, listener: events.Listener = events.ignore
) -> Generator[BuildIteration, None, None]:
    """Build, check and sort as often as the plan of the tally says; yields each iteration when it is over.

    A build that fails is INVALID, unless building is what is checked. Raises CheckError if a check cannot be run, and
    what ``runs`` raises.
    """
    plan = tally.plan
    last = {"good": Outcome.PASSES, "bad": Outcome.REPRODUCES}.get(str(plan.until))
    order = changes(plan.variations, plan.seed, plan.until if isinstance(plan.until, int) else None)
    with closing(runs.runs(order)) as begun:
        for run in begun:
            judged = _judged(plan, run)
            listener(judged.event(run.number, "build"))
            if judged.outcome is Outcome.INFRASTRUCTURE:
                raise cannot_run(judged, run.line, kept=f"nothing was concluded from iteration {run.number}")
            iteration = tally.keep(run, judged)
            for missing in plan.artifacts.sort(judged.outcome, run.number, ""):
                listener(events.Remark(f"the artifact {missing} was not there after iteration {run.number}"))
            yield iteration
            if judged.outcome is last:
                return


def _judged(plan: BuildPlan, run: BuildRun) -> Judged:
    built, evidence = run.built, run.evidence
    failure = built.failure
    if failure is not None:
        outcome = Outcome.REPRODUCES if plan.checks_building else Outcome.INVALID
        left = Evidence(status=1, output=failure.message.encode(), seconds=built.seconds)
        return Judged(outcome, f"it does not {failure.stage}: {failure.kind}: {first_line(failure.message)}", left)
    if evidence is None:
        return Judged(Outcome.PASSES, "it builds", Evidence(status=0, seconds=built.seconds))
    return judge_any_failure(evidence, plan.rules)


@dataclass(frozen=True, kw_only=True)
class BuildFindings:
    """What many builds of one model show.

    ``engine`` is the spec that was built with, ``version`` that of the engine. ``outcomes`` counts the builds by what
    the check said of them; ``builds`` are the good and bad ones with their choices, in order. ``difference`` says what
    bad builds have in common that good ones have not, and whether that is chance. ``seconds`` is wall time.
    """

    engine: str
    version: str
    outcomes: Mapping[Outcome, int]
    builds: tuple[Build, ...]
    difference: Difference
    seconds: float

    @property
    def runs(self) -> int:
        """How many builds were made."""
        return sum(self.outcomes.values())

    @property
    def good(self) -> int:
        """How many of them passed."""
        return self.outcomes.get(Outcome.PASSES, 0)

    @property
    def bad(self) -> int:
        """How many of them failed; those that the check could say nothing about are neither."""
        return self.outcomes.get(Outcome.REPRODUCES, 0)

    def __repr__(self) -> str:
        decided = self.difference.decided
        cause = f"; {decided[0].told.text} goes with failing" if decided else ""
        return f"<BuildFindings of {printable(self.engine)}: {self._counted}{printable(cause)}>"

    def _repr_html_(self) -> str:
        rows = [
            (group.told.text, f"{group.table.bad} of {self.bad}", f"{group.table.good} of {self.good}",
             f"{group.adjusted:.2g}", "yes" if group in self.difference.decided else "no")
            for group in self.difference.groups
        ]  # fmt: skip
        head = ["choice", "in bad builds", "in good builds", "chance", "decided"]
        return html_table(f"{self.engine}: {self._counted}", head, rows)

    @property
    def _counted(self) -> str:
        others = self.runs - self.good - self.bad
        unclear = f", {others} neither" if others else ""
        return f"{self.bad} of {count(self.runs, 'build')} bad, {self.good} good{unclear}"
