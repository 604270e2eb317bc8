"""Which layers are wrong, also where the outputs do not show it, and whether a higher precision mends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.comparison.noise import DEFAULT_RATIO
from biopsy.diagnosis.context import (
    TWO_ENGINES,
    UNKNOWN_COMPARISON,
    DiagnosisStep,
    StepAnswer,
    StepContext,
    TimeUpError,
)
from biopsy.diagnosis.facts import FailureReport, FailureSeen, KnownFacts, LayersSeen, PrecisionSeen
from biopsy.diagnosis.question import without_weights_folder
from biopsy.diagnosis.steps.rounding import low_precision
from biopsy.engines.registry import create
from biopsy.engines.runner import checked_feed, feeds_for
from biopsy.model.index import index_file
from biopsy.model.tensor_type import TensorType
from biopsy.processes.cleanup import temporary_folder
from biopsy.questions.layers.examination import Examination
from biopsy.questions.layers.findings import LayerFinding, LayerFindings, LayerGroup, layers_tree
from biopsy.questions.layers.question import Question
from biopsy.questions.precision.mixed_models import Precisions, mixed_models
from biopsy.questions.precision.search import PrecisionJob, precision_tree
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
    failure, piece = facts.failure, facts.piece
    if failure is None:
        return "no layer is known to be wrong"
    if failure.masked and piece is None:
        return "known already"
    if facts.fault not in (None, "refused"):
        return "no engine is at fault"
    if facts.is_rounding:
        return "it is rounding: no layer is at fault"
    if failure.suspect is None or failure.trusted is None:
        return TWO_ENGINES
    if piece is not None and len(piece.nodes) == 1:
        return "the piece is one node"
    if not create(failure.trusted).capabilities.marks_any_tensor:
        return f"{failure.trusted} gives no inner tensors"
    return None


def _answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    failure, piece = facts.failure, facts.piece
    assert failure is not None and failure.suspect is not None and failure.trusted is not None
    model = context.question.model if piece is None else Path(piece.path)
    inputs = None if piece is None or piece.inputs is None else Path(piece.inputs)
    findings = _examined(context, model, inputs, (failure.trusted, failure.suspect), REPORT)
    seen = _layers_seen(findings, failure.suspect, of_piece=piece is not None)
    return StepAnswer(replace(facts, layers=seen), _line(seen))


def _examined(
    context: StepContext, model: Path, inputs: Path | None, pair: tuple[str, str], report: str
) -> LayerFindings:
    """The findings, also written as ``debug layers`` writes them, to the file ``report`` of the folder.

    A file belongs to one step: what is written between two savings of the evidence must be nobody else's.
    """
    question, samples = context.question, context.question.samples

    def feeds(kinds: Mapping[str, TensorType | None]) -> Sequence[Feed]:
        files = [inputs] if inputs is not None else samples.files
        given = [feed for file in files for feed in read_feeds(file)] or None
        shapes = {name: shape for name, shape in samples.inputs.shapes.items() if name in kinds}
        wanted = replace(samples.inputs, given=given, shapes=shapes, symbols={}, val_range={}, complete=True)
        return [checked_feed(feed, kinds, number) for number, feed in enumerate(feeds_for(kinds, wanted).feeds)]

    with temporary_folder("biopsy-") as scratch:
        about = Question(
            index=index_file(model, question.weights_folder if model == question.model else None),
            feeds=feeds,
            suspect=pair[1],
            reference=pair[0],
            judge=question.judging.judge,
            timeout=max(1.0, context.seconds_left),
        )
        examination = Examination(about, scratch, context.bounded)
        try:
            findings = examination.run()
        except TimeUpError:
            findings = examination.findings
    context.keep(report, layers_tree(findings, model, examination.engines, examination.samples))
    return findings


def _layers_seen(findings: LayerFindings, suspect: str, *, of_piece: bool, sure: bool = False) -> LayersSeen:
    """What counts of the findings; ``sure``: only what float64 says is more than rounding."""

    def counts(found: LayerFinding | LayerGroup) -> bool:
        if found.failure is not None:
            return True
        return not sure if found.rounding_ratio is None else found.rounding_ratio > DEFAULT_RATIO

    together = [group for group in findings.groups if counts(group)]
    return LayersSeen(
        alone=tuple(layer.node.label for layer in findings.layers if layer.is_suspect and counts(layer)),
        together=tuple(group.labels for group in together),
        hides=together[0].hides if together else None,
        suspect=suspect,
        masked=findings.is_masked,
        of_piece=of_piece,
        layers=len(findings.layers),
        complete=findings.complete,
    )


def _line(seen: LayersSeen) -> str:
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
    share=_SHARE,
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
    trusted = facts.compared.rows[0][0]
    return None if create(trusted).capabilities.marks_any_tensor else f"{trusted} gives no inner tensors"


def _masked_answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    assert facts.compared is not None
    trusted, suspect = facts.compared.rows[0][0], facts.compared.rows[0][-1]
    findings = _examined(context, context.question.model, None, (trusted, suspect), MASKED_REPORT)
    seen = _layers_seen(findings, suspect, of_piece=False, sure=True)
    if not findings.is_masked or not (seen.alone or seen.together):
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
    not_asked=_masked_not_asked,
    answer=_masked_answer,
    evidence="layers",
    files=(MASKED_REPORT,),
    share=_SHARE,
)
"""What float64 does not call more than rounding is no error here: nothing else has failed."""


# Whether layers in a higher precision mend the model: asked of one that has layers in fp16 or bf16.

MIXED = "mixed.onnx"
PRECISION_REPORT = "precision.json"
"""The model with some layers high, and the report of ``debug precision``, in the folder of the evidence."""

_MOST_HIGH_SHOWN = 5


def _precision_not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    failure = facts.failure
    if failure is None:
        return "nothing fails"
    if facts.fault is not None:
        return "no engine is at fault"
    if facts.is_rounding:
        return "it is rounding"
    if failure.masked or failure.said.kind not in ("mismatch", "not-finite-mismatch"):
        return "not a question of numbers"
    if low_precision(context.question.index) is None:
        return "no layer of the model is known to be in a low precision"
    if facts.mending_switches:
        return "a setting mends it"
    return None if isinstance(parse(failure.check), OwnRun) else UNKNOWN_COMPARISON


def _precision_answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    failure, question = facts.failure, context.question
    low = low_precision(question.index)
    assert failure is not None and low is not None
    precisions = Precisions(low=low, high="float32", form="native")
    job = PrecisionJob(
        output=question.folder / MIXED,
        report=question.folder / PRECISION_REPORT,
        write_report=lambda result: context.keep(PRECISION_REPORT, precision_tree(result)),
        search=SearchOptions(
            rules=question.judging.rules,
            candidate=context.candidate,
            parallelism=Parallelism(jobs=question.effort.jobs),
            budget=Budget(seconds=context.seconds_left),
        ),
    )
    try:
        with context.check_for_search(without_weights_folder(failure.check)) as check:
            result = run_job(
                question.index,
                lambda place: mixed_models(question.index, place, precisions, ()),
                check,
                job,
                context.listener,
            )
    except errors.HighPrecisionFails:
        seen, line = PrecisionSeen(low=low, passes=False), "no: it fails with every layer in float32 too"
    else:
        high = tuple(layer.label for layer in result.high)
        seen = PrecisionSeen(low=low, passes=True, high=high, layers=result.layers, output=str(result.output))
        line = f"it passes when all layers are cast to {low} explicitly: no layer needs more"
        if high:
            line = f"it passes with {first_of(high, _MOST_HIGH_SHOWN)} in float32, of {result.layers} layers"
    return StepAnswer(replace(facts, precision=seen), line)


PRECISION = DiagnosisStep(
    name="precision",
    question="do layers in a higher precision mend it?",
    not_asked=_precision_not_asked,
    answer=_precision_answer,
    evidence="precision",
    files=(MIXED, PRECISION_REPORT),
)
"""It says which layers; not whether the precision or an engine's arithmetic in it is at fault."""
