"""Building one model many times: each build in a process of its own, recorded, checked and judged."""

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
"""Returns the check for a build with a change; the words of the check may name the engine."""

_WORDS = {Outcome.PASSES: "good", Outcome.REPRODUCES: "bad"}


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """What to build, how often, and which files to write; see the options of ``biopsy debug build``.

    ``artifact`` is where the engine saves the built model; None if it cannot save, and the check then gets the model.
    ``checks_building``: the failure looked for is that of the build; no check is run. ``seed`` determines the order.
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
        """The file that the check is run on."""
        return self.artifact or self.model.path or Path()

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the model's file."""
        return hashlib.sha256(self.model.data).hexdigest()

    def spec_with(self, change: SettingChange) -> EngineSpec:
        """The engine with a change of its settings."""
        return CheckTemplate((), self.spec).changed(change)

    def record(self, number: int, drawn: Drawn) -> TacticRecord:
        """The record of a build as far as it is known before the build."""
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
        """The event that a build begins; ``line`` is its check."""
        description = drawn.change.text or self.spec_with(drawn.change).text
        return events.Checking(number=number, stage="build", description=description, line=line)


def artifact_name(spec: EngineSpec) -> str | None:
    """The usual name of the file that an engine saves a built model to; None if it cannot save.

    An ending other than .onnx is preferred: a model saved as ONNX may be optimized again when it is run.
    """
    endings = find_class(spec.name).capabilities.saves
    chosen = next((ending for ending in endings if ending != ".onnx"), next(iter(endings), None))
    return None if chosen is None else f"polygraphy_debug{chosen}"


_CHILD_MODULE = "biopsy.questions.builds.build_process"

_SECONDS_TO_LOAD = 600.0
"""How long the warm process may take to load, if there is no timeout; then each build is a process of its own."""


@dataclass(frozen=True)
class BuildOrder:
    """What to build: the engine with its settings, environment variables, and where to save the result (None: not)."""

    engine: str
    environment: Mapping[str, str] = field(default_factory=dict)
    save_to: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Built:
    """The result of a build: its layers as far as the engine reports them, or how it failed."""

    version: str = ""
    seconds: float = 0.0
    layers: tuple[LayerRecord, ...] = ()
    remarks: tuple[str, ...] = ()
    failure: errors.EngineFailure | None = None

    def noted_in(self, record: TacticRecord, machine: str = "") -> TacticRecord:
        """The record of a build with its result. A failed build gets the version of the engine on this machine."""
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
    """Builds a model file again and again, each time in a process of its own, so that a crash ends one build only.

    Where the engine allows it, a warm process reads the model and loads the engine once, and each build is a fork of
    it. Otherwise, and where environment variables differ, each build is a new process. Builds report their results in a
    file (``build_process``). ``timeout`` is in seconds for one build. Use it in a ``with``.
    """

    def __init__(self, model: ModelInput, timeout: float | None = None) -> None:
        assert model.path is not None
        self._model = model
        self._timeout = timeout
        self._stack = contextlib.ExitStack()
        self._report = self._stack.enter_context(temporary_folder("biopsy-build-")) / "report.json"
        self._warming = self._stack.enter_context(contextlib.ExitStack())
        self._server: ForkServer | None = None
        self._is_cold = False

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the warm process, and remove the temporary files."""
        self._stack.close()

    def build(self, order: BuildOrder, stop: Stop | None = None) -> Built:
        """Build once, unless ``stop`` ends it.

        If the engine fails, crashes or times out, the result says so.
        Raises EngineMissing, UsageError or ModelError for other errors.
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
        ended = self._run(request, order, stop)
        report: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            report = json.loads(self._report.read_bytes())
        failure: errors.BiopsyError
        if ended.cause == "itself" and "error" in report:
            failure = from_json(report)
        elif ended.cause != "itself" or ended.status < 0 or "layers" not in report:
            stage: errors.Stage = "run" if report.get("stage") == "run" else "build"
            failure = engine_death(order.engine, stage if report else None, ended)
        else:
            layers = tuple(LayerRecord(**{**layer, "nodes": tuple(layer["nodes"])}) for layer in report["layers"])
            return Built(
                version=report["version"], seconds=report["seconds"], layers=layers, remarks=tuple(report["remarks"])
            )
        if not isinstance(failure, errors.EngineFailure):
            raise failure
        return Built(failure=failure, seconds=time.monotonic() - started)

    def _run(self, request: Mapping[str, Any], order: BuildOrder, stop: Stop | None) -> Ended:
        """Build in a fork if possible; otherwise, or if the warm process is lost, in a new process."""

        def limits() -> Limits:
            return Limits(seconds=self._timeout)

        if not self._is_cold and not order.environment and class_of(parse_spec(order.engine)).forks_warm:
            try:
                if self._server is None:
                    words = [*own_python(_CHILD_MODULE), str(self._model.path), str(self._model.folder), order.engine]
                    patience = _SECONDS_TO_LOAD if self._timeout is None else self._timeout
                    self._server = self._warming.enter_context(closing(ForkServer(words, patience=patience)))
                return self._server.run(request, limits, stop)
            except ServerGoneError:
                self._is_cold, self._server = True, None
                self._warming.close()
                self._report.unlink(missing_ok=True)
        command = [*own_python(_CHILD_MODULE), json.dumps(request)]
        return process.run(command, limits, stop, environment=order.environment, patient=False)


@dataclass(frozen=True, kw_only=True)
class BuildRun:
    """A build and the evidence of its check (None if the check was not run).

    ``line`` repeats the check by hand. If another machine did it, ``machine`` is its kind, and ``files`` are those that
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
    """Builds and checks, on this machine or on others."""

    def runs(self, changes: Iterable[Drawn]) -> Generator[BuildRun, None, None]:
        """Build with each change, and check each build. Raises what ``Builder.build`` raises, and CheckError."""


class BuildsHere:
    """Builds and checks on this machine, one after the other."""

    def __init__(self, plan: BuildPlan, check_for: CheckFor, listener: events.Listener = events.ignore) -> None:
        self._plan = plan
        self._check_for = check_for
        self._listener = listener

    def runs(self, changes: Iterable[Drawn]) -> Generator[BuildRun, None, None]:
        """Build and check with one change after the other."""
        plan = self._plan
        with Builder(plan.model, plan.build_timeout) as builder:
            for number, drawn in enumerate(changes):
                if plan.info is not None:
                    write_iteration(plan.info, number)
                check = self._check_for(drawn.change)
                line = check.line(plan.candidate)
                self._listener(plan.beginning(number, drawn, line))
                spec = plan.spec_with(drawn.change)
                built = builder.build(BuildOrder(spec.text, drawn.change.environment, plan.artifact))
                if plan.artifact is not None:
                    mark_existing_transient(plan.artifact)
                if plan.record_to is not None:  # before the check, which may read it
                    write_record(built.noted_in(plan.record(number, drawn)), plan.record_to)
                evidence = None
                with CheckTemplate((), plan.spec).environment(drawn.change):
                    while evidence is None and built.failure is None and not plan.checks_building:
                        with contextlib.suppress(UndoError):  # a person took the last answer back: ask again
                            evidence = check.run(plan.candidate)
                yield BuildRun(number=number, drawn=drawn, built=built, evidence=evidence, line=line)


@dataclass(frozen=True)
class BuildIteration:
    """One build, judged."""

    number: int
    change: SettingChange
    built: Built
    judged: Judged

    @property
    def word(self) -> str:
        """The outcome as "good", "bad" or "other"."""
        return _WORDS.get(self.judged.outcome, "other")


@dataclass(kw_only=True)
class BuildTally:
    """Counts the outcomes of builds. ``builds`` are the good and bad ones, with their choices."""

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
        """Write the record and the files of a build, and count it."""
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
        """The findings so far."""
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

    A failed build is INVALID, unless ``checks_building``. Raises CheckError if a check cannot be run, and what ``runs``
    raises.
    """
    plan = tally.plan
    last = {"good": Outcome.PASSES, "bad": Outcome.REPRODUCES}.get(str(plan.until))
    drawn = changes(plan.variations, plan.seed, plan.until if isinstance(plan.until, int) else None)
    with closing(runs.runs(drawn)) as build_runs:
        for run in build_runs:
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
    failure, seconds = run.built.failure, run.built.seconds
    if failure is not None:
        outcome = Outcome.REPRODUCES if plan.checks_building else Outcome.INVALID
        evidence = Evidence(status=1, output=failure.message.encode(), seconds=seconds)
        return Judged(outcome, f"it does not {failure.stage}: {failure.kind}: {first_line(failure.message)}", evidence)
    if run.evidence is None:
        return Judged(Outcome.PASSES, "it builds", Evidence(status=0, seconds=seconds))
    return judge_any_failure(run.evidence, plan.rules)


@dataclass(frozen=True, kw_only=True)
class BuildFindings:
    """What many builds of one model show.

    ``engine`` is the spec of the builds, ``version`` the version of the engine. ``outcomes`` counts the builds by their
    outcome; ``builds`` are the good and bad ones with their choices, in order. ``difference`` says what bad builds have
    in common that good ones have not, and whether that is chance. ``seconds`` is wall time.
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
        """How many of them failed; inconclusive builds are neither good nor bad."""
        return self.outcomes.get(Outcome.REPRODUCES, 0)

    def __repr__(self) -> str:
        decided = self.difference.decided
        cause = f"; {decided[0].representative.text} goes with failing" if decided else ""
        return f"<BuildFindings of {printable(self.engine)}: {self._summary}{printable(cause)}>"

    def _repr_html_(self) -> str:
        rows = [
            (group.representative.text, f"{group.table.bad} of {self.bad}", f"{group.table.good} of {self.good}",
             f"{group.adjusted:.2g}", "yes" if group in self.difference.decided else "no")
            for group in self.difference.groups
        ]  # fmt: skip
        head = ["choice", "in bad builds", "in good builds", "chance", "decided"]
        return html_table(f"{self.engine}: {self._summary}", head, rows)

    @property
    def _summary(self) -> str:
        others = self.runs - self.good - self.bad
        unclear = f", {others} neither" if others else ""
        return f"{self.bad} of {count(self.runs, 'build')} bad, {self.good} good{unclear}"
