"""Runs one model in all engines of a hunt, in a fork of a process that has loaded them, and votes on the outputs."""

from __future__ import annotations

import json
import mmap
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import onnx

from biopsy import errors
from biopsy.checks.message import message_of
from biopsy.diagnosis.question import write_inputs
from biopsy.engines.base import Engine, ModelInput, Session
from biopsy.engines.registry import PLAIN, class_of, create, created_plain, is_reference, parse_spec
from biopsy.engines.runner import run_session, with_declared_types
from biopsy.hunting.models import ModelSample, computing, operators_of_few, samples_of
from biopsy.hunting.records import BUGS, NOT_JUDGED, Kind, MatrixCell, ModelResult
from biopsy.hunting.vote import EXPECTED, Vote, differ, engine_for
from biopsy.model.extract import MarkedOutputs, mark_outputs
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.load import read_bytes
from biopsy.model.nodes import may_be_random, warning_of_random
from biopsy.processes.engine_calls import SIZE, share
from biopsy.processes.server import Request, serve_forks
from biopsy.processes.writing import write_whole
from biopsy.records import plain, record_of
from biopsy.tensors import generate
from biopsy.tensors.results import Array, Feed, Iteration, RunnerResult
from biopsy.text import first_line, shortened

_LONGEST_TEXT = 300

_UNSUPPORTED = re.compile(
    r"not (?:yet )?(?:been )?(?:implemented|supported)|un(?:supported|implemented)|only supported|does ?n[o']t support"
    r"|no conversion rule|(?:could not find|no) (?:an )?implementation|not a registered function|under development"
    r"|no kernel|no schema|isn't (?:supported|implemented)|please,? install",
    re.IGNORECASE,
)
"""The words with which engines say that they lack an operator, a type or a version of it, or the machine something."""

_UNSUPPORTED_KINDS = frozenset(
    {"NotImplemented", "NotImplementedError", "RuntimeImplementationError", "NotSupported", "UnsupportedType"}
)

_UNREADABLE = (errors.ModelError, errors.DataError, errors.CannotCompare, errors.DoesNotFit, errors.UsageError)
"""What reading a model and its inputs raises if they cannot be used, or are gone."""

_NO_SHAPE = "Field 'shape' of 'type' is required but missing"


def main() -> int:
    """Load the engines whose forks may be warm, then make a fork for each model. The arguments are the engines."""
    for spec in dict.fromkeys((*sys.argv[1:], *PLAIN)):
        with suppress(errors.BiopsyError):
            engine_class = class_of(parse_spec(spec))
            if engine_class.forks_warm:
                created_plain(engine_class).warm_up()
    serve_forks(_answer)


def _answer(request: Request) -> int:
    """Try the requested model, and write its result to the requested path."""
    with open(request["calls"], "r+b") as calls:  # noqa: PTH123 -- a descriptor is needed
        share(mmap.mmap(calls.fileno(), SIZE))
    dead = {spec: record_of(MatrixCell, tree) for spec, tree in request["dead"].items()}
    trial = ModelTrial(
        model=Path(request["model"]),
        files=[Path(file) for file in request["files"]],
        engines=request["engines"],
        dead=dead,
        seed=request["seed"],
    )
    try:
        result = trial.result(Path(request["inputs"]))
    except Exception as error:
        text = shortened(first_line(f"{type(error).__name__}: {error}"), _LONGEST_TEXT)
        cells = (dead.get(spec) or MatrixCell(engine=spec, kind="error", text=text) for spec in request["engines"])
        result = ModelResult(model=request["model"], state="", cells=tuple(cells))
    result = replace(result, state=request["state"])
    write_whole(Path(request["result"]), [json.dumps(plain(result)).encode()])
    return 0


class ModelTrial:
    """One model in several engines. ``dead`` are engines that ended or held up an earlier fork, with what it means."""

    def __init__(
        self, *, model: Path, files: Sequence[Path], engines: Sequence[str], dead: Mapping[str, MatrixCell], seed: int
    ) -> None:
        self._path = model
        self._files = files
        self._engines = engines
        self._dead = dead
        self._seed = seed
        self._ran: dict[tuple[str, int], RunnerResult | errors.EngineFailure] = {}
        self._built: dict[str, Session | errors.EngineFailure] = {}

    @cached_property
    def _model(self) -> ModelInput:
        return ModelInput(read_bytes(self._path), self._path.parent, self._path)

    @cached_property
    def _index(self) -> ModelIndex:
        return index_bytes(self._model.data, self._model.folder)

    @cached_property
    def _samples(self) -> list[ModelSample]:
        return samples_of(self._index, self._files, self._seed)

    def result(self, kept: Path) -> ModelResult:
        """What each engine makes of the model. If one fails, its samples are written to ``kept`` and its ending."""
        base = ModelResult(model=str(self._path), state="")
        try:
            index = self._index
            base = replace(base, nodes=len(index.nodes), size=len(self._model.data))
            samples = self._samples
        except _UNREADABLE as error:
            text = self._text(first_line(error.message))
            kind: Kind = "invalid model" if isinstance(error, errors.ModelError) else "every engine"
            return replace(base, cells=tuple(MatrixCell(engine=spec, kind=kind, text=text) for spec in self._engines))
        cells = self._cells(samples)
        base = replace(base, cells=tuple(cells.values()), inputs=samples[0].source if samples else "none")
        if any(cell.is_bug for cell in base.cells) and any(sample.feed for sample in samples):
            with suppress(errors.DataError):
                shown = {cell.sample for cell in base.cells if cell.is_bug}
                feeds = [samples[number].feed for number in sorted(shown)]
                kept.parent.mkdir(exist_ok=True)
                base = replace(base, file=write_inputs(kept, feeds).name)
        return base

    def _cells(self, samples: Sequence[ModelSample]) -> dict[str, MatrixCell]:
        offers: dict[str, list[MatrixCell]] = {
            spec: [self._dead[spec]] if spec in self._dead else [] for spec in self._engines
        }
        random = warning_of_random(self._index) if may_be_random(self._model.data) else None
        for number, sample in enumerate(samples):
            self._ran.clear()
            results, failures = {}, {}
            for spec in self._engines:
                try:
                    results[spec] = self._run(create(spec), sample)
                except errors.EngineFailure as failure:
                    failures[spec] = failure
            for spec in failures.keys() - self._dead.keys():
                offers[spec].append(self._refusal(spec, number, failures[spec], list(results)))
            if random is not None:
                voted = {spec: MatrixCell(engine=spec, kind="random", text=random) for spec in results}
            else:
                voted = self._vote(number, sample, results) if results else {}
            for spec, cell in voted.items():
                offers[spec].append(cell)
        return {spec: min(cells, key=_rank) for spec, cells in offers.items()}

    def _run(self, engine: Engine, sample: ModelSample, roundings: int = 0) -> RunnerResult:
        """The outputs of an engine for a sample, or for one moved by roundings. Raises EngineFailure, CannotCompare."""
        key = (engine.label, roundings)
        if key not in self._ran:
            self._ran[key] = self._outcome(engine, sample, roundings)
        outcome = self._ran[key]
        if isinstance(outcome, errors.EngineFailure):
            raise outcome
        return outcome

    def _outcome(self, engine: Engine, sample: ModelSample, roundings: int) -> RunnerResult | errors.EngineFailure:
        if engine.label in self._dead:
            return engine.failure(self._dead[engine.label].text, "run", "dead")
        feed: Feed = sample.feed
        if roundings:
            (feed,) = generate.roundings_off([sample.feed], roundings)
            if not generate.differ([sample.feed], [feed]):
                raise errors.CannotCompare("no input has a number that could be one rounding off")
        try:
            result = run_session(self._session(engine, sample), [feed], runner=engine.label)
        except errors.EngineFailure as failure:
            return failure
        except errors.CannotCompare as error:  # the engine wants other inputs than the model declares
            return engine.failure(error.message, "run", "UnsupportedType")
        return with_declared_types([result], [engine], self._model)[0]

    def _session(self, engine: Engine, sample: ModelSample) -> Session:
        """The model built in an engine, once unless the engine needs the shapes of the sample. Raises EngineFailure."""
        if engine.capabilities.wants_shapes:
            shapes = {name: [value.shape] for name, value in sample.feed.items()}
            return engine.build(replace(self._model, shapes=shapes))
        if engine.label not in self._built:
            try:
                self._built[engine.label] = engine.build(self._model)
            except errors.EngineFailure as failure:
                self._built[engine.label] = failure
        built = self._built[engine.label]
        if isinstance(built, errors.EngineFailure):
            raise built
        return built

    def _vote(self, number: int, sample: ModelSample, results: Mapping[str, RunnerResult]) -> dict[str, MatrixCell]:
        """A cell for each engine that ran."""

        def run(engine: Engine, roundings: int = 0) -> RunnerResult:
            return self._run(engine, sample, roundings)

        def inner(name: str) -> Array | None:
            try:
                return self._marked(PLAIN[-1], [name], sample).iterations[0].outputs[name]
            except errors.BiopsyError:
                return None

        vote = Vote(index=self._index, run=run, inner=inner)
        expected = None if sample.expected is None else RunnerResult(EXPECTED, (Iteration(sample.expected),))
        return {
            spec: replace(cell, sample=number, operators=self._operators(cell, sample)) if cell.is_bug else cell
            for spec, cell in vote.cells(results, expected).items()
        }

    def _refusal(self, spec: str, number: int, failure: errors.EngineFailure, others: Sequence[str]) -> MatrixCell:
        """What a refusal means, where ``others`` run the sample."""
        message = message_of(failure.message, str(self._path))
        cell = MatrixCell(
            engine=spec,
            kind="refused",
            stage=failure.stage,
            failure=failure.kind,
            message=str(message),
            text=self._text(" ".join(failure.message.split())),
            sample=number,
        )
        if failure.kind in _UNSUPPORTED_KINDS or _UNSUPPORTED.search(failure.message):
            return replace(cell, kind="unsupported")
        if not others and not is_reference(spec):
            with suppress(errors.EngineFailure, errors.CannotCompare):
                self._run(create(PLAIN[-1]), self._samples[number])
                others = [PLAIN[-1]]
        if not others:
            return replace(cell, kind="every engine")
        if self._is_invalid():
            return replace(cell, kind="invalid model")
        return replace(cell, trusted=others[0], operators=operators_of_few(self._index))

    def _text(self, message: str) -> str:
        """A message about the model, whose folder is left out: it may lie elsewhere than where it was found."""
        return shortened(message.replace(f"{self._path.parent}/", ""), _LONGEST_TEXT)

    def _is_invalid(self) -> bool:
        """Whether onnx's own checker refuses the model, for more than an output without a shape, which is allowed."""
        try:
            onnx.checker.check_model(str(self._path), full_check=True)
        except Exception as error:
            return _NO_SHAPE not in str(error)
        return False

    def _operators(self, cell: MatrixCell, sample: ModelSample) -> tuple[str, ...]:
        """The operator of the first layer that is wrong if every tensor is marked; of a small model, all operators."""
        few = operators_of_few(self._index)
        if few:
            return few
        try:
            specs = (engine_for(cell.trusted), cell.engine)
            trusted, suspect = (self._marked(spec, "all", sample) for spec in specs)
        except errors.BiopsyError:
            return ()
        for node in computing(self._index):
            if differ(suspect, trusted, {self._index.names[tensor] for tensor in node.writes}):
                return (node.op_type,)
        return ("right if every tensor is marked",)

    def _marked(self, spec: str, outputs: MarkedOutputs, sample: ModelSample) -> RunnerResult:
        """The outputs of the model with other outputs. Raises what building and running raise."""
        engine = create(spec)
        model = ModelInput(mark_outputs(self._model.data, outputs), self._model.folder)
        result = run_session(engine.build(model), [sample.feed], runner=spec)
        return with_declared_types([result], [engine], model)[0]


_RANKS: Sequence[Kind] = [*BUGS, "rounding", "tie", "right", *NOT_JUDGED]


def _rank(cell: MatrixCell) -> int:
    """What a cell tells: a bug more than none, what was judged more than what was not."""
    return _RANKS.index(cell.kind)
