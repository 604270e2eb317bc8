"""The verdict on a transformed model, compared with the model itself in the same engine with the same inputs.

The error of a correct conversion is not a failure. The yardstick of converters to float16 and of quantizers is a model
of which every value is rounded to that type, as plain float32 is the yardstick of optimizers. Values are rounded where
they are stored, between the nodes of the main graph.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from biopsy import errors
from biopsy.checks.verdict import VerdictFile
from biopsy.comparison.mismatch import ONE_SIDED, Mismatch, Rounding, kind_of, may_be_rounding
from biopsy.comparison.mismatch_size import explained, only, run_mismatches
from biopsy.comparison.runs import RunComparison, compare_runs
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE, Tolerances
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EXACT, MOVED, PLAIN
from biopsy.engines.worker import CANNOT_RUN, Worker
from biopsy.model import walk
from biopsy.model.index import ModelIndex, index_file
from biopsy.model.infer import infer_types
from biopsy.model.load import parse
from biopsy.model.tensor_type import TensorType
from biopsy.questions.transformations.question import SameEngine
from biopsy.questions.transformations.tools import Rounds
from biopsy.tensors.files import read_feeds, write_feeds
from biopsy.tensors.generate import differ, roundings_off
from biopsy.tensors.results import Array, Feed, Iteration, RunnerResult
from biopsy.text import first_line

Runs: TypeAlias = "list[dict[str, Array]]"

PASSES = VerdictFile(outcome="passes")

_ROUNDINGS_OF_INT8 = 2 << 16
"""The size of a perturbation of inputs in ULP of float32: a few steps of int8, to which even the inputs are rounded."""


class CannotTellError(Exception):
    """A transformed model cannot be judged; the message says why."""


class EngineVerdicts:
    """Runs a model and its transformed model, and judges the differences. Use it in a ``with``.

    ``rounds_to`` is the type that the tool may round to. ``scratch`` is a folder for transient files.
    """

    def __init__(self, comparing: SameEngine, rounds_to: Rounds, scratch: Path) -> None:
        self._comparing = comparing
        self._rounds_to = rounds_to
        self._scratch = scratch
        self.engine = Worker(comparing.engine, scratch, comparing.timeout)
        self._exact = Worker(EXACT, scratch, comparing.timeout)
        self._plain = [Worker(engine, scratch, comparing.timeout) for engine in PLAIN]
        self._numbers = itertools.count()

    def __enter__(self) -> EngineVerdicts:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in (self.engine, self._exact, *self._plain):
            worker.close()

    def agree(self, first: Runs, second: Runs) -> bool:
        """Whether the outputs of two runs agree within the tolerances, or cannot be compared."""
        with contextlib.suppress(errors.CannotCompare):
            return self._comparison(_result("first", first), _result("second", second)).passed
        return True

    def _comparison(
        self, actual: RunnerResult, expected: RunnerResult, tolerances: Tolerances | None = None
    ) -> RunComparison:
        comparing = self._comparing
        return compare_runs(
            actual, expected, tolerances or comparing.tolerances, comparing.stats, limits=comparing.limits
        )

    def verdict(self, before: ModelInput, expected: Runs, after: Path, feeds: Path) -> VerdictFile:
        """The verdict on the model in the file ``after``; ``expected`` are the outputs of ``before``.

        Raises CannotTellError.
        """
        try:
            index = index_file(after)
        except errors.ModelError as error:
            return VerdictFile(outcome="fails", stage="load", kind="InvalidModel", message=error.summary)
        change = interface_change(index_file(before.path), index, read_feeds(feeds)) if before.path else None
        if change is not None:
            return change
        try:
            outputs = self.engine.run(ModelInput(b"", after.parent, after), feeds)
        except errors.EngineFailure as error:
            return VerdictFile(
                outcome="fails",
                engine=error.engine,
                stage=error.stage,
                kind=error.kind,
                message=error.message.replace(str(after), "the transformed model"),
            )
        except (errors.CannotCompare, errors.ModelError, errors.DataError) as error:
            return VerdictFile(outcome="fails", stage="load", kind="other-interface", message=first_line(error.message))
        return self._compared(before, _result("before", expected), _result("after", outputs), feeds)

    def _compared(self, before: ModelInput, expected: RunnerResult, actual: RunnerResult, feeds: Path) -> VerdictFile:
        try:
            comparison = self._comparison(actual, expected)
        except errors.CannotCompare as error:
            raise CannotTellError(first_line(error.message)) from error
        passed = comparison.passed
        if passed and not self._comparing.tolerances_decide:
            comparison = self._comparison(actual, expected, of_small_outputs(expected))
        if comparison.passed:
            return PASSES
        mismatches = run_mismatches(actual, expected, comparison)
        failure = VerdictFile(
            outcome="fails",
            engine=self._comparing.engine.partition(":")[0],
            stage="compare",
            kind=kind_of(mismatches) or "mismatch",
            outputs=tuple(dict.fromkeys(mismatch.output for mismatch in mismatches)),
            mismatches=tuple(mismatches),
        )
        of_values = all(mismatch.kind == "mismatch" or mismatch.kind in ONE_SIDED for mismatch in mismatches)
        may_be_rounded = of_values and (self._rounds_to != "float32" or may_be_rounding(mismatches))
        if self._comparing.tolerances_decide or not may_be_rounded:
            return failure
        rounding = self._rounding(before, actual, expected, {output.name for _, output in comparison.failures}, feeds)
        if rounding.verdict == "rounding" or (rounding.verdict == "unknown" and passed):
            return PASSES
        if rounding.verdict == "unknown":
            raise CannotTellError(f"they differ, and rounding cannot be told from a fault: {rounding.reason}")
        return replace(failure, rounding=rounding)

    def _rounding(
        self, before: ModelInput, actual: RunnerResult, expected: RunnerResult, names: set[str], feeds: Path
    ) -> Rounding:
        """Whether the rounding of a correct transformation explains how these outputs differ."""
        try:
            exact = only(_result("exact", self._exact.run(before, feeds)), names)
            plain = only(_result("plain", self._rounded_outputs(before, feeds)), names)
            sides = only(actual, names), only(expected, names)
            return explained(sides[0], sides[1], plain, exact, lambda: self._perturbed(before, feeds, names))
        except errors.BiopsyError as error:
            return Rounding("unknown", reason=first_line(error.message))

    def _rounded_outputs(self, before: ModelInput, feeds: Path) -> Runs:
        """The outputs of a model whose values are rounded to ``rounds_to``."""
        if self._rounds_to == "float32":
            return self._first_plain(before, feeds)
        data = before.data or (b"" if before.path is None else before.path.read_bytes())
        proto, samples, to = parse(data, before.path), read_feeds(feeds), self._rounds_to
        names = [name for node in proto.graph.node for name in node.output if name]
        recorded = self._plain[0].run(before, feeds, names) if to == "int8" else []
        ranges = ranges_of([*recorded, *samples])
        model = rounded_model(proto, to, ranges)
        rounded = [{name: _rounded(value, to, ranges.get(name)) for name, value in feed.items()} for feed in samples]
        with self._file_of(rounded) as path:
            return self._first_plain(ModelInput(model.SerializeToString(), before.folder), path)

    def _first_plain(self, model: ModelInput, feeds: Path) -> Runs:
        for worker in self._plain[:-1]:
            with contextlib.suppress(*CANNOT_RUN):
                return worker.run(model, feeds)
        return self._plain[-1].run(model, feeds)

    def _perturbed(self, before: ModelInput, feeds: Path, names: set[str]) -> Iterator[RunnerResult]:
        samples = read_feeds(feeds)
        for seed, spec in enumerate(MOVED):
            if self._rounds_to != "int8":
                with Worker(f"{spec},rounded={self._rounds_to}", self._scratch, self._comparing.timeout) as worker:
                    runs = worker.run(before, feeds)
            else:
                perturbed = roundings_off(samples, _ROUNDINGS_OF_INT8, seed)
                if not differ(samples, perturbed):
                    return
                with self._file_of(perturbed) as path:
                    runs = self._exact.run(before, path)
            yield only(_result("perturbed", runs), names)

    @contextlib.contextmanager
    def _file_of(self, feeds: Sequence[Feed]) -> Iterator[Path]:
        path = self._scratch / f"rounded-{next(self._numbers)}.safetensors"
        try:
            write_feeds(path, feeds)
            yield path
        finally:
            path.unlink(missing_ok=True)


def of_small_outputs(expected: RunnerResult) -> Tolerances:
    """The default tolerances, scaled by the greatest magnitude of an output if that is less than 1.

    Without this, any change of an output below the absolute tolerance would be right.
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


def interface_change(before: ModelIndex, after: ModelIndex, feeds: Sequence[Feed]) -> VerdictFile | None:
    """How inputs or outputs have changed so that users of the model could not use it any more; None if they can.

    Outputs may be added after the others. ``feeds`` are inputs of the model before.
    """
    old_outputs, new_outputs = ([index.names[tensor] for tensor in index.outputs] for index in (before, after))
    old_inputs, new_inputs = list(feeds[0]), [after.names[tensor] for tensor in after.fed_inputs()]
    missing = tuple(name for name in old_outputs if name not in new_outputs)
    order = f"its outputs stand in another order: {_quoted(new_outputs)}, not {_quoted(old_outputs)}"
    added = [name for name in new_inputs if name not in old_inputs]
    lost = [name for name in old_inputs if name not in new_inputs]
    others = [name for name in new_outputs if name not in old_outputs]
    is_renamed = bool(missing) and len(missing) == len(others) and len(old_outputs) == len(new_outputs)
    lose = (
        f"renames output {_quoted(missing)} to {_quoted(others)}" if is_renamed else f"loses output {_quoted(missing)}"
    )
    changes = [
        ("missing-output", f"it {lose}" if missing else ""),
        ("other-order", "" if missing or new_outputs[: len(old_outputs)] == old_outputs else order),
        ("other-type", "" if missing else _retyped("output", old_outputs, before, after)),
        ("new-input", f"it wants an input {_quoted(added)}" if added else ""),
        ("lost-input", f"it loses input {_quoted(lost)}" if lost else ""),
        ("other-type", "" if added else _retyped("input", new_inputs, before, after)),
        ("fixed-size", "" if added else _fixed(new_inputs, before, after)),
    ]
    for kind, message in changes:
        if message:
            mismatches = tuple(Mismatch(output=name, kind="missing-output") for name in missing)
            return VerdictFile(
                outcome="fails", stage="interface", kind=kind, message=message, outputs=missing, mismatches=mismatches
            )
    return None


def _retyped(side: str, names: Iterable[str], before: ModelIndex, after: ModelIndex) -> str:
    """A sentence on an input or output of another element type; "" if there is none."""
    for name in names:
        old, new = before.declared_type(name), after.declared_type(name)
        if isinstance(old, TensorType) and isinstance(new, TensorType):
            if 0 not in (old.elem, new.elem) and old.elem != new.elem:
                return f"{side} {name!r} is {new.dtype} now, not {old.dtype}"
        elif old is not None and new is not None and type(old) is not type(new):
            return f"{side} {name!r} is {new} now, not {old}"
    return ""


def _fixed(names: Iterable[str], before: ModelIndex, after: ModelIndex) -> str:
    """A sentence on an input with a dimension that was open and is fixed now; "" if there is none."""
    for name in names:
        old, new = before.declared_type(name), after.declared_type(name)
        if isinstance(old, TensorType) and isinstance(new, TensorType):
            for axis, (old_size, size) in enumerate(zip(old.shape or (), new.shape or (), strict=False)):
                if isinstance(size, int) and not isinstance(old_size, int):
                    return f"dimension {axis} of input {name!r} is {size} now, and was open"
    return ""


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


_LEVELS = 255
_LEAST_ELEMENTS = 9
"""A smaller tensor is not quantized, since it holds sizes or scales of an operator."""

Ranges = Mapping[str, tuple[float, float]]
"""The least and the greatest value of a tensor."""


def ranges_of(samples: Sequence[Feed]) -> dict[str, tuple[float, float]]:
    """The range of every tensor of floating type, 0 included, over all samples."""
    ranges: dict[str, tuple[float, float]] = {}
    for sample in samples:
        for name, value in sample.items():
            finite = value[np.isfinite(value)] if value.dtype.kind == "f" else value[:0]
            if finite.size >= _LEAST_ELEMENTS:
                low, high = ranges.get(name, (0.0, 0.0))
                ranges[name] = (min(low, float(finite.min())), max(high, float(finite.max())))
    return ranges


def rounded_model(model: onnx.ModelProto, to: Rounds, ranges: Ranges) -> onnx.ModelProto:
    """A copy of a model whose float32 weights, and float32 outputs of nodes of the main graph, are rounded."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    floats = {name for name, kind in infer_types(copy).items() if kind.elem == onnx.TensorProto.FLOAT}
    for weight in copy.graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT and weight.data_location != onnx.TensorProto.EXTERNAL:
            values = numpy_helper.to_array(weight)
            is_quantized = values.size >= _LEAST_ELEMENTS
            extent = (float(values.min(initial=0)), float(values.max(initial=0))) if is_quantized else None
            weight.CopyFrom(numpy_helper.from_array(_rounded(values, to, extent), weight.name))
    taken = walk.named(copy.graph)
    nodes = []
    for node in copy.graph.node:
        nodes.append(node)
        for place, name in enumerate(node.output):
            if name not in floats or (to == "int8" and name not in ranges):
                continue
            exact = node.output[place] = walk.free_name(f"{name}_exact", taken)
            nodes += _rounding_nodes(exact, name, to, ranges.get(name), taken)
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    return copy


def _rounding_nodes(
    source: str, target: str, to: Rounds, extent: tuple[float, float] | None, taken: set[str]
) -> list[onnx.NodeProto]:
    """Nodes that round ``source`` to ``target``: two casts, or the steps of a quantization in float32.

    The steps are operators that every opset has.
    """
    if to == "float16":
        half = walk.free_name(f"{target}_half", taken)
        types = (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT)
        return [
            helper.make_node("Cast", [read], [written], to=elem)
            for read, written, elem in zip((source, half), (half, target), types, strict=True)
        ]
    step = 0.0 if extent is None else _step(extent)
    if step == 0:
        return [helper.make_node("Identity", [source], [target])]
    names = {part: f"{target}_{part}" for part in ("step", "steps", "half", "shifted", "whole")}
    constants = [
        helper.make_node(
            "Constant", [], [names[part]], value=numpy_helper.from_array(np.array(value, np.float32), names[part])
        )
        for part, value in (("step", step), ("half", 0.5))
    ]
    return [
        *constants,
        helper.make_node("Div", [source, names["step"]], [names["steps"]]),
        helper.make_node("Add", [names["steps"], names["half"]], [names["shifted"]]),
        helper.make_node("Floor", [names["shifted"]], [names["whole"]]),
        helper.make_node("Mul", [names["whole"], names["step"]], [target]),
    ]


def _rounded(values: Array, to: Rounds, extent: tuple[float, float] | None) -> Array:
    if values.dtype != np.float32:
        return values
    with np.errstate(all="ignore"):
        if to == "float16":
            return values.astype(np.float16).astype(np.float32)
        step = 0.0 if extent is None else _step(extent)
        return values if step == 0 else (np.floor(values / step + 0.5) * step).astype(np.float32)


def _step(extent: tuple[float, float]) -> float:
    """The step of an 8-bit quantization that is symmetric about 0: as coarse as that of any quantizer."""
    return float(np.float32(2 * max(abs(extent[0]), abs(extent[1])) / _LEVELS))
