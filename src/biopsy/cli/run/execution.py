"""Running a model: from a session that is built or loaded, with the same inputs for every engine, in memory or into
the recorder's file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments.groups import MarkedOutputs
from biopsy.cli.console import Console
from biopsy.cli.run.findings import Ran
from biopsy.cli.run.options import RunOptions
from biopsy.engines.base import Engine, ModelInput, Session
from biopsy.model.index import index_bytes
from biopsy.model.tensor_type import ValueType
from biopsy.processes.writing import require_writable
from biopsy.tensors.results import Feed, RunnerResult
from biopsy.text import ListOption, count, line_of

if TYPE_CHECKING:
    from biopsy.cli.run.recording import Recorder
    from biopsy.engines.runner import Inputs


@dataclass(frozen=True)
class ModelExecution:
    """A model that is run in engines, all with the inputs of one feeder, as the options say."""

    model: ModelInput
    feeder: Feeder
    options: RunOptions
    console: Console

    def run_all(self, engines: Sequence[Engine], recorder: Recorder | None) -> list[Ran]:
        """Run each engine, freed before the next; all get the inputs that the first one that builds asks for."""
        ran = []
        for number, engine in enumerate(engines):
            try:
                ran.append(self._run(engine, number, self.feeder, recorder))
            except errors.EngineFailure as failure:
                self.console.failure(with_engine(failure, engine))
                ran.append(Ran(engine, failure=failure))
                if self.options.fail_fast:
                    break
        return ran

    def run_again(self, engine: Engine, roundings: int = 0, seed: int = 0) -> RunnerResult:
        """What another engine gives for the same inputs, or for those some ``roundings`` off. Raises EngineFailure.

        And CannotCompare if no input can be changed by a rounding.
        """
        feeder = self.feeder.roundings_off(roundings, seed) if roundings else self.feeder
        recorder = self.recorder([engine], None)
        result = self._run(engine, 0, feeder, recorder).result
        if recorder is not None:
            recorder.finish()
        assert result is not None
        return result

    def recorder(self, engines: Sequence[Engine], save_to: Path | None) -> Recorder | None:
        """What keeps outputs out of memory, if --record-memory is given."""
        if self.options.record_memory is None:
            return None
        from biopsy.cli.run.recording import Recorder

        if self.options.warm_up:
            self.console.warn("--warm-up is ignored: with --record-memory nothing is timed")
        return Recorder(self.model, engines, self.options, self.console, save_to)

    def _run(self, engine: Engine, number: int, feeder: Feeder, recorder: Recorder | None) -> Ran:
        """Run one engine. Raises EngineFailure."""
        if recorder is not None:
            return Ran(engine, recorder.record(engine, number, feeder.feeds(recorder.inputs)), remarks=recorder.remarks)
        from biopsy.engines.runner import run_session, runner_name

        session = session_of(engine, self.model, feeder, self.options, self.console)
        if self.options.build_only:
            self.console.note(f"{engine.label} {engine.version()} has built the model")
            return Ran(engine, remarks=tuple(session.remarks))
        feeds = feeder.feeds(session.inputs)
        result = run_session(session, feeds, runner=runner_name(engine.name, number), warm_up=self.options.warm_up)
        times = [iteration.runtime * 1000 for iteration in result.iterations if iteration.runtime is not None]
        timing = f"{count(len(result.iterations), 'iteration')}, {sum(times) / len(times):.3g} ms each"
        self.console.note(f"{engine.label}  {timing}")
        return Ran(engine, result, remarks=tuple(session.remarks))


def with_engine(failure: errors.EngineFailure, engine: Engine) -> errors.EngineFailure:
    """The failure with a message that names the engine and what it was doing."""
    message = f"{engine.label} cannot {failure.stage} the model: {failure.kind}: {failure.message}"
    named = errors.EngineFailure(
        message, engine=failure.engine, stage=failure.stage, kind=failure.kind, next_steps=failure.next_steps
    )
    return named.with_traceback(failure.__traceback__)


def save_outputs(path: Path | None, ran: Sequence[Ran], recorder: Recorder | None, console: Console) -> None:
    """Write what the engines gave, unless the recorder already has."""
    results = [each.result for each in ran if each.result is not None]
    finished = recorder is not None and recorder.finish()
    if path is None or not (finished or results or recorder is None):
        return
    if not finished and not results:
        console.warn(f"{path} is not written: no engine gave any outputs")
        return
    if not finished:
        from biopsy.tensors.files import write_results

        write_results(path, results)
    console.note(f"outputs saved to {path}")


# How ``biopsy run`` comes to a session: built from the model or loaded from a file, saved, and perhaps not run.

_NEEDS_A_RUN = ("load_outputs", "save_outputs", "save_inputs", "compare_with", "record_memory", "validate")
"""Options that ask for what only running gives."""


def require_possible(options: RunOptions, engines: Sequence[Engine]) -> None:
    """Raise UsageError for options that contradict each other, or that no engine here can follow."""
    model, path = options.model, options.save_engine
    if options.build_only:
        for needless in options.given(_NEEDS_A_RUN):
            raise errors.UsageError(f"--build-only runs nothing, and {needless} needs outputs")
    if path is not None:
        able = [engine for engine in engines if engine.capabilities.can_save(path)]
        if len(able) > 1:
            labels = ", ".join(engine.label for engine in able)
            raise errors.UsageError(f"--save-engine {path}: {labels} would all write it")
        if not able:
            kinds = [f"{engine.name} {' '.join(engine.capabilities.saves) or 'nothing'}" for engine in engines]
            raise errors.UsageError(f"--save-engine {path}: the engines here save {', '.join(kinds)}")
        require_writable(path)
    if options.has_built_model:
        for needless in options.given(("save_onnx", *MarkedOutputs.declared)):
            raise errors.UsageError(f"{model} is no ONNX model, and {needless} needs one")
        for engine in engines:
            if not engine.capabilities.can_save(model):
                raise errors.UsageError(f"{model} is no ONNX model, and {engine.name} does not read such files")


def session_of(engine: Engine, model: ModelInput, feeder: Feeder, options: RunOptions, console: Console) -> Session:
    """What the engine makes of the model, saved if that was asked for, its remarks told. Raises EngineFailure."""
    if model.path is not None and options.has_built_model:
        session = engine.load(model.path)
    else:
        if engine.capabilities.wants_shapes:
            model = replace(model, shapes=_shapes(model, feeder, build_only=options.build_only))
        session = engine.build(model)
    for remark in session.remarks:
        console.warn(remark)
    path = options.save_engine
    if path is not None and engine.capabilities.can_save(path):
        session.save(path)
        console.note(f"{engine.label} saved to {path}{'' if path.suffix else ' (--model-type engine to run it)'}")
    return session


def _shapes(model: ModelInput, feeder: Feeder, *, build_only: bool) -> Mapping[str, Sequence[tuple[int, ...]]]:
    """Shapes of the inputs to come: what a person has said, and what the feeder chooses where the model is run."""
    said: dict[str, list[tuple[int, ...]]] = {}
    for feed in feeder.inputs.given or ():
        for name, value in feed.items():
            said.setdefault(name, []).append(value.shape)
    if feeder.inputs.given is None:
        for name, shape in feeder.inputs.shapes.items():
            known = tuple(dim for dim in shape if dim is not None)
            if len(known) == len(shape):
                said[name] = [known]
    if build_only:
        return said
    index = index_bytes(model.data, model.folder)
    feeder.feeds(index.fed_types())
    return {**{name: [tuple(shape)] for name, shape in feeder.guessed.items()}, **said}


class Feeder:
    """The inputs of a run: settled once, by the first engine that builds, then the same for all.

    ``vet`` raises if the golden values cannot be those of these inputs.
    """

    def __init__(
        self, inputs: Inputs, save_to: Path | None, console: Console, vet: Callable[[Sequence[Feed]], None]
    ) -> None:
        self.inputs = inputs
        self._save_to = save_to
        self._console = console
        self._vet = vet
        self._settled: Sequence[Feed] | None = None
        self.guessed: Mapping[str, tuple[int, ...]] = {}
        """Shapes of the inputs that nobody has said."""

    def feeds(self, wanted: Mapping[str, ValueType | None]) -> Sequence[Feed]:
        """The feeds, checked and saved when they are first asked for."""
        if self._settled is None:
            self._settled, self.guessed = settled(wanted, self.inputs, self._console)
            self._vet(self._settled)
            save(self._save_to, self._settled)
        return self._settled

    def roundings_off(self, count: int, seed: int = 0) -> Feeder:
        """A feeder of the settled values, all of them some roundings off. Raises CannotCompare if none would differ."""
        from biopsy.tensors.generate import differ, roundings_off

        other = copy(self)
        other._settled = roundings_off(self._settled or (), count, seed)
        if not differ(self._settled or (), other._settled):
            raise errors.CannotCompare("no input has a number that could be one rounding off")
        return other


def settled(
    wanted: Mapping[str, ValueType | None], inputs: Inputs, console: Console
) -> tuple[Sequence[Feed], Mapping[str, tuple[int, ...]]]:
    """The feeds of a model, checked and in its types, and the shapes that were guessed; what was made up is told."""
    from biopsy.engines.runner import casts, casts_text, checked_feed, feeds_for

    found = feeds_for(wanted, inputs)
    if found.made_up:
        console.warn(f"the inputs loaded have no {', '.join(map(repr, found.made_up))}: random values are used for it")
    if found.guessed:
        choice = line_of([ListOption("--input-shapes", [f"{name}:[...]" for name in found.guessed])])
        name, shape = next(iter(found.guessed.items()))
        told = f"the shape of input {name!r} open: {list(shape)} is used"
        if len(found.guessed) > 1:
            shapes = ", ".join(f"{name!r} {list(shape)}" for name, shape in found.guessed.items())
            told = f"the shapes of {len(found.guessed)} inputs open: {shapes} are used"
        console.warn(f"the model leaves {told} ({choice} to choose)")
    feeds = [checked_feed(feed, wanted, number) for number, feed in enumerate(found.feeds)]
    changes = casts(found.feeds, feeds) if inputs.given is not None else ()
    if changes:
        console.warn(casts_text(changes))
    return feeds, found.guessed


def save(path: Path | None, feeds: Sequence[Feed]) -> None:
    """Write the feeds, if that is asked for."""
    if path is not None:
        from biopsy.tensors.files import write_feeds

        write_feeds(path, feeds)
