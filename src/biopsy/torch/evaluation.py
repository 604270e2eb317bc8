"""An exported model in engines, each in a process of its own, held against what the module gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from biopsy import errors
from biopsy.comparison.mismatch import Rounding
from biopsy.comparison.rounding import explained, only
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.engines.yardsticks import EXACT, PLAIN
from biopsy.tensors.files import read_feeds, write_feeds
from biopsy.tensors.perturbed import differ, roundings_off
from biopsy.tensors.results import Array, Iteration, RunnerResult
from biopsy.text import first_line
from biopsy.torch.calls import Arguments
from biopsy.torch.differences import Closeness, ModuleDifference, difference
from biopsy.torch.outputs import Leaf
from biopsy.torch.time_left import TimeLeft

Outputs: TypeAlias = "Mapping[str, Array]"

_CANNOT_RUN = (errors.EngineFailure, errors.CannotCompare, errors.DataError, errors.ModelError)
_ROUNDINGS = 10
_PERTURBED = 4


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Arguments of a module, and what it gives for them. ``sizes`` in words, "" if they are those that were given."""

    given: Arguments
    expected: Sequence[Leaf]
    sizes: str = ""

    @property
    def where(self) -> str:
        """The end of a sentence that says with which sizes; "" for those that were given."""
        return f", also with sizes {self.sizes}" if self.sizes else ""


@dataclass(frozen=True, kw_only=True)
class OnnxModel:
    """A model in a file, a file of what it is fed with, and what the module gives for it, by the names of outputs.

    ``program`` is the ``ONNXProgram`` that it was saved from, ``sample`` where the values come from.
    """

    path: Path
    feeds: Path
    expected: Mapping[str, Array]
    program: Any
    sample: Sample

    @property
    def as_input(self) -> ModelInput:
        """As engines take it."""
        return ModelInput(b"", self.path.parent, self.path)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What an engine gives of a model: ``failure`` says why it gives nothing, ``difference`` how that is wrong.

    ``rounding``: whether rounding explains the difference.
    """

    engine: str
    failure: str = ""
    outputs: Mapping[str, Array] = field(default_factory=dict)
    difference: ModuleDifference | None = None
    rounding: Rounding | None = None

    @property
    def ran(self) -> bool:
        """Whether it gave anything."""
        return not self.failure

    @property
    def is_right(self) -> bool:
        """Whether it gave what is expected, but for rounding."""
        return self.ran and (self.difference is None or self.is_rounding)

    @property
    def is_rounding(self) -> bool:
        """Whether it differs, by rounding alone."""
        return self.rounding is not None and self.rounding.verdict == "rounding"


class Evaluators:
    """Runs models in engines. Use it in a ``with``: their processes end there. ``scratch`` is for transient files.

    ``timeout`` is in seconds per run, ``left`` the time for all of them: its end is nobody's failure, but TimeUpError.
    """

    def __init__(self, asked: Closeness, scratch: Path, timeout: float | None, left: TimeLeft) -> None:
        self._asked = asked
        self._left = left
        self._scratch = scratch
        self._timeout = timeout
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Evaluators:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers.values():
            worker.close()

    def start(self, engine: str) -> None:
        """Begin to load an engine, so that it is there when it is asked."""
        self._worker(engine).start()

    def version(self, engine: str) -> str:
        """The version of an engine. Raises EngineMissing."""
        return self._worker(engine).version()

    def evaluation(self, engine: str, model: OnnxModel) -> Evaluation:
        """What an engine gives of a model, judged.

        Raises EngineMissing, CannotCompare if nothing can be judged, TimeUpError.
        """
        try:
            outputs = self._run(engine, model, model.feeds)
        except errors.EngineFailure as error:
            return Evaluation(engine=engine, failure=f"cannot {error.stage} it: {first_line(error.message)}")
        except _CANNOT_RUN as error:
            return Evaluation(engine=engine, failure=first_line(error.message))
        found = difference(outputs, model.expected, self._asked)
        rounding = self._rounding(model, outputs, found) if found is not None and found.may_be_rounding else None
        return Evaluation(engine=engine, outputs=outputs, difference=found, rounding=rounding)

    def agree(self, one: Evaluation, other: Evaluation, model: OnnxModel) -> bool:
        """Whether two engines give the same, but for rounding."""
        found = difference(one.outputs, other.outputs, self._asked)
        if found is None or (one.difference is not None and found.is_much_less_than(one.difference)):
            return True
        return found.is_of_values and self._explained(model, one.outputs, other.outputs, found).verdict == "rounding"

    def _worker(self, engine: str) -> Worker:
        if engine not in self._workers:
            self._workers[engine] = Worker(engine, self._scratch, self._timeout)
        return self._workers[engine]

    def _run(self, engine: str, model: OnnxModel, feeds: Path) -> Outputs:
        self._left.require()
        worker = self._worker(engine)
        worker.limit(self._left.for_run(self._timeout))
        try:
            return worker.run(model.as_input, feeds)[0]
        except errors.BiopsyError:
            self._left.require()  # it may have been ended by that, be it while it started
            raise

    def _rounding(self, model: OnnxModel, outputs: Outputs, found: ModuleDifference) -> Rounding:
        return self._explained(model, outputs, model.expected, found)

    def _explained(self, model: OnnxModel, actual: Outputs, expected: Outputs, found: ModuleDifference) -> Rounding:
        """Whether the roundings of plain float32 explain how two runs differ."""
        try:
            exact = self._run(EXACT, model, model.feeds)
            sides = (
                _result("actual", actual),
                _result("expected", expected),
                self._plain(model),
                _result("exact", exact),
            )
            actual_, expected_, plain, exact_ = (only(side, found.outputs) for side in sides)
            return explained(actual_, expected_, plain, exact_, lambda: self._perturbed(model))
        except errors.BiopsyError as error:
            return Rounding("unknown", reason=first_line(error.message))

    def _plain(self, model: OnnxModel) -> RunnerResult:
        for engine in PLAIN[:-1]:
            try:
                return _result("plain", self._run(engine, model, model.feeds))
            except _CANNOT_RUN:
                continue
        return _result("plain", self._run(PLAIN[-1], model, model.feeds))

    def _perturbed(self, model: OnnxModel) -> Iterator[RunnerResult]:
        given = read_feeds(model.feeds)
        for seed in range(_PERTURBED):
            others = roundings_off(given, _ROUNDINGS, seed)
            if not differ(given, others):
                return
            path = self._scratch / f"perturbed-{seed}.safetensors"
            try:
                write_feeds(path, others)
                yield _result("perturbed", self._run(EXACT, model, path))
            finally:
                path.unlink(missing_ok=True)


def _result(name: str, outputs: Outputs) -> RunnerResult:
    return RunnerResult(name, (Iteration(outputs),))
