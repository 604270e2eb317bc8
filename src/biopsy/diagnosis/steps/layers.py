"""Which layers are wrong, also where the outputs do not show it, and whether a higher precision mends them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.warm import command_check
from biopsy.comparison.noise import DEFAULT_RATIO
from biopsy.diagnosis.context import (
    TWO_ENGINES,
    UNKNOWN_COMPARISON,
    DiagnosisStep,
    StepAnswer,
    StepContext,
    TimeUpError,
    limit_as_time_up,
)
from biopsy.diagnosis.facts import ComparisonSeen, FailureReport, FailureSeen, KnownFacts, LayersSeen, PrecisionSeen
from biopsy.diagnosis.question import without_weights_folder
from biopsy.diagnosis.steps.rounding import low_precision
from biopsy.engines.registry import create
from biopsy.engines.runner import checked_feed, feeds_for
from biopsy.findings.envelope import as_json
from biopsy.model.tensor_type import TensorType
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import write_whole
from biopsy.questions.layers.examination import Examination
from biopsy.questions.layers.findings import LayerFindings, layers_tree
from biopsy.questions.layers.question import question_about
from biopsy.questions.precision.mixed_models import Precisions, mixed_models
from biopsy.questions.precision.search import PrecisionJob, PrecisionTarget, precision_tree
from biopsy.questions.precision.task import run_job
from biopsy.session.checked_search import SearchOptions
from biopsy.session.pool import Parallelism
from biopsy.session.trial import Budget
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Feed
from biopsy.text import count, first_of

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


# Whether a model that passes computes an inner tensor wrongly, which its outputs do not show.

MASKED_REPORT = "masked.json"
"""The report of ``debug layers`` on the whole model, in the folder of the evidence."""


def _masked_not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    if facts.failure is not None:
        return "its outputs are wrong"
    if context.question.check is not None:
        return "the check decides, and it passes"
    if facts.compared is None or not facts.compared.rows:
        return "nothing was compared"
    trusted, _ = _pair(facts.compared)
    if not create(trusted).capabilities.marks_any_tensor:
        return f"{trusted} gives no inner tensors"
    return None


def _pair(compared: ComparisonSeen) -> tuple[str, str]:
    """The trusted engine, and the last one that agrees with it."""
    row = compared.rows[0]
    return row[0], row[-1]


def _masked_answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    assert facts.compared is not None
    trusted, suspect = _pair(facts.compared)
    found = examined(context, context.question.model, None, (trusted, suspect), report=MASKED_REPORT)
    seen = layers_seen(found, suspect, of_piece=False, sure=True)
    if not found.is_masked or not (seen.alone or seen.together):
        return StepAnswer(replace(facts, layers=replace(seen, masked=False)), layers_line(seen))
    failure = FailureSeen(
        check=context.question.original_words((trusted, suspect)),
        said=FailureReport(signature="an inner tensor is wrong", engine=suspect, stage="compare", kind="masked"),
        status=0,
        trusted=trusted,
        suspect=suspect,
        masked=True,
    )
    return StepAnswer(replace(facts, layers=seen, failure=failure), f"yes · {layers_line(seen)}")


MASKED = DiagnosisStep(
    name="masked",
    question="is an inner tensor wrong although the outputs are right?",
    not_asked=_masked_not_asked,
    answer=_masked_answer,
    evidence="layers",
    files=(MASKED_REPORT,),
)
"""What float64 does not call more than rounding is no error here: nothing else has failed."""


# Whether layers in a higher precision mend the model: asked of one that has layers in fp16 or bf16.

MIXED = "mixed.onnx"
PRECISION_REPORT = "precision.json"
"""The model with some layers high, and the report of ``debug precision``, in the folder of the evidence."""

_KINDS = frozenset({"mismatch", "not-finite-mismatch"})
_PRECISION_MOST_SHOWN = 5


def _precision_not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    failure = facts.failure
    if failure is None:
        return "nothing fails"
    if facts.fault_before is not None:
        return "no engine is at fault"
    if facts.rounding is not None and facts.rounding.is_rounding:
        return "it is rounding"
    if failure.masked or failure.said.kind not in _KINDS:
        return "not a question of numbers"
    if low_precision(context.question.index) is None:
        return "no layer of the model is known to be in a low precision"
    if facts.settings is not None and any(switch.mends_original for switch in facts.settings.switches):
        return "a setting mends it"
    if not isinstance(parse(failure.check), OwnRun):
        return UNKNOWN_COMPARISON
    return None


def _precision_answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    failure, question = facts.failure, context.question
    low = low_precision(question.index)
    assert failure is not None and low is not None
    context.begin_step()
    context.cool()
    precisions = Precisions(low=low, high="float32", form="native")
    made = command_check(without_weights_folder(failure.check), str(context.candidate), jobs=question.effort.jobs)
    try:
        with limit_as_time_up(), contextlib.closing(made) as check:
            found = run_job(
                question.index,
                lambda place: mixed_models(question.index, place, precisions, ()),
                check,
                _job(context),
                context.listener,
            )
    except errors.HighPrecisionFails:
        seen = PrecisionSeen(low=low, passes=False)
        return StepAnswer(replace(facts, precision=seen), "no: it fails with every layer in float32 too")
    seen = PrecisionSeen(
        low=low,
        passes=True,
        high=tuple(layer.label for layer in found.high),
        layers=found.layers,
        output=str(found.output),
    )
    return StepAnswer(replace(facts, precision=seen), _line(seen))


def _job(context: StepContext) -> PrecisionJob:
    question = context.question
    return PrecisionJob(
        target=PrecisionTarget(
            output=question.folder / MIXED,
            report=question.folder / PRECISION_REPORT,
            write_report=lambda found: write_whole(
                question.folder / PRECISION_REPORT, [as_json(precision_tree(found))]
            ),
        ),
        search=SearchOptions(
            rules=question.judging.rules,
            candidate=context.candidate,
            parallelism=Parallelism(jobs=question.effort.jobs),
            budget=Budget(seconds=context.seconds_left),
        ),
    )


def _line(seen: PrecisionSeen) -> str:
    if not seen.high:
        return f"it passes when all layers are cast to {seen.low} explicitly: no layer needs more"
    return f"it passes with {first_of(seen.high, _PRECISION_MOST_SHOWN)} in float32, of {seen.layers} layers"


PRECISION = DiagnosisStep(
    name="precision",
    question="do layers in a higher precision mend it?",
    not_asked=_precision_not_asked,
    answer=_precision_answer,
    evidence="precision",
    files=(MIXED, PRECISION_REPORT),
)
"""It says which layers; not whether the precision or an engine's arithmetic in it is at fault."""
