"""An exported model in engines, held value by value against what the module gives, within the time that is left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from biopsy import errors, events
from biopsy.comparison.mismatch import ErrorSize, Mismatch, Rounding, error_text, may_be_rounding, most_telling
from biopsy.comparison.mismatch_size import explained, only, run_mismatches
from biopsy.comparison.runs import compare_runs
from biopsy.comparison.tolerance import Stats, Tolerances
from biopsy.diagnosis.context import TimeUpError
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EXACT, PLAIN
from biopsy.engines.worker import Worker
from biopsy.tensors.files import read_feeds, write_feeds
from biopsy.tensors.generate import differ, roundings_off
from biopsy.tensors.results import Array, Iteration, RunnerResult
from biopsy.text import first_line
from biopsy.torch.arrays import Leaf, array_of_leaf
from biopsy.torch.calls import Arguments

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

    ``timeout`` is in seconds per run. ``left`` is the time for all of them: once it is over, TimeUpError is raised.
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
        rounding = (
            self._explained(model, outputs, model.expected, found)
            if found is not None and found.may_be_rounding
            else None
        )
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
            return worker.run(ModelInput(b"", model.path.parent, model.path), feeds)[0]
        except errors.BiopsyError:
            self._left.require()  # it may have been ended by that, be it while it started
            raise

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


# What two runs give, value by value: tensors within tolerances, of the same type and shape, and all else equal.

_MOST_TOLD = 8
_SMALL_PART = 0.01
_LONE = "output"
"""What the one value is called that a module returns as it is."""


@dataclass(frozen=True, kw_only=True)
class Closeness:
    """What counts as equal; "" in either is for all outputs."""

    tolerances: Tolerances
    stats: Stats


@dataclass(frozen=True, kw_only=True)
class ModuleDifference:
    """How two runs differ: the greatest mismatches of each kind, the gravest first."""

    mismatches: tuple[Mismatch, ...]

    @property
    def worst(self) -> Mismatch:
        """The one that tells most."""
        return self.mismatches[0]

    @property
    def text(self) -> str:
        """The worst, in words."""
        return error_text(ErrorSize(self.worst))

    @property
    def outputs(self) -> set[str]:
        """The outputs that differ."""
        return {one.output for one in self.mismatches}

    @property
    def is_of_values(self) -> bool:
        """Whether numbers differ, and nothing else: what rounding may explain."""
        return all(one.kind == "mismatch" for one in self.mismatches)

    @property
    def may_be_rounding(self) -> bool:
        """Whether it is worthwhile to ask float64: numbers differ, and not by far more than rounding could make."""
        return self.is_of_values and may_be_rounding(self.mismatches)

    def is_much_less_than(self, other: ModuleDifference) -> bool:
        """Whether numbers differ, by a small part of how far they differ in another case."""
        errors_ = self.worst.error, other.worst.error
        if not self.is_of_values or errors_[0] is None or errors_[1] is None:
            return False
        return errors_[0] <= _SMALL_PART * errors_[1]


def arrays_of(leaves: Sequence[Leaf]) -> dict[str, Array]:
    """The values that can be compared as arrays, by their place in what a module returns."""
    found = {leaf.path or _LONE: array_of_leaf(leaf.value) for leaf in leaves}
    return {name: array for name, array in found.items() if array is not None}


def difference(actual: Mapping[str, Array], expected: Mapping[str, Array], asked: Closeness) -> ModuleDifference | None:
    """How arrays differ from those that are expected, by name; None if they do not.

    Raises CannotCompare if there is nothing to compare: no array has an element.
    """
    found = [Mismatch(output=name, kind="missing-output") for name in actual.keys() ^ expected.keys()]
    found += [
        Mismatch(output=name, kind="type-mismatch")
        for name in actual.keys() & expected.keys()
        if actual[name].dtype.kind != "U" and actual[name].dtype != expected[name].dtype
    ]
    if actual.keys() & expected.keys():
        sides = RunnerResult("actual", (Iteration(actual),)), RunnerResult("expected", (Iteration(expected),))
        try:
            compared = compare_runs(*sides, asked.tolerances, asked.stats)
            found += run_mismatches(*sides, compared)
        except errors.CannotCompare:
            if not found:
                raise
    elif not found:
        raise errors.CannotCompare("the module returns no tensor and no number: there is nothing to compare")
    return ModuleDifference(mismatches=most_telling(found, _MOST_TOLD)) if found else None


def difference_of_leaves(actual: Sequence[Leaf], expected: Sequence[Leaf], asked: Closeness) -> ModuleDifference | None:
    """How what two runs return differs, in structure, in what is no number, and in numbers; None if it does not."""
    others = [_other(leaves) for leaves in (actual, expected)]
    if others[0] != others[1]:
        names = [name for name in {**others[0], **others[1]} if others[0].get(name, "") != others[1].get(name, "")]
        return ModuleDifference(
            mismatches=tuple(Mismatch(output=name, kind="type-mismatch") for name in names[:_MOST_TOLD])
        )
    return difference(arrays_of(actual), arrays_of(expected), asked)


def _other(leaves: Sequence[Leaf]) -> dict[str, str]:
    """The type of each value that is no array, by its place; None has a name of its own."""
    return {
        leaf.path or _LONE: "None" if leaf.value is None else type(leaf.value).__name__
        for leaf in leaves
        if array_of_leaf(leaf.value) is None
    }


# The time that a diagnosis may take: what is left of it for a run, and when it is over.

_LEAST_SECONDS = 1.0


class TimeLeft:
    """Counts from when it is made; ``seconds`` is None for no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def seconds(self) -> float | None:
        """What is left, never less than 0; None without a limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self.seconds == 0

    def require(self) -> None:
        """Raise TimeUpError if it is over."""
        if self.is_over:
            raise TimeUpError

    def for_run(self, timeout: float | None) -> float | None:
        """The seconds that a run may take which may take ``timeout`` by itself; None for any."""
        left = None if self.seconds is None else max(_LEAST_SECONDS, self.seconds)
        return min((one for one in (timeout, left) if one is not None), default=None)

    def bounding(self, listener: events.Listener) -> events.Listener:
        """A listener for work that knows of no limit: it raises TimeUpError once the time is over."""

        def bounded(event: events.Event) -> None:
            listener(event)
            self.require()

        return bounded
