"""Which of several engines is wrong about the outputs of one sample, or why that cannot be said."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from biopsy import errors
from biopsy.comparison.mismatch import (
    ErrorSize,
    Mismatch,
    error_text,
    kind_of,
    may_be_rounding,
    special_of,
    worst_of,
)
from biopsy.comparison.mismatch_size import only, run_mismatches
from biopsy.comparison.runs import RunComparison, compare_runs
from biopsy.engines.registry import EXACT, PLAIN, create, parse_spec
from biopsy.engines.yardstick import Run, rounding_between
from biopsy.hunting.records import Kind, MatrixCell
from biopsy.model.index import ModelIndex
from biopsy.tensors.results import Array, RunnerResult

EXPECTED = "expected"
"""The voice of the outputs that lie beside the model."""


def engine_for(trusted: str) -> str:
    """The engine that can stand for what a cell was compared with: recorded outputs have no layers to look at."""
    return PLAIN[-1] if trusted == EXPECTED else trusted


_CHOOSERS = frozenset({"TopK", "ArgMax", "ArgMin"})
"""Operators that return places of values, of which equal ones are another right answer."""


@dataclass(frozen=True, kw_only=True)
class VoiceDifference:
    """How two voices differ: ``kind`` is "right", "rounding" or "tie" if they agree, else why they do not."""

    kind: Kind
    worst: Mismatch | None = None


@dataclass(kw_only=True)
class _Side:
    """Voices that agree with the first of them. ``kinds`` says by how much the others differ from it."""

    first: RunnerResult
    kinds: dict[str, Kind] = field(default_factory=dict)

    def votes(self, plain: Mapping[str, _Side]) -> int:
        """How many engines vote for it, where ``plain`` is the side of each engine that also ran without optimizer.

        Each counts once, whatever its settings; one that contradicts its plain self only in another release.
        """
        specs = map(parse_spec, self.kinds)
        return len({spec.name for spec in specs if "release" in spec.settings or plain.get(spec.name, self) is self})


@dataclass(frozen=True, kw_only=True)
class Vote:
    """The vote about one sample of a model.

    ``run`` runs any engine on that sample; ``inner`` gives the value of a tensor by the reference evaluator, None if
    that cannot run the model.
    """

    index: ModelIndex
    run: Run
    inner: Callable[[str], Array | None]
    _known: dict[tuple[str, str], VoiceDifference] = field(default_factory=dict, init=False)

    def cells(self, results: Mapping[str, RunnerResult], expected: RunnerResult | None) -> dict[str, MatrixCell]:
        """A cell for each engine with a result. ``expected`` are the outputs that lie beside the model.

        ONNX Runtime without its optimizer votes too, and so does the reference evaluator if not all agree. Those on the
        side of most engines are right, where settings of one engine have one voice together, and an engine has none on
        the side that contradicts it without its optimizer.
        """
        voices = dict(results) if expected is None else {EXPECTED: expected, **results}
        for judge in PLAIN:
            if judge not in voices:
                with suppress(errors.EngineFailure, errors.CannotCompare):
                    voices = {judge: self.run(create(judge)), **voices}
            sides, aside = self._sides(voices.values())
            if len(sides) == 1 and len(voices) > 1 and not aside:
                break
        plain = {parse_spec(judge).name: side for judge in PLAIN for side in sides if judge in side.kinds}
        ranked = sorted(sides, key=lambda side: side.votes(plain), reverse=True)
        is_decided = len(ranked) == 1 or ranked[0].votes(plain) > ranked[1].votes(plain)
        cells = {}
        for spec in results:
            if spec in aside:
                cells[spec] = self._cell(spec, aside[spec], ranked[0].first)
                continue
            own = next(side for side in sides if spec in side.kinds)
            if len(ranked) == 1 and len(own.kinds) == 1:
                cells[spec] = MatrixCell(engine=spec, kind=next(iter(aside.values())).kind if aside else "alone")
            elif is_decided and own is ranked[0]:
                cells[spec] = MatrixCell(engine=spec, kind=own.kinds[spec])
            else:
                others = ranked[0] if own is not ranked[0] else ranked[1]
                trusted = next((each for each in results if each in others.kinds), None)
                trusted = trusted or next((each for each in others.kinds if each != EXPECTED), EXPECTED)
                difference = self._known.get((spec, others.first.runner)) or self._difference(
                    results[spec], others.first
                )
                kind: Kind = "wrong" if is_decided else "differs"
                cells[spec] = self._cell(
                    spec, VoiceDifference(kind=kind, worst=difference.worst), others.first, trusted
                )
        return cells

    def _sides(self, voices: Iterable[RunnerResult]) -> tuple[list[_Side], dict[str, VoiceDifference]]:
        """The voices sorted into sides that agree, and those about which nothing can be said, with the reason."""
        sides: list[_Side] = []
        aside: dict[str, VoiceDifference] = {}
        for voice in voices:
            doubt = None
            for side in sides:
                difference = self._difference(voice, side.first)
                self._known[voice.runner, side.first.runner] = difference
                if difference.kind in ("right", "rounding", "tie"):
                    side.kinds[voice.runner] = difference.kind
                    break
                if difference.kind != "differs":
                    doubt = doubt or difference
            else:
                if doubt is not None:
                    aside[voice.runner] = doubt
                else:
                    sides.append(_Side(first=voice, kinds={voice.runner: "right"}))
        return sides, aside

    def _difference(self, actual: RunnerResult, expected: RunnerResult) -> VoiceDifference:
        try:
            compared = compare_runs(actual, expected)
        except errors.CannotCompare:
            return VoiceDifference(kind="empty")
        if compared.passed:
            return VoiceDifference(kind="right")
        mismatches = run_mismatches(actual, expected, compared)
        biggest, kind = worst_of(mismatches), kind_of(mismatches)
        if kind == "mismatch" and self._chooses_equals(actual, expected, compared):
            return VoiceDifference(kind="tie", worst=biggest)
        if special_of(kind):
            return VoiceDifference(kind=self._of_special(compared) or "differs", worst=biggest)
        if kind == "mismatch":
            rounding = rounding_between((actual, expected), compared, self.run)
            if rounding.verdict == "rounding":
                return VoiceDifference(kind="rounding", worst=biggest)
            if rounding.verdict == "unknown" and may_be_rounding(mismatches):
                return VoiceDifference(kind="unknown", worst=biggest)
        return VoiceDifference(kind="differs", worst=biggest)

    def _of_special(self, compared: RunComparison) -> Kind | None:
        """Why NaN or infinity on one side says nothing: the model gives it, or the inputs overflow; None if it does."""
        names = {output.name for _, output in compared.failures}
        try:
            plain, exact = (only(self.run(create(spec)), names) for spec in (PLAIN[-1], EXACT))
        except (errors.EngineFailure, errors.CannotCompare):
            return None
        is_finite = [all(map(_is_finite, side.iterations[0].outputs.values())) for side in (plain, exact)]
        return None if is_finite[0] else "overflow" if is_finite[1] else "not finite"

    def _chooses_equals(self, actual: RunnerResult, expected: RunnerResult, compared: RunComparison) -> bool:
        """Whether all that differs are places of equal values, as TopK, ArgMax and ArgMin choose them."""
        for name in {output.name for _, output in compared.failures}:
            number = self.index.producer.get(self.index.ids.get(name, -1))
            if number is None or self.index.nodes[number].op_type not in _CHOOSERS:
                return False
            node = onnx.NodeProto.FromString(self.index.node_payload(number))
            settings = {attribute.name: attribute.i for attribute in node.attribute}
            axis = settings.get("axis", -1 if node.op_type == "TopK" else 0)
            values = self.inner(node.input[0])
            sides = [side.iterations[0].outputs[name] for side in (actual, expected)]
            are_places = all(side.dtype.kind in "iu" for side in sides)
            if values is None or not are_places or settings.get("select_last_index"):
                return False
            if not settings.get("keepdims", 1):
                sides = [np.expand_dims(side, axis) for side in sides]
            try:
                left, right = (np.take_along_axis(values, side, axis) for side in sides)
            except (IndexError, ValueError):
                return False
            if not np.array_equal(left, right):
                return False
        return True

    def _cell(self, spec: str, difference: VoiceDifference, other: RunnerResult, trusted: str = "") -> MatrixCell:
        cell = MatrixCell(engine=spec, kind=difference.kind, stage="compare", trusted=trusted or other.runner)
        if difference.worst is None:
            return cell
        return replace(cell, failure=difference.worst.kind, text=error_text(ErrorSize(difference.worst)))


def differ(actual: RunnerResult, expected: RunnerResult, names: Collection[str]) -> bool:
    """Whether outputs with these names differ by more than rounding explains, as far as their size tells."""
    sides = only(actual, names), only(expected, names)
    try:
        compared = compare_runs(*sides)
    except errors.CannotCompare:
        return False
    if compared.passed:
        return False
    mismatches = run_mismatches(*sides, compared)
    return kind_of(mismatches) != "mismatch" or not may_be_rounding(mismatches)


def _is_finite(values: Array) -> bool:
    return values.dtype.kind not in "fc" or bool(np.isfinite(values).all())
