"""The smallest piece that still fails, which known bugs it looks like, and what may vary in it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.command_line import OwnRun, parse
from biopsy.comparison.mismatch import error_text
from biopsy.diagnosis.context import NO_PIECE, DiagnosisStep, StepAnswer, StepContext, TimeUpError
from biopsy.diagnosis.facts import KnownFacts, KnownFailureSeen, PieceFound, PieceSearch, VariationSeen
from biopsy.diagnosis.question import with_inputs, without_weights_folder
from biopsy.diagnosis.steps.rounding import accused, judged_in_piece
from biopsy.engines.runner import Inputs
from biopsy.findings.reduction import search_tree
from biopsy.findings.search_history import SearchHistory
from biopsy.model.index import index_file
from biopsy.questions.known_failures.catalogue import ORIGIN
from biopsy.questions.known_failures.lookup import look_up, seen_in
from biopsy.questions.variation.vary import USUAL_CHECKS, VariationJob, vary
from biopsy.reduction.problem import Border
from biopsy.reduction.reduce import RecordingOptions, ReductionJob, run_job
from biopsy.reduction.result import Target, inputs_file
from biopsy.session.checked_search import SearchOptions
from biopsy.session.files import Resume
from biopsy.session.pool import Parallelism
from biopsy.session.trial import Budget
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Feed
from biopsy.text import count

PIECE = "piece.onnx"
REPORT = "search.json"
"""The piece, and the course of the search for it, in the folder of the evidence."""

_MOST_SHOWN = 6


def _not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    if facts.failure is None:
        return "nothing fails"
    if facts.fault == "input":
        return "no engine is at fault, but the size of the inputs"
    if facts.fault == "random":
        return "the model is random: no comparison of its values says anything"
    return "it is rounding: no part of the model is at fault" if facts.is_rounding else None


def _answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    failure, question = facts.failure, context.question
    assert failure is not None
    words = without_weights_folder(failure.check)
    command = parse(words)
    files = command.input_files if isinstance(command, OwnRun) else list(question.samples.files)
    output = question.folder / PIECE
    fed = isinstance(command, OwnRun) and bool(command.input_files) and not command.golden_files
    jobs = question.effort.jobs if command.names_candidate(str(context.candidate)) else 1
    job = ReductionJob(
        target=Target(output),
        search=SearchOptions(
            rules=question.judging.rules,
            candidate=context.candidate,
            parallelism=Parallelism(jobs=jobs),
            budget=Budget(seconds=context.seconds_left),
            resume=Resume(
                journal=output.with_name(f"{PIECE}.journal"),
                files=tuple(files),
                search="diagnosis",
                fresh=question.fresh,
            ),
        ),
        recording=RecordingOptions(samples=(lambda: _feeds_in(files)) if files else None),
        border=Border(mark_intermediate=failure.masked),
        command=command,
        feeds_recorded=fed and inputs_file(output).resolve() not in [file.resolve() for file in files],
    )
    history = SearchHistory()
    with context.check_for_search(words, jobs) as check:
        reduction = run_job(question.index, check, job, events.both(history, context.listener))
    context.keep(REPORT, search_tree(reduction, history, job.mode))
    piece = PieceFound(
        path=str(reduction.output),
        inputs=None if reduction.inputs is None else str(reduction.inputs),
        nodes=reduction.nodes,
        reads=reduction.reads,
        kept=reduction.kept,
        nodes_before=reduction.nodes_before,
        signature=reduction.signature,
        search=PieceSearch(
            checks=reduction.checks,
            seconds=reduction.seconds,
            stopped=reduction.stopped,
            other_failures=tuple(reduction.other_failures.items()),
        ),
        error_after="" if reduction.error_after is None else error_text(reduction.error_after),
        masked=failure.masked,
        places=tuple(dict.fromkeys(str(source) for source in reduction.sources if source is not None)),
    )
    rounding = facts.rounding
    if rounding is not None and rounding.is_more:
        with contextlib.suppress(TimeUpError, errors.CheckError):  # what the whole model has told stays
            rounding = judged_in_piece(rounding, failure, context, piece)
        failure = accused(failure, rounding)
    more = f" and {len(piece.nodes) - _MOST_SHOWN} more" if len(piece.nodes) > _MOST_SHOWN else ""
    ended = "" if piece.is_one_minimal else f" · stopped by {piece.search.stopped}: a smaller one may exist"
    head = f"{len(piece.nodes)} of {count(piece.nodes_before, 'node')}"
    known = replace(facts, piece=piece, rounding=rounding, failure=failure)
    return StepAnswer(known, f"{head}: {joined(piece)[0]}{more}{ended}")


def _feeds_in(files: Sequence[Path]) -> Sequence[Feed]:
    return [feed for file in files for feed in read_feeds(file)]


def joined(piece: PieceFound) -> tuple[str, bool]:
    """The first nodes of a piece in one line, with arrows where they are a chain; and whether they are."""
    is_chain = all(sources == ((place - 1,) if place else ()) for place, sources in enumerate(piece.reads))
    return (" -> " if is_chain else ", ").join(piece.nodes[:_MOST_SHOWN]), is_chain


SMALLEST_PIECE = DiagnosisStep(
    name="piece",
    question="which is the smallest part that still fails?",
    not_asked=_not_asked,
    answer=_answer,
    evidence="search",
    files=(PIECE, inputs_file(Path(PIECE)).name, REPORT),
    share=0.6,  # something must be left for what is asked about the piece
)
"""What is asked after it is asked about the piece, where there is one."""


# Which known bugs the piece looks like: a look-up that takes milliseconds and runs nothing.

KNOWN_REPORT = "known.json"
"""What was looked up, as ``debug known`` has it, in the folder of the evidence."""


def _known_not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    if facts.piece is None:
        return NO_PIECE
    if facts.piece.masked:
        return "a failure that the outputs do not show"
    return None


def _known_answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    failure, piece = facts.failure, facts.piece
    assert failure is not None and piece is not None
    suspect = failure.suspect or ""
    release = facts.versions.get(suspect, "")
    way = seen_in(suspect, release=release, stage=failure.said.stage, kind=failure.said.kind)
    try:
        lookup = look_up(Path(piece.path), way, listener=context.listener)
    except errors.BiopsyError:
        raise
    except Exception as error:  # whatever a strange piece does to a look-up, the diagnosis goes on
        raise errors.BiopsyError(f"the piece could not be looked up: {error}") from error
    context.keep(KNOWN_REPORT, lookup.as_json())
    known, best = KnownFailureSeen(sentence=lookup.sentence), lookup.best
    if best is not None:
        known = KnownFailureSeen(
            sentence=lookup.sentence,
            reference=best.failure.reference,
            issue=best.failure.issue if best.failure.origin == ORIGIN else "",
            evidence="; ".join(best.agreement(lookup.seen)),
            is_sure=best.is_sure,
        )
    return StepAnswer(replace(facts, known=known), lookup.sentence)


KNOWN = DiagnosisStep(
    name="known",
    question="which known bugs does it look like?",
    not_asked=_known_not_asked,
    answer=_known_answer,
    evidence="known",
    files=(KNOWN_REPORT,),
    warm=True,
)
"""What others have reported of such a piece."""


# What may vary in the piece, and it still fails: asked of the smallest part that was found.

VARIATION_REPORT = "variation.json"
"""What was tried, in the folder of the evidence."""

_MOST_NODES = 30
"""Of a piece: each node has features, and each feature takes several checks."""

_LONGEST_LINE = 150
_MOST_FIXED_SHOWN = 3


def _variation_not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    if facts.piece is None:
        return NO_PIECE
    if facts.is_flaky:
        return "it fails now and then: each question would take many runs"
    if facts.piece.masked:
        return "a failure that the outputs do not show"
    return f"the piece has more than {_MOST_NODES} nodes" if len(facts.piece.nodes) > _MOST_NODES else None


def _variation_answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    failure, piece, question = facts.failure, facts.piece, context.question
    assert failure is not None and piece is not None
    inputs = None if piece.inputs is None else Path(piece.inputs)
    words = with_inputs(without_weights_folder(failure.check), inputs)
    command = parse(words)
    compares, fed = command.compares_recorded, None
    if isinstance(command, OwnRun):
        files = command.input_files
        fed = Inputs(given=_feeds_in(files)) if files else question.samples.inputs
    job = VariationJob(
        search=SearchOptions(
            rules=question.judging.rules,
            candidate=context.candidate,
            parallelism=Parallelism(jobs=question.effort.jobs),
            budget=Budget(checks=USUAL_CHECKS, seconds=context.seconds_left),
        ),
        inputs=fed,
        values_free=None if compares is None else not compares,
    )
    with context.check_for_search(words) as check:
        listener = events.without(events.ModelRead, context.listener)
        variation = vary(index_file(Path(piece.path)), check, job, listener)
    context.keep(VARIATION_REPORT, variation.as_json())
    seen = VariationSeen(sentence=variation.sentence, kept=variation.kept, complete=variation.complete)
    line = variation.sentence
    if len(line) > _LONGEST_LINE and variation.fixed:
        named = [f"{each.title} {each.short}" for each in variation.fixed[:_MOST_FIXED_SHOWN] if each.short]
        more, free = len(variation.fixed) - len(named), len(variation.free)
        rest = f" · {count(more, 'condition')} more in {VARIATION_REPORT}" if more else ""
        rest += f" · {count(free, 'feature')} may be anything" if free else ""
        line = f"fails only with: {'; '.join(named)}{rest}"
    return StepAnswer(replace(facts, variation=seen), line)


VARIATION = DiagnosisStep(
    name="may vary",
    question="what may vary, and it still fails?",
    not_asked=_variation_not_asked,
    answer=_variation_answer,
    evidence="variation",
    files=(VARIATION_REPORT,),
    share=0.7,
)
"""Attributes, sizes, types and values that the failure depends on, and those that may be others."""
