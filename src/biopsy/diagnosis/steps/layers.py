"""Which layers are wrong by themselves, or together, in the piece or the whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from biopsy.comparison.mismatch import special_of
from biopsy.comparison.noise import DEFAULT_RATIO
from biopsy.diagnosis.context import (
    TWO_ENGINES,
    StepAnswer,
    StepContext,
    TimeUpError,
    diagnosis_step,
)
from biopsy.diagnosis.facts import (
    FailureReport,
    KnownFacts,
    LayerFacts,
    ModelFailure,
)
from biopsy.diagnosis.question import feeds_in, path_of
from biopsy.diagnosis.steps.parts import CASTS_LEFT_OUT
from biopsy.engines.registry import create
from biopsy.engines.runner import checked_feed, feeds_for
from biopsy.model.index import index_file
from biopsy.model.tensor_type import TensorType
from biopsy.processes.cleanup import temporary_folder
from biopsy.questions.layers.examination import Examination
from biopsy.questions.layers.findings import LayerFinding, LayerFindings, LayerGroup, layers_tree
from biopsy.questions.layers.question import Question
from biopsy.tensors.results import Feed
from biopsy.text import count, first_of

LAYERS_REPORT = "layers.json"
MASKED_REPORT = "masked.json"
"""The reports of ``debug layers`` on the piece and on the whole model, in the folder of the evidence.

Each file belongs to one step, as the evidence keeps digests of the files of answered steps.
"""

_SHARE = 0.5
_MOST_LAYERS_SHOWN = 3


def no_inner_tensors(engine: str | None) -> dict[str, object]:
    """The reason not to examine layers with an engine as the reference, with whether it holds."""
    is_known = engine is None or create(engine).capabilities.marks_any_tensor
    return {f"{engine} gives no inner tensors": not is_known}


@diagnosis_step(
    "layer",
    "is it one node, or several together?",
    unless=lambda facts, context: {
        "no layer is known to be wrong": facts.failure is None,
        "known already": facts.is_masked and facts.piece is None,
        "no engine is at fault": facts.fault not in (None, "refused"),
        "it is rounding: no layer is at fault": facts.is_rounding,
        CASTS_LEFT_OUT: facts.rounding and facts.rounding.leaves_out,
        "the piece is one node": facts.piece is not None and len(facts.piece.nodes) == 1,
        TWO_ENGINES: facts.suspect is None or facts.known_failure.trusted is None,
        **no_inner_tensors(facts.failure and facts.failure.trusted),
    },
    evidence="layers",
    files=(LAYERS_REPORT,),
    share=_SHARE,
)
def wrong_layers(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Examine isolated layers and groups of them, in the piece if there is one."""
    failure, piece = facts.known_failure, facts.piece
    model = context.question.model if piece is None else Path(piece.path)
    inputs = None if piece is None else path_of(piece.inputs)
    findings = examined(context, model, inputs, (failure.trusted or "", failure.suspect or ""), LAYERS_REPORT)
    of_values = failure.is_of_values
    layers = _layer_facts(findings, failure.suspect or "", of_piece=piece is not None, of_values=of_values)
    return StepAnswer(replace(facts, layers=layers), _layers_line(layers))


@diagnosis_step(
    "masked",
    "is an inner tensor wrong although the outputs are right?",
    unless=lambda facts, context: {
        "the model fails": facts.failure is not None,
        "the check decides, and it passes": context.question.check is not None,
        "nothing was compared": not facts.agreeing,
        **no_inner_tensors(facts.agreeing[0] if facts.agreeing else None),
    },
    evidence="layers",
    files=(MASKED_REPORT,),
    share=_SHARE,
)
def masked_error(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Examine the layers of a model whose outputs are right. Only errors beyond rounding, by float64, count."""
    trusted, suspect = facts.agreeing[0], facts.agreeing[-1]
    findings = examined(context, context.question.model, None, (trusted, suspect), MASKED_REPORT)
    layers = _layer_facts(findings, suspect, of_piece=False, by_float64=True)
    if not findings.is_masked or not (layers.alone or layers.together):
        return StepAnswer(replace(facts, layers=layers), _layers_line(layers))
    failure = ModelFailure(
        check=context.question.original_words((trusted, suspect)),
        report=FailureReport(signature="an inner tensor is wrong", engine=suspect, stage="compare", kind="masked"),
        status=0,
        trusted=trusted,
        suspect=suspect,
        masked=True,
    )
    return StepAnswer(replace(facts, layers=layers, failure=failure), f"yes · {_layers_line(layers)}")


def examined(
    context: StepContext, model: Path, inputs: Path | None, pair: tuple[str, str], report: str
) -> LayerFindings:
    """What ``debug layers`` finds of a model, with its report written to the file ``report`` in the folder.

    ``pair`` is the reference and the suspect.
    """
    question, samples = context.question, context.question.samples

    def feeds(kinds: Mapping[str, TensorType | None]) -> Sequence[Feed]:
        from_files = feeds_in(samples.files if inputs is None else [inputs]) or None
        shapes = {name: shape for name, shape in samples.inputs.shapes.items() if name in kinds}
        specified = replace(samples.inputs, given=from_files, shapes=shapes, symbols={}, val_range={}, complete=True)
        return [checked_feed(feed, kinds, number) for number, feed in enumerate(feeds_for(kinds, specified).feeds)]

    with temporary_folder("biopsy-") as scratch:
        layers_question = Question(
            index=index_file(model, question.weights_folder if model == question.model else None),
            feeds=feeds,
            suspect=pair[1],
            reference=pair[0],
            judge=question.judging.judge,
            timeout=max(1.0, context.seconds_left),
        )
        examination = Examination(layers_question, scratch, context.limited_listener)
        try:
            findings = examination.run()
        except TimeUpError:
            findings = examination.findings
    context.keep(report, layers_tree(findings, model, examination.engines, examination.samples))
    return findings


def exceeds_rounding(part: LayerFinding | LayerGroup, *, by_float64: bool = False) -> bool:
    """Whether a part that is wrong is so by more than rounding, or in its form, or fails.

    With ``by_float64``, an error that float64 did not judge does not count.
    """
    error = part.introduced if isinstance(part, LayerFinding) else part.error
    if part.failure is not None or (error is not None and error.form):
        return True
    if part.rounding_ratio is None:
        return not by_float64
    return part.rounding_ratio > DEFAULT_RATIO


def _layer_facts(
    findings: LayerFindings, suspect: str, *, of_piece: bool, by_float64: bool = False, of_values: bool = True
) -> LayerFacts:
    """The findings without rounding; with ``by_float64``, also without errors that float64 did not judge.

    Unless the model's failure is ``of_values``, only layers that fail count: wrong values are another failure.
    """

    def counts(part: LayerFinding | LayerGroup) -> bool:
        return exceeds_rounding(part, by_float64=by_float64) if of_values else part.failure is not None

    if_marked = {suspect.nodes for suspect in findings.wrong_if_marked}
    together = [group for group in findings.groups if counts(group) and group.nodes not in if_marked]
    alone = [layer for layer in findings.layers if layer.is_suspect and counts(layer)]
    return LayerFacts(
        alone=tuple(f"{layer.node.label}{_how(layer)}" for layer in alone if layer.nodes not in if_marked),
        if_marked=tuple(layer.node.label for layer in alone if layer.nodes in if_marked),
        together=tuple(group.labels for group in together),
        hides=together[0].hides if together else None,
        suspect=suspect,
        of_piece=of_piece,
        of_values=of_values,
        layers=len(findings.layers),
        complete=findings.complete,
    )


def _how(layer: LayerFinding) -> str:
    """How the values of a layer are wrong in isolation, if not only by their size."""
    error = layer.introduced
    if layer.failure is not None or error is None:
        return ""
    special, is_given = special_of(error.kind), error.kind.endswith("-mismatch")
    of_values = f"{special} where the reference does not" if is_given else f"no {special} where the reference does"
    form = error.form or (of_values if special else "")
    return f", which gives {form}" if form else ""


def _layers_line(layers: LayerFacts) -> str:
    ended = "" if layers.complete else " · not examined to the end"
    if layers.alone:
        how = "wrong" if layers.of_values else "fails"
        return f"{how} by itself: {first_of(layers.alone, _MOST_LAYERS_SHOWN)}{ended}"
    if layers.together:
        how = "; not if the tensors between them are outputs" if layers.hides else ""
        return f"none alone, {len(layers.together[0])} together{how}{ended}"
    if layers.if_marked:
        return f"no, only if its result is an output: {first_of(layers.if_marked, _MOST_LAYERS_SHOWN)}{ended}"
    is_right = "is wrong by more than rounding" if layers.of_values else "fails by itself"
    return f"none of {count(layers.layers, 'layer')} {is_right}{ended}"
