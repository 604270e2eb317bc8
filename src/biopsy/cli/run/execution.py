"""Running a model in engines, all with the same inputs. Outputs stay in memory or go to the file of a recorder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.checks.words import as_word
from biopsy.cli.arguments.groups import MarkedOutputs
from biopsy.cli.console import Console
from biopsy.cli.run.findings import EngineResult
from biopsy.cli.run.options import RunOptions
from biopsy.engines.base import Engine, ModelInput, Session
from biopsy.engines.runner import Inputs, casts, casts_text, checked_feed, feeds_for, run_session, runner_name
from biopsy.model.index import index_bytes
from biopsy.model.tensor_type import ValueType
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import require_writable, write_whole
from biopsy.tensors.files import write_feeds, write_results
from biopsy.tensors.generate import differ, roundings_off
from biopsy.tensors.results import Feed, RunnerResult
from biopsy.text import ListOption, count, line_of

if TYPE_CHECKING:
    from biopsy.cli.run.recording import Recorder
    from biopsy.engines.latency import Latency
    from biopsy.engines.peak_memory import PeakMemory


@dataclass(frozen=True)
class ModelExecution:
    """A model, and the inputs and options with which it is run in engines."""

    model: ModelInput
    feeder: Feeder
    options: RunOptions
    console: Console

    def run_all(self, engines: Sequence[Engine], recorder: Recorder | None) -> list[EngineResult]:
        """Run the engines one after the other, each freed before the next, and show failures."""
        runs = []
        for number, engine in enumerate(engines):
            try:
                runs.append(self._run(engine, number, self.feeder, recorder))
            except errors.EngineFailure as failure:
                self.console.failure(with_engine(failure, engine))
                runs.append(EngineResult(engine, failure=failure))
                if self.options.fail_fast:
                    break
        return runs

    def run_again(self, engine: Engine, roundings: int = 0) -> RunnerResult:
        """The outputs of another engine for the same inputs, or for inputs moved by some ``roundings``.

        Raises EngineFailure, and CannotCompare if no input can be moved by a rounding.
        """
        feeder = self.feeder.roundings_off(roundings) if roundings else self.feeder
        recorder = self.recorder([engine], None)
        result = self._run(engine, 0, feeder, recorder).result
        if recorder is not None:
            recorder.finish()
        assert result is not None
        return result

    def latency(self, engines: Sequence[Engine], limit: float) -> Latency:
        """How long the second engine takes compared with the first, for the same inputs: whether ``limit`` times.

        Raises EngineFailure.
        """
        from biopsy.engines.latency import Timer, decided, in_memory, measurable_alike, timer

        alike = measurable_alike(engine.label for engine in engines)
        feeds: list[Feed] = []

        def loaded(engine: Engine) -> Timer:
            session = built(engine, self.model, self.feeder, self.options)
            feeds[:] = feeds or in_memory(self.feeder.feeds(session.inputs))
            return timer(engine, session, feeds)

        def load(is_second_first: bool) -> tuple[Timer, Timer]:
            timers = [loaded(engine) for engine in alike[:: -1 if is_second_first else 1]]
            return (timers[1], timers[0]) if is_second_first else (timers[0], timers[1])

        return decided(load, limit)

    def slow_tensors(self, engines: Sequence[Engine]) -> list[str]:
        """What the nodes write in which the second engine spends more time than the first by their profiles.

        Those that take most time come first; there are none if an engine has no profile. Raises EngineFailure.
        """
        from biopsy.engines.latency import measurable_alike, slow_nodes

        if not all("profile" in engine.options for engine in engines):
            return []
        layers = []
        for engine in measurable_alike((engine.label for engine in engines), profile="yes"):
            session = built(engine, self.model, self.feeder, self.options)
            feeds = self.feeder.feeds(session.inputs)
            run_session(session, feeds, runner=engine.name, warm_up=_PROFILED_RUNS)
            layers.append(session.layers())
        index = index_bytes(self.model.data, self.model.folder)
        written = {node.name or node.label: index.names[node.writes[0]] for node in index.nodes if node.writes}
        return [written[label] for label in slow_nodes(*layers) if label in written]

    def peak_memory(self, engines: Sequence[Engine], limit: float) -> PeakMemory:
        """The memory that the second engine needs compared with the first: whether ``limit`` times.

        Raises EngineFailure.
        """
        from biopsy.engines.latency import Side, measurable_alike
        from biopsy.engines.peak_memory import decided

        feeds = self.feeder.feeds(built(engines[0], self.model, self.feeder, self.options).inputs)
        with temporary_folder("biopsy-") as folder:
            write_whole(model := folder / "model.onnx", [self.model.data])
            write_feeds(file := folder / "inputs.json", feeds[:1])
            alike = measurable_alike(engine.label for engine in engines)
            sides = [Side(engine=each.label, model=model, folder=self.model.folder, feeds=file) for each in alike]
            return decided(sides, limit)

    def recorder(self, engines: Sequence[Engine], save_to: Path | None) -> Recorder | None:
        """The recorder that keeps outputs in a file, if --record-memory is given."""
        if self.options.record_memory is None:
            return None
        from biopsy.cli.run.recording import Recorder

        if self.options.warm_up:
            self.console.warn("--warm-up is ignored: with --record-memory nothing is timed")
        return Recorder(self.model, engines, self.options, self.console, save_to)

    def _run(self, engine: Engine, number: int, feeder: Feeder, recorder: Recorder | None) -> EngineResult:
        """Run one engine. Raises EngineFailure."""
        if recorder is not None:
            result = recorder.record(engine, number, feeder.feeds(recorder.inputs))
            return EngineResult(engine, result, remarks=recorder.remarks)
        session = session_of(engine, self.model, feeder, self.options, self.console)
        if self.options.build_only:
            self.console.note(f"{engine.label} {engine.version()} has built the model")
            return EngineResult(engine, remarks=tuple(session.remarks))
        feeds, name, warm_up = feeder.feeds(session.inputs), runner_name(engine.name, number), self.options.warm_up
        result = run_session(session, feeds, runner=name, warm_up=warm_up, imports=engine.imports)
        times = [iteration.runtime * 1000 for iteration in result.iterations if iteration.runtime is not None]
        timing = f"{count(len(result.iterations), 'iteration')}, {sum(times) / len(times):.3g} ms each"
        self.console.note(f"{engine.label}  {timing}")
        return EngineResult(engine, result, remarks=tuple(session.remarks))


def with_engine(failure: errors.EngineFailure, engine: Engine) -> errors.EngineFailure:
    """The failure, with a message that names the engine and the stage."""
    message = f"{engine.label} cannot {failure.stage} the model: {failure.kind}: {failure.message}"
    named = errors.EngineFailure(
        message, engine=failure.engine, stage=failure.stage, kind=failure.kind, next_steps=failure.next_steps
    )
    return named.with_traceback(failure.__traceback__)


def save_outputs(path: Path | None, runs: Sequence[EngineResult], recorder: Recorder | None, console: Console) -> None:
    """Write the outputs of the engines, unless the recorder has done so; says if there are none."""
    results = [run.result for run in runs if run.result is not None]
    finished = recorder is not None and recorder.finish()
    if path is None or not (finished or results or recorder is None):
        return
    if not finished and not results:
        console.warn(f"{path} is not written: no engine gave any outputs")
        return
    if not finished:
        write_results(path, results)
    console.note(f"outputs saved to {path}")


_PROFILED_RUNS = 4

_NEEDS_A_RUN = (
    "load_outputs", "save_outputs", "save_inputs", "compare_with", "record_memory", "validate", "slower", "larger",
)  # fmt: skip
"""Options that exclude --build-only."""


def require_possible(options: RunOptions, engines: Sequence[Engine]) -> None:
    """Raise UsageError for options that contradict each other, or that the engines do not support."""
    model, path = options.model, options.save_engine
    _require_two_engines(options, engines)
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
        for needless in options.given(("save_onnx", "larger", *MarkedOutputs.declared)):
            raise errors.UsageError(f"{model} is not an ONNX model, and {needless} needs one")
        for engine in engines:
            if not engine.capabilities.can_save(model):
                raise errors.UsageError(f"{model} is not an ONNX model, and {engine.name} does not read such files")


def _require_two_engines(options: RunOptions, engines: Sequence[Engine]) -> None:
    """Raise UsageError, with the line to type instead, for --slower or --larger without exactly two engines."""
    limits = [*options.as_typed(("slower", "larger"))]
    if not limits or len(engines) == 2:
        return
    suspect = engines[-1]
    other = f"{suspect.name}:release=VERSION" if suspect.distributions else "ENGINE"
    trusted = other if len(engines) == 1 else engines[0].label
    pair = ("--engine", trusted, "--engine", suspect.label, *(word for limit in limits for word in limit.words))
    raise errors.UsageError(
        f"{limits[0].words[0]} needs exactly two engines, and this line names {len(engines)}",
        next_steps=[
            f"{line_of(['biopsy', 'run', as_word(options.model), *pair])}    the one that is trusted comes first"
        ],
    )


def session_of(engine: Engine, model: ModelInput, feeder: Feeder, options: RunOptions, console: Console) -> Session:
    """Build or load the model with an engine, show its remarks, and save the result with --save-engine.

    Raises EngineFailure.
    """
    session = built(engine, model, feeder, options)
    for remark in session.remarks:
        console.warn(remark)
    path = options.save_engine
    if path is not None and engine.capabilities.can_save(path):
        session.save(path)
        console.note(f"{engine.label} saved to {path}{'' if path.suffix else ' (--model-type engine to run it)'}")
    return session


def built(engine: Engine, model: ModelInput, feeder: Feeder, options: RunOptions) -> Session:
    """Build or load the model with an engine. Raises EngineFailure."""
    if model.path is not None and options.has_built_model:
        return engine.load(model.path)
    if engine.capabilities.wants_shapes:
        model = replace(model, shapes=_shapes(model, feeder, build_only=options.build_only))
    return engine.build(model)


def _shapes(model: ModelInput, feeder: Feeder, *, build_only: bool) -> Mapping[str, Sequence[tuple[int, ...]]]:
    """Shapes to build for: those of the given inputs or options and, if the model is run, those that are guessed."""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for feed in feeder.inputs.given or ():
        for name, value in feed.items():
            shapes.setdefault(name, []).append(value.shape)
    if feeder.inputs.given is None:
        for name, shape in feeder.inputs.shapes.items():
            known = tuple(dim for dim in shape if dim is not None)
            if len(known) == len(shape):
                shapes[name] = [known]
    if build_only:
        return shapes
    index = index_bytes(model.data, model.folder)
    feeder.feeds(index.fed_types())
    return {**{name: [tuple(shape)] for name, shape in feeder.guessed.items()}, **shapes}


class Feeder:
    """The inputs of a run. They are made once, when the first engine asks for them, and are the same for all engines.

    ``require_fitting`` raises if the golden values belong to other inputs.
    """

    def __init__(
        self, inputs: Inputs, save_to: Path | None, console: Console, require_fitting: Callable[[Sequence[Feed]], None]
    ) -> None:
        self.inputs = inputs
        self._save_to = save_to
        self._console = console
        self._require_fitting = require_fitting
        self._feeds: Sequence[Feed] | None = None
        self.guessed: Mapping[str, tuple[int, ...]] = {}
        """Shapes that neither the model nor an option gives, by input."""

    def feeds(self, wanted: Mapping[str, ValueType | None]) -> Sequence[Feed]:
        """The feeds for these inputs. The first call makes them, checks them, and saves them if there is a file."""
        if self._feeds is None:
            self._feeds, self.guessed = settled(wanted, self.inputs, self._console)
            self._require_fitting(self._feeds)
            save(self._save_to, self._feeds)
        return self._feeds

    def roundings_off(self, count: int) -> Feeder:
        """A feeder with these inputs moved by ``count`` roundings. Raises CannotCompare if none of them changes."""
        other = copy(self)
        other._feeds = roundings_off(self._feeds or (), count)
        if not differ(self._feeds or (), other._feeds):
            raise errors.CannotCompare("no input has a number that could be one rounding off")
        return other


def settled(
    wanted: Mapping[str, ValueType | None], inputs: Inputs, console: Console
) -> tuple[Sequence[Feed], Mapping[str, tuple[int, ...]]]:
    """The feeds of a model, in its types, and the shapes that were guessed; warns of what is made up, and of casts."""
    sample = feeds_for(wanted, inputs)
    if sample.made_up:
        console.warn(f"the inputs loaded have no {', '.join(map(repr, sample.made_up))}: random values are used for it")
    if sample.guessed:
        choice = line_of([ListOption("--input-shapes", [f"{name}:[...]" for name in sample.guessed])])
        name, shape = next(iter(sample.guessed.items()))
        text = f"the shape of input {name!r} open: {list(shape)} is used"
        if len(sample.guessed) > 1:
            shapes = ", ".join(f"{name!r} {list(shape)}" for name, shape in sample.guessed.items())
            text = f"the shapes of {len(sample.guessed)} inputs open: {shapes} are used"
        console.warn(f"the model leaves {text} ({choice} to choose)")
    feeds = [checked_feed(feed, wanted, number) for number, feed in enumerate(sample.feeds)]
    changes = casts(sample.feeds, feeds) if inputs.given is not None else ()
    if changes:
        console.warn(casts_text(changes))
    return feeds, sample.guessed


def save(path: Path | None, feeds: Sequence[Feed]) -> None:
    """Write the feeds, if a path is given."""
    if path is not None:
        write_feeds(path, feeds)
