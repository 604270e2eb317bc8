"""Which layers are wrong: in the piece, one node or several together; in a model that passes, one that is masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from biopsy.comparison.noise import DEFAULT_RATIO
from biopsy.diagnosis.context import StepContext, TimeUpError
from biopsy.diagnosis.facts import FailureReport, FailureSeen, KnownFacts, LayersSeen
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
    found = _examined(context, model, inputs, (failure.trusted, failure.suspect))
    seen = _record(found, failure.suspect, of_piece=piece is not None)
    return StepAnswer(replace(facts, layers=seen), _line(seen))


def _examined(context: StepContext, model: Path, inputs: Path | None, pair: tuple[str, str]) -> LayerFindings:
    """The findings, also written as ``debug layers`` writes them."""
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
    write_whole(question.folder / REPORT, [as_json(tree)])
    return found


def _feeds(kinds: Mapping[str, TensorType | None], context: StepContext, inputs: Path | None) -> Sequence[Feed]:
    samples = context.question.samples
    files = [inputs] if inputs is not None else list(samples.files)
    given = [feed for file in files for feed in read_feeds(file)] or None
    shapes = {name: shape for name, shape in samples.inputs.shapes.items() if name in kinds}
    asked = replace(samples.inputs, given=given, shapes=shapes, symbols={}, val_range={}, complete=True)
    return [checked_feed(feed, kinds, number) for number, feed in enumerate(feeds_for(kinds, asked).feeds)]


def _record(found: LayerFindings, suspect: str, *, of_piece: bool, sure: bool = False) -> LayersSeen:
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
        remarks=tuple(found.remarks),
    )


def _counts(ratio: float | None, failure: object, sure: bool) -> bool:
    if failure is not None:
        return True
    return not sure if ratio is None else ratio > DEFAULT_RATIO


def _line(seen: LayersSeen) -> str:
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


# A model that passes


def _not_asked_of_masked(facts: KnownFacts, context: StepContext) -> str | None:
    compared = facts.compared
    if facts.failure is not None:
        return "its outputs are wrong"
    if context.question.check is not None:
        return "a check decides, which passes"
    if compared is None or len(_pair(context)) < 2 or not compared.passed:
        return "nothing was compared"
    if not create(_pair(context)[0]).capabilities.marks_any_tensor:
        return f"{_pair(context)[0]} gives no inner tensors"
    return None


def _pair(context: StepContext) -> tuple[str, ...]:
    rivals = context.question.rivals[0]
    return (rivals[0], rivals[-1])


def _answer_masked(facts: KnownFacts, context: StepContext) -> StepAnswer:
    trusted, suspect = _pair(context)
    found = _examined(context, context.question.model, None, (trusted, suspect))
    seen = _record(found, suspect, of_piece=False, sure=True)
    if not found.is_masked or not (seen.alone or seen.together):
        return StepAnswer(replace(facts, layers=replace(seen, masked=False)), _line(seen))
    failure = FailureSeen(
        check=context.question.original_words((trusted, suspect)),
        said=FailureReport(signature="an inner tensor is wrong", engine=suspect, stage="compare", kind="masked"),
        status=0,
        trusted=trusted,
        suspect=suspect,
        masked=True,
    )
    return StepAnswer(replace(facts, layers=seen, failure=failure), f"yes · {_line(seen)}")


MASKED = DiagnosisStep(
    name="masked",
    question="is an inner tensor wrong although the outputs are right?",
    not_asked=_not_asked_of_masked,
    answer=_answer_masked,
    evidence="layers",
    files=(REPORT,),
)
"""What float64 does not call more than rounding is no error here: nothing else has failed."""
