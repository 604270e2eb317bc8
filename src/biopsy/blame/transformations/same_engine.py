"""The verdict on a transformed model: held against the model itself, in the same engine, with the same inputs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from biopsy import errors
from biopsy.blame.transformations.interface import interface_change
from biopsy.blame.transformations.question import SameEngine
from biopsy.blame.transformations.rounded_model import ranges_of, rounded_feeds, rounded_model
from biopsy.blame.transformations.tool import Rounds
from biopsy.checks.verdict import VerdictFile
from biopsy.comparison.mismatch import Mismatch, Rounding, kind_of, may_be_rounding
from biopsy.comparison.rounding import explained, only
from biopsy.comparison.run_mismatches import run_mismatches
from biopsy.comparison.runs import RunComparison, compare_runs
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE, Tolerances
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.engines.yardsticks import EXACT, PLAIN
from biopsy.model.index import index_file
from biopsy.model.load import parse
from biopsy.tensors.files import read_feeds, write_feeds
from biopsy.tensors.perturbed import differ, roundings_off
from biopsy.tensors.results import Array, Feed, Iteration, RunnerResult
from biopsy.text import first_line

Runs: TypeAlias = "list[dict[str, Array]]"

PASSES = VerdictFile(outcome="passes")

_CANNOT_RUN = (errors.EngineFailure, errors.CannotCompare, errors.DataError, errors.ModelError)
_NAME = "the transformed model"
_PERTURBED = 4
_ROUNDINGS: Mapping[Rounds, int] = {"float32": 10, "float16": 10 << 13, "int8": 2 << 16}
"""By how many roundings of float32 inputs are perturbed: some of those of the type."""


class CannotTellError(Exception):
    """Nothing can be said of a transformed model; the message says why."""


class EngineVerdicts:
    """Runs models before and after, and judges what differs. Use it in a ``with``: its workers end there.

    ``rounds_to`` is the type that the tool may round to. ``scratch`` is a folder for transient files.
    """

    def __init__(self, asked: SameEngine, rounds_to: Rounds, scratch: Path) -> None:
        self._asked = asked
        self._rounds_to = rounds_to
        self._scratch = scratch
        self._engine = Worker(asked.engine, scratch, asked.timeout)
        self._exact = Worker(EXACT, scratch, asked.timeout)
        self._plain = [Worker(engine, scratch, asked.timeout) for engine in PLAIN]
        self._numbers = itertools.count()

    def __enter__(self) -> EngineVerdicts:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in (self._engine, self._exact, *self._plain):
            worker.close()

    def version(self) -> str:
        """That of the engine. Raises EngineMissing."""
        return self._engine.version()

    def start(self) -> None:
        """Begin to load the engine."""
        self._engine.start()

    def run(self, model: ModelInput, feeds: Path) -> Runs:
        """What the engine gives of a model. Raises what the engine raises."""
        return self._engine.run(model, feeds)

    def agree(self, one: Runs, other: Runs) -> bool:
        """Whether two runs of a model are the same, within the tolerances."""
        with contextlib.suppress(errors.CannotCompare):
            return self._comparison(_result("first", one), _result("second", other)).passed
        return True

    def _comparison(
        self, actual: RunnerResult, expected: RunnerResult, tolerances: Tolerances | None = None
    ) -> RunComparison:
        asked = self._asked
        return compare_runs(actual, expected, tolerances or asked.tolerances, asked.stats, limits=asked.limits)

    def verdict(self, before: ModelInput, expected: Runs, after: Path, feeds: Path) -> VerdictFile:
        """How the model in the file ``after`` is wrong, or that it passes; ``expected`` is what ``before`` gives.

        Raises CannotTellError.
        """
        try:
            index = index_file(after)
        except errors.ModelError as error:
            return VerdictFile(outcome="fails", stage="load", kind="InvalidModel", message=error.summary)
        changed = interface_change(index_file(before.path), index, read_feeds(feeds)) if before.path else None
        if changed is not None:
            return changed
        try:
            given = self._engine.run(ModelInput(b"", after.parent, after), feeds)
        except errors.EngineFailure as error:
            return VerdictFile(
                outcome="fails",
                engine=error.engine,
                stage=error.stage,
                kind=error.kind,
                message=error.message.replace(str(after), _NAME),
            )
        except (errors.CannotCompare, errors.ModelError, errors.DataError) as error:
            return VerdictFile(outcome="fails", stage="load", kind="other-interface", message=first_line(error.message))
        return self._compared(before, expected, given, feeds)

    def _compared(self, before: ModelInput, expected: Runs, given: Runs, feeds: Path) -> VerdictFile:
        actual, wanted = _result("after", given), _result("before", expected)
        try:
            compared = self._comparison(actual, wanted)
        except errors.CannotCompare as error:
            raise CannotTellError(first_line(error.message)) from error
        passed = compared.passed
        if passed and not self._asked.is_told:
            compared = self._comparison(actual, wanted, of_small_outputs(wanted))
        if compared.passed:
            return PASSES
        found = run_mismatches(actual, wanted, compared)
        if not self._may_be_rounding(found):
            return self._differs(found, None)
        rounding = self._rounding(before, actual, wanted, {output.name for _, output in compared.failures}, feeds)
        if rounding.verdict == "rounding":
            return PASSES
        if rounding.verdict == "unknown" and passed:
            return PASSES
        if rounding.verdict == "unknown":
            raise CannotTellError(f"they differ, and rounding cannot be told from a fault: {rounding.reason}")
        return self._differs(found, rounding)

    def _differs(self, found: Sequence[Mismatch], rounding: Rounding | None) -> VerdictFile:
        return VerdictFile(
            outcome="fails",
            engine=self._asked.engine.partition(":")[0],
            stage="compare",
            kind=kind_of(found) or "mismatch",
            outputs=tuple(dict.fromkeys(one.output for one in found)),
            mismatches=tuple(found),
            rounding=rounding,
        )

    def _may_be_rounding(self, found: Sequence[Mismatch]) -> bool:
        if self._asked.is_told or any(one.kind not in {"mismatch", "not-finite-mismatch"} for one in found):
            return False
        return self._rounds_to != "float32" or may_be_rounding(found)

    def _rounding(
        self, before: ModelInput, actual: RunnerResult, expected: RunnerResult, names: set[str], feeds: Path
    ) -> Rounding:
        """Whether the roundings of a correct transformation explain how these outputs differ."""
        try:
            exact = only(_result("exact", self._exact.run(before, feeds)), names)
            plain = only(_result("plain", self._rounded(before, feeds)), names)
            sides = only(actual, names), only(expected, names)
            return explained(sides[0], sides[1], plain, exact, lambda: self._perturbed(before, feeds, names))
        except errors.BiopsyError as error:
            return Rounding("unknown", reason=first_line(error.message))

    def _rounded(self, before: ModelInput, feeds: Path) -> Runs:
        """What a model gives whose values are rounded as the tool may round them."""
        if self._rounds_to == "float32":
            return self._first_plain(before, feeds)
        proto, given = parse(_data(before), before.path), read_feeds(feeds)
        every = [name for node in proto.graph.node for name in node.output if name]
        recorded = self._plain[0].run(before, feeds, every) if self._rounds_to == "int8" else []
        ranges = ranges_of([*recorded, *given])
        model = rounded_model(proto, self._rounds_to, ranges)
        with self._file_of(rounded_feeds(given, self._rounds_to, ranges)) as path:
            return self._first_plain(ModelInput(model.SerializeToString(), before.folder), path)

    def _first_plain(self, model: ModelInput, feeds: Path) -> Runs:
        for worker in self._plain[:-1]:
            with contextlib.suppress(*_CANNOT_RUN):
                return worker.run(model, feeds)
        return self._plain[-1].run(model, feeds)

    def _perturbed(self, before: ModelInput, feeds: Path, names: set[str]) -> Iterator[RunnerResult]:
        given = read_feeds(feeds)
        for seed in range(_PERTURBED):
            others = roundings_off(given, _ROUNDINGS[self._rounds_to], seed)
            if not differ(given, others):
                return
            with self._file_of(others) as path:
                yield only(_result("perturbed", self._exact.run(before, path)), names)

    @contextlib.contextmanager
    def _file_of(self, feeds: Sequence[Feed]) -> Iterator[Path]:
        path = self._scratch / f"rounded-{next(self._numbers)}.safetensors"
        try:
            write_feeds(path, feeds)
            yield path
        finally:
            path.unlink(missing_ok=True)


def of_small_outputs(expected: RunnerResult) -> Tolerances:
    """The usual tolerances, where the greatest number of an output is less than 1 by so much stricter.

    Otherwise whatever a tool makes of an output below the absolute tolerance would be right.
    """
    peaks: dict[str, float] = {}
    for iteration in expected.iterations:
        for name, value in iteration.outputs.items():
            if value.dtype.kind == "f":
                finite = np.abs(value[np.isfinite(value)]).astype(np.float64)
                peaks[name] = max(peaks.get(name, 0.0), float(finite.max(initial=0.0)))
    return Tolerances({name: DEFAULT_TOLERANCE * peak for name, peak in peaks.items() if 0 < peak < 1})


def _result(name: str, runs: Runs) -> RunnerResult:
    return RunnerResult(name, tuple(Iteration(run) for run in runs))


def _data(model: ModelInput) -> bytes:
    return model.data or (b"" if model.path is None else model.path.read_bytes())
