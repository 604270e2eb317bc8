"""The verdict on a transformed model: held against the model itself in the same engine with the same inputs, and
against a model rounded as a correct conversion would.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from biopsy import errors
from biopsy.checks.verdict import VerdictFile
from biopsy.comparison.mismatch import Mismatch, Rounding, kind_of, may_be_rounding
from biopsy.comparison.mismatch_size import explained, only, run_mismatches
from biopsy.comparison.runs import RunComparison, compare_runs
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE, Tolerances
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EXACT, PLAIN
from biopsy.engines.worker import Worker
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

if TYPE_CHECKING:
    import onnx

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
        self.engine = Worker(asked.engine, scratch, asked.timeout)
        self._exact = Worker(EXACT, scratch, asked.timeout)
        self._plain = [Worker(engine, scratch, asked.timeout) for engine in PLAIN]
        self._numbers = itertools.count()

    def __enter__(self) -> EngineVerdicts:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in (self.engine, self._exact, *self._plain):
            worker.close()

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
            given = self.engine.run(ModelInput(b"", after.parent, after), feeds)
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
        of_values = all(one.kind in {"mismatch", "not-finite-mismatch"} for one in found)
        if self._asked.is_told or not of_values or not (self._rounds_to != "float32" or may_be_rounding(found)):
            return self._differs(found, None)
        rounding = self._rounding(before, actual, wanted, {output.name for _, output in compared.failures}, feeds)
        if rounding.verdict == "rounding" or (rounding.verdict == "unknown" and passed):
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
        data = before.data or (b"" if before.path is None else before.path.read_bytes())
        proto, given = parse(data, before.path), read_feeds(feeds)
        every = [name for node in proto.graph.node for name in node.output if name]
        recorded = self._plain[0].run(before, feeds, every) if self._rounds_to == "int8" else []
        ranges = ranges_of([*recorded, *given])
        model = rounded_model(proto, self._rounds_to, ranges)
        to = self._rounds_to
        feeds_of_type = [
            {name: _rounded(value, to, ranges.get(name)) for name, value in feed.items()} for feed in given
        ]
        with self._file_of(feeds_of_type) as path:
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


# What has become of the inputs and outputs of a model: whoever used it before must be able to use it now.


def interface_change(before: ModelIndex, after: ModelIndex, feeds: Sequence[Feed]) -> VerdictFile | None:
    """How the inputs or outputs of a model have changed for the worse; None if they have not.

    Outputs may be added behind those that were there. ``feeds`` are inputs of the model before.
    """
    wanted, has = ([index.names[tensor] for tensor in index.outputs] for index in (before, after))
    takes = [after.names[tensor] for tensor in after.fed_inputs()]
    gone = tuple(name for name in wanted if name not in has)
    order = f"its outputs stand in another order: {_quoted(has)}, not {_quoted(wanted)}"
    strange, dropped = (
        [name for name in some if name not in others] for some, others in ((takes, feeds[0]), (feeds[0], takes))
    )
    changes = [
        ("missing-output", f"it loses output {_quoted(gone)}" if gone else ""),
        ("other-order", "" if gone or has[: len(wanted)] == wanted else order),
        ("other-type", "" if gone else _retyped("output", wanted, before, after)),
        ("new-input", f"it wants an input {_quoted(strange)}" if strange else ""),
        ("lost-input", f"it loses input {_quoted(dropped)}" if dropped else ""),
        ("other-type", "" if strange else _retyped("input", takes, before, after)),
        ("fixed-size", "" if strange else _fixed(takes, before, after)),
    ]
    for kind, said in changes:
        if said:
            missing = tuple(Mismatch(output=name, kind="missing-output") for name in gone)
            return VerdictFile(
                outcome="fails", stage="interface", kind=kind, message=said, outputs=gone, mismatches=missing
            )
    return None


def _retyped(what: str, names: Iterable[str], before: ModelIndex, after: ModelIndex) -> str:
    """An input or output of another element type."""
    for name in names:
        old, new = before.declared_type(name), after.declared_type(name)
        if isinstance(old, TensorType) and isinstance(new, TensorType):
            if 0 not in (old.elem, new.elem) and old.elem != new.elem:
                return f"{what} {name!r} is {new.dtype} now, not {old.dtype}"
        elif old is not None and new is not None and type(old) is not type(new):
            return f"{what} {name!r} is {new} now, not {old}"
    return ""


def _fixed(names: Iterable[str], before: ModelIndex, after: ModelIndex) -> str:
    """An input one of whose dimensions was open and is not any more."""
    for name in names:
        old, new = before.declared_type(name), after.declared_type(name)
        if isinstance(old, TensorType) and isinstance(new, TensorType):
            for axis, (was, size) in enumerate(zip(old.shape or (), new.shape or (), strict=False)):
                if isinstance(size, int) and not isinstance(was, int):
                    return f"dimension {axis} of input {name!r} is {size} now, and was open"
    return ""


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


# What a correct conversion to a narrower type gives: a model of which every value is rounded to that type.
#
# It is the yardstick of converters to float16 and of quantizers, as plain float32 is that of optimizers: what such a
# model errs by, rounding explains. Values are rounded where they are stored, between the nodes of the main graph.

_LEVELS = 255
_FEWEST = 9
"""Elements of a tensor that is quantized: fewer are sizes or scales of an operator, which stay as they are."""

Ranges = Mapping[str, tuple[float, float]]
"""The least and the greatest value of a tensor."""


def ranges_of(samples: Sequence[Feed]) -> dict[str, tuple[float, float]]:
    """The range of every tensor of floating type, 0 included, over all samples."""
    found: dict[str, tuple[float, float]] = {}
    for sample in samples:
        for name, value in sample.items():
            finite = value[np.isfinite(value)] if value.dtype.kind == "f" else value[:0]
            if finite.size >= _FEWEST:
                low, high = found.get(name, (0.0, 0.0))
                found[name] = (min(low, float(finite.min())), max(high, float(finite.max())))
    return found


def rounded_model(model: onnx.ModelProto, to: Rounds, ranges: Ranges) -> onnx.ModelProto:
    """A copy of a model that rounds its weights, and what each node of the main graph gives, if that is float32."""
    import onnx
    from onnx import numpy_helper

    copy = onnx.ModelProto.FromString(model.SerializeToString())
    floats = {name for name, kind in infer_types(copy).items() if kind.elem == onnx.TensorProto.FLOAT}
    for weight in copy.graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT and weight.data_location != onnx.TensorProto.EXTERNAL:
            values = numpy_helper.to_array(weight)
            extent = (float(values.min(initial=0)), float(values.max(initial=0))) if values.size >= _FEWEST else None
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
    """Nodes that round a tensor to another: a pair of casts, which engines keep where they would drop the rounding of a
    node; or the steps of a quantization in float32, by operators that every version of the standard has.
    """
    from onnx import TensorProto, helper, numpy_helper

    if to == "float16":
        half = walk.free_name(f"{target}_half", taken)
        types = (TensorProto.FLOAT16, TensorProto.FLOAT)
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
    """The distance of two neighbouring values of eight bits, symmetric about 0: as coarse as any quantizer's."""
    return float(np.float32(2 * max(abs(extent[0]), abs(extent[1])) / _LEVELS))
