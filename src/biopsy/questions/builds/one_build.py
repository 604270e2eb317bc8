"""One build: what is to be built and left where, a process of its own for it, its check, and its record."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from biopsy import errors, events
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Artifacts, Check, Evidence, UndoError, write_iteration
from biopsy.engines.base import LayerRecord, ModelInput
from biopsy.engines.registry import EngineSpec, class_of, find_class, parse_spec
from biopsy.processes import process
from biopsy.processes.cleanup import take_what_stands_at, temporary_folder
from biopsy.processes.own_process import own_python
from biopsy.processes.server import from_json
from biopsy.processes.warm import ForkServer, ServerGoneError
from biopsy.processes.watch import Ended, Limits, Stop, engine_death
from biopsy.questions.builds.record import TacticRecord, write_record
from biopsy.questions.builds.settings import CheckTemplate, Drawn, SettingChange, VariedSetting

Until = int | Literal["good", "bad"]

CheckFor = Callable[[SettingChange], Check]
"""Gives the check for a build with a change: its words may name the engine."""


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


def artifact_name(spec: EngineSpec) -> str | None:
    """The usual name of what an engine saves; None if it saves nothing.

    An ending that only built models have is preferred: what is saved as ONNX may be optimized again when it is run.
    """
    endings = find_class(spec.name).capabilities.saves
    chosen = next((ending for ending in endings if ending != ".onnx"), next(iter(endings), None))
    return None if chosen is None else f"polygraphy_debug{chosen}"


# One build and its check, run on this machine or on another; and what is recorded of it.


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
        evidence = None
        with CheckTemplate((), plan.spec).environment(drawn.change):
            while evidence is None and built.failure is None and not plan.checks_building:
                with contextlib.suppress(UndoError):  # who takes the last answer back is asked again: that is sorted
                    evidence = check.run(plan.candidate)
        return BuildRun(number=number, drawn=drawn, built=built, evidence=evidence, line=line)


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


# Building one model again and again, each time in a process of its own: a crash, or a variable of the environment, is
# that of one build.
#
# Where the engine allows it, the model is read and the engine loaded once, and each build is a fork of that process
# (``build_server``); otherwise, and where the environment differs, each build is a process (``build_task``). What
# came of a build stands in a file.

# They are named, not imported: they are what child processes do.
_TASK = "biopsy.questions.builds.build_task"
_SERVER = "biopsy.questions.builds.build_server"

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
        seconds = time.monotonic() - started
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
        return Built(failure=failure, seconds=seconds)

    def _ended(self, request: Mapping[str, Any], order: Order, stop: Stop | None) -> Ended:
        """Build in a fork if that is possible; else, and if the warm process is lost, in a process of its own."""

        def limits() -> Limits:
            return Limits(seconds=self._timeout)

        if not self._is_cold and not order.environment and class_of(parse_spec(order.engine)).forks_warm:
            try:
                if self._server is None:
                    words = [*own_python(_SERVER), str(self._model.path), str(self._model.folder), order.engine]
                    patience = _SECONDS_TO_LOAD if self._timeout is None else self._timeout
                    self._server = ForkServer(words, patience=patience)
                return self._server.run(request, limits, stop)
            except ServerGoneError:
                self._is_cold = True
                self._stop_server()
                self._report.unlink(missing_ok=True)
        command = [*own_python(_TASK), json.dumps(request)]
        return process.run(command, limits, stop, environment=order.environment, patient=False)

    def _stop_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
