"""What may vary in the piece, and it still fails: asked of the smallest part that was found."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from biopsy import events
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.warm import command_check
from biopsy.diagnosis.context import StepContext, limit_as_time_up
from biopsy.diagnosis.facts import KnownFacts, VariationSeen
from biopsy.diagnosis.question import Words, with_inputs, without_weights_folder
from biopsy.diagnosis.reasons import NO_PIECE
from biopsy.diagnosis.step import DiagnosisStep, StepAnswer
from biopsy.engines.feeding import Inputs
from biopsy.filesystem.write import write_whole
from biopsy.model.index import index_file
from biopsy.quantities import count
from biopsy.report.envelope import as_json
from biopsy.session.budget import Budget
from biopsy.session.options import SearchOptions
from biopsy.session.pool import Parallelism
from biopsy.tensors.files import read_feeds
from biopsy.variation.job import USUAL_CHECKS, VariationJob
from biopsy.variation.result import Variation
from biopsy.variation.vary import vary

REPORT = "variation.json"
"""What was tried, in the folder of the evidence."""

_MOST_NODES = 30
"""Of a piece: each node has features, and each feature takes several checks."""

_SHARE = 0.7
_LONGEST_LINE = 150
_MOST_SHOWN = 3


def _not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    if facts.piece is None:
        return NO_PIECE
    if facts.steadiness is not None and facts.steadiness.is_flaky:
        return "it fails now and then: each question would take many runs"
    if facts.piece.masked:
        return "a failure that the outputs do not show"
    if len(facts.piece.nodes) > _MOST_NODES:
        return f"the piece has more than {_MOST_NODES} nodes"
    return None


def _answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    failure, piece, question = facts.failure, facts.piece, context.question
    assert failure is not None and piece is not None
    context.begin_step(_SHARE)
    context.cool()  # one warm process at a time
    inputs = None if piece.inputs is None else Path(piece.inputs)
    words = with_inputs(without_weights_folder(failure.check), inputs)
    made = command_check(words, str(context.candidate), jobs=question.effort.jobs)
    listener = events.without(events.ModelRead, context.listener)
    with limit_as_time_up(), contextlib.closing(made) as check:
        found = vary(index_file(Path(piece.path)), check, _job(words, context), listener)
    write_whole(question.folder / REPORT, [as_json(found.as_json())])
    seen = VariationSeen(sentence=found.sentence, kept=found.kept, complete=found.complete)
    return StepAnswer(replace(facts, variation=seen), _line(found))


def _line(found: Variation) -> str:
    """The sentence where it is short; else the first things that must be so, and how many more there are."""
    if len(found.sentence) <= _LONGEST_LINE or not found.fixed:
        return found.sentence
    told = [f"{one.title} {one.short}" for one in found.fixed[:_MOST_SHOWN] if one.short]
    more = len(found.fixed) - len(told)
    rest = f" · {count(more, 'condition')} more in {REPORT}" if more else ""
    free = f" · {count(len(found.free), 'feature')} may be anything" if found.free else ""
    return f"fails only with: {'; '.join(told)}{rest}{free}"


def _job(words: Words, context: StepContext) -> VariationJob:
    command = parse(words)
    compares = command.compares_recorded
    return VariationJob(
        search=SearchOptions(
            rules=context.question.judging.rules,
            candidate=context.candidate,
            parallelism=Parallelism(jobs=context.question.effort.jobs),
            budget=Budget(checks=USUAL_CHECKS, seconds=context.seconds_left),
        ),
        inputs=_inputs(command, context) if isinstance(command, OwnRun) else None,
        values_free=None if compares is None else not compares,
    )


def _inputs(command: OwnRun, context: StepContext) -> Inputs:
    files = command.input_files
    if not files:
        return context.question.samples.inputs
    return Inputs(given=[feed for file in files for feed in read_feeds(file)])


VARIATION = DiagnosisStep(
    name="may vary",
    question="what may vary, and it still fails?",
    not_asked=_not_asked,
    answer=_answer,
    evidence="variation",
    files=(REPORT,),
)
"""Attributes, sizes, types and values that the failure depends on, and those that may be others."""
