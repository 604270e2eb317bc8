"""Which layers are wrong: in the piece, one node or several together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from biopsy.comparison.noise import DEFAULT_RATIO
from biopsy.diagnosis.context import StepContext, TimeUpError
from biopsy.diagnosis.facts import KnownFacts, LayersSeen
from biopsy.diagnosis.reasons import TWO_ENGINES
from biopsy.diagnosis.step import DiagnosisStep, StepAnswer
from biopsy.engines.feeding import feeds_for
from biopsy.engines.registry import create
from biopsy.engines.runner import checked_feed
from biopsy.filesystem.write import write_whole
from biopsy.isolation.cleanup import temporary_folder
from biopsy.layerwise.examination import Examination
from biopsy.layerwise.findings import LayerFindings
from biopsy.layerwise.question import question_about
from biopsy.layerwise.report import layers_tree
from biopsy.model.tensor_type import TensorType
from biopsy.quantities import count
from biopsy.report.envelope import as_json
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Feed
from biopsy.text import first_of

REPORT = "layers.json"
"""The report of ``debug layers``, in the folder of the evidence."""

_SHARE = 0.5
_MOST_SHOWN = 3


def _not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    failure = facts.failure
    if failure is None:
        return "no layer is known to be wrong"
    if failure.masked and facts.piece is None:
        return "known already"
    if facts.fault_before is not None and facts.fault_before.kind != "refused":
        return "no engine is at fault"
    if facts.rounding is not None and facts.rounding.is_rounding:
        return "it is rounding: no layer is at fault"
    if failure.suspect is None or failure.trusted is None:
        return TWO_ENGINES
    if facts.piece is not None and len(facts.piece.nodes) == 1:
        return "the piece is one node"
    if not create(failure.trusted).capabilities.marks_any_tensor:
        return f"{failure.trusted} gives no inner tensors"
    return None


def _answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    failure = facts.failure
    assert failure is not None and failure.suspect is not None and failure.trusted is not None
    piece = facts.piece
    model = context.question.model if piece is None else Path(piece.path)
    inputs = None if piece is None or piece.inputs is None else Path(piece.inputs)
    found = examined(context, model, inputs, (failure.trusted, failure.suspect))
    seen = layers_seen(found, failure.suspect, of_piece=piece is not None)
    return StepAnswer(replace(facts, layers=seen), layers_line(seen))


def examined(
    context: StepContext, model: Path, inputs: Path | None, pair: tuple[str, str], *, report: str = REPORT
) -> LayerFindings:
    """The findings, also written as ``debug layers`` writes them, to the file ``report`` of the folder.

    A file belongs to one step: what is written between two savings of the evidence must be nobody else's.
    """
    question = context.question
    context.begin_step(_SHARE)
    context.cool()
    weights = question.weights_folder if model == question.model else None
    with temporary_folder("biopsy-") as scratch:
        asked = question_about(
            model,
            weights,
            lambda kinds: _feeds(kinds, context, inputs),
            suspect=pair[1],
            reference=pair[0],
            judge=question.judging.judge,
            timeout=max(1.0, context.seconds_left),
        )
        examination = Examination(asked, scratch, context.bounded)
        try:
            found = examination.run()
        except TimeUpError:
            found = examination.findings
    tree = layers_tree(found, model, examination.engines, examination.samples)
    write_whole(question.folder / report, [as_json(tree)])
    return found


def _feeds(kinds: Mapping[str, TensorType | None], context: StepContext, inputs: Path | None) -> Sequence[Feed]:
    samples = context.question.samples
    files = [inputs] if inputs is not None else list(samples.files)
    given = [feed for file in files for feed in read_feeds(file)] or None
    shapes = {name: shape for name, shape in samples.inputs.shapes.items() if name in kinds}
    asked = replace(samples.inputs, given=given, shapes=shapes, symbols={}, val_range={}, complete=True)
    return [checked_feed(feed, kinds, number) for number, feed in enumerate(feeds_for(kinds, asked).feeds)]


def layers_seen(found: LayerFindings, suspect: str, *, of_piece: bool, sure: bool = False) -> LayersSeen:
    """What counts of the findings; ``sure``: only what float64 says is more than rounding."""
    alone = [layer for layer in found.layers if layer.is_suspect and _counts(layer.rounding_ratio, layer.failure, sure)]
    together = [group for group in found.groups if _counts(group.rounding_ratio, group.failure, sure)]
    return LayersSeen(
        alone=tuple(layer.node.label for layer in alone),
        together=tuple(group.labels for group in together),
        hides=together[0].hides if together else None,
        suspect=suspect,
        masked=found.is_masked,
        of_piece=of_piece,
        layers=len(found.layers),
        complete=found.complete,
    )


def _counts(ratio: float | None, failure: object, sure: bool) -> bool:
    if failure is not None:
        return True
    return not sure if ratio is None else ratio > DEFAULT_RATIO


def layers_line(seen: LayersSeen) -> str:
    """What is known of the layers, in one line."""
    ended = "" if seen.complete else " · not examined to the end"
    if seen.alone:
        return f"wrong by itself: {first_of(seen.alone, _MOST_SHOWN)}{ended}"
    if seen.together:
        how = "; not if the tensors between them are outputs" if seen.hides else ""
        return f"none alone, {len(seen.together[0])} together{how}{ended}"
    return f"none of {count(seen.layers, 'layer')} is wrong by more than rounding{ended}"


LAYERS = DiagnosisStep(
    name="layer",
    question="is it one node, or several together?",
    not_asked=_not_asked,
    answer=_answer,
    evidence="layers",
    files=(REPORT,),
)
"""Isolated layers, and groups of them."""
