"""The smallest piece that still fails, which known bugs it looks like, and what may vary in it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.warm import command_check
from biopsy.comparison.describe import plain
from biopsy.comparison.mismatch import error_text
from biopsy.diagnosis.context import NO_PIECE, DiagnosisStep, StepAnswer, StepContext, TimeUpError, limit_as_time_up
from biopsy.diagnosis.facts import FailureSeen, KnownFacts, KnownFailureSeen, PieceFound, PieceSearch, VariationSeen
from biopsy.diagnosis.question import Words, with_inputs, without_weights_folder
from biopsy.diagnosis.steps.rounding import accused, judged_in_piece
from biopsy.engines.runner import Inputs
from biopsy.findings.answers import known_tree
from biopsy.findings.envelope import as_json
from biopsy.findings.reduction import search_tree
from biopsy.findings.search_history import SearchHistory
from biopsy.model.index import index_file
from biopsy.processes.writing import write_whole
from biopsy.questions.known_failures.catalogue import ORIGIN
from biopsy.questions.known_failures.lookup import KnownLookup, SeenFailure, look_up, seen_in
from biopsy.questions.variation.result import Variation
from biopsy.questions.variation.vary import USUAL_CHECKS, VariationJob, vary
from biopsy.reduction.job import Border, RecordingOptions, ReductionJob, run_job
from biopsy.reduction.result import Reduction, Target, inputs_file
from biopsy.session.checked_search import SearchOptions
from biopsy.session.pool import Parallelism
from biopsy.session.result_file import Resume
from biopsy.session.trial import Budget
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Feed
from biopsy.text import count

PIECE = "piece.onnx"
REPORT = "search.json"
"""The piece, and the course of the search for it, in the folder of the evidence."""

_SHARE = 0.6
"""Of the time that is left: something must be left for what is asked about the piece."""

_MOST_SHOWN = 6


def _not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    if facts.failure is None:
        return "nothing fails"
    if facts.fault_before is not None and facts.fault_before.kind == "input":
        return "no engine is at fault, but the size of the inputs"
    if facts.fault_before is not None and facts.fault_before.kind == "random":
        return "the model is random: no comparison of its values says anything"
    if facts.rounding is not None and facts.rounding.is_rounding:
        return "it is rounding: no part of the model is at fault"
    return None


def _answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    failure = facts.failure
    assert failure is not None
    context.begin_step(_SHARE)
    words = without_weights_folder(failure.check)
    question, command = context.question, parse(words)
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
        recording=RecordingOptions(samples=(lambda: _read(files)) if files else None),
        border=Border(mark_intermediate=failure.masked),
        command=command,
        feeds_recorded=fed and inputs_file(output).resolve() not in [file.resolve() for file in files],
    )
    context.cool()  # one warm process at a time
    history = SearchHistory()
    made = command_check(words, str(context.candidate), jobs=job.search.parallelism.jobs)
    with limit_as_time_up(), contextlib.closing(made) as check:
        found = run_job(context.question.index, check, job, events.both(history, context.listener))
    write_whole(context.question.folder / REPORT, [as_json(search_tree(found, history, job.mode))])
    piece = _record(found, masked=failure.masked)
    return StepAnswer(_judged(replace(facts, piece=piece), context), _line(piece))


def _judged(facts: KnownFacts, context: StepContext) -> KnownFacts:
    """The facts with what float64 says of each engine in the piece, if they differ by more than rounding."""
    failure, rounding, piece = facts.failure, facts.rounding, facts.piece
    if failure is None or rounding is None or piece is None or not rounding.is_more:
        return facts
    with contextlib.suppress(TimeUpError, errors.CheckError):  # what the whole model has told stays
        rounding = judged_in_piece(rounding, failure, context, piece)
    return replace(facts, rounding=rounding, failure=accused(failure, rounding))


def _read(files: Sequence[Path]) -> Sequence[Feed]:
    return [feed for file in files for feed in read_feeds(file)]


def _record(found: Reduction, *, masked: bool) -> PieceFound:
    return PieceFound(
        path=str(found.output),
        inputs=None if found.inputs is None else str(found.inputs),
        nodes=found.nodes,
        reads=found.reads,
        kept=found.kept,
        nodes_before=found.nodes_before,
        signature=found.signature,
        search=PieceSearch(
            checks=found.checks,
            seconds=found.seconds,
            stopped=found.stopped,
            other_failures=tuple(found.other_failures.items()),
        ),
        error_after="" if found.error_after is None else error_text(found.error_after),
        masked=masked,
        places=tuple(dict.fromkeys(str(source) for source in found.sources if source is not None)),
    )


def _line(piece: PieceFound) -> str:
    more = f" and {len(piece.nodes) - _MOST_SHOWN} more" if len(piece.nodes) > _MOST_SHOWN else ""
    ended = "" if piece.is_one_minimal else f" · stopped by {piece.search.stopped}: a smaller one may exist"
    head = f"{len(piece.nodes)} of {count(piece.nodes_before, 'node')}"
    return f"{head}: {joined(piece)[0]}{more}{ended}"


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
    found = _looked_up(Path(piece.path), _seen(failure, facts), context)
    write_whole(context.question.folder / KNOWN_REPORT, [as_json(plain(known_tree(found)))])
    best = found.best
    seen = KnownFailureSeen(
        sentence=found.sentence,
        reference="" if best is None else best.failure.reference,
        issue="" if best is None or best.failure.origin != ORIGIN else best.failure.issue,
        evidence="" if best is None else "; ".join(best.agreement(found.seen)),
        is_sure=best is not None and best.is_sure,
    )
    return StepAnswer(replace(facts, known=seen), found.sentence)


def _looked_up(piece: Path, seen: SeenFailure, context: StepContext) -> KnownLookup:
    try:
        return look_up(piece, seen, listener=context.listener)
    except errors.BiopsyError:
        raise
    except Exception as error:  # whatever a strange piece does to a look-up, the diagnosis goes on
        raise errors.BiopsyError(f"the piece could not be looked up: {error}") from error


def _seen(failure: FailureSeen, facts: KnownFacts) -> SeenFailure:
    suspect = failure.suspect or ""
    versions = dict(facts.compared.engines) if facts.compared is not None else {}
    return seen_in(suspect, release=versions.get(suspect, ""), stage=failure.said.stage, kind=failure.said.kind)


KNOWN = DiagnosisStep(
    name="known",
    question="which known bugs does it look like?",
    not_asked=_known_not_asked,
    answer=_known_answer,
    evidence="known",
    files=(KNOWN_REPORT,),
)
"""What others have reported of such a piece."""


# What may vary in the piece, and it still fails: asked of the smallest part that was found.

VARIATION_REPORT = "variation.json"
"""What was tried, in the folder of the evidence."""

_MOST_NODES = 30
"""Of a piece: each node has features, and each feature takes several checks."""

_VARIATION_SHARE = 0.7
_LONGEST_LINE = 150
_VARIATION_MOST_SHOWN = 3


def _variation_not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    if facts.piece is None:
        return NO_PIECE
    if facts.steadiness is not None and facts.steadiness.is_flaky:
        return "it fails now and then: each question would take many runs"
    if facts.piece.masked:
        return "a failure that the outputs do not show"
    if len(facts.piece.nodes) > _MOST_NODES:
        return f"the piece has more than {_MOST_NODES} nodes"
    return None


def _variation_answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    failure, piece, question = facts.failure, facts.piece, context.question
    assert failure is not None and piece is not None
    context.begin_step(_VARIATION_SHARE)
    context.cool()  # one warm process at a time
    inputs = None if piece.inputs is None else Path(piece.inputs)
    words = with_inputs(without_weights_folder(failure.check), inputs)
    made = command_check(words, str(context.candidate), jobs=question.effort.jobs)
    listener = events.without(events.ModelRead, context.listener)
    with limit_as_time_up(), contextlib.closing(made) as check:
        found = vary(index_file(Path(piece.path)), check, _variation_job(words, context), listener)
    write_whole(question.folder / VARIATION_REPORT, [as_json(found.as_json())])
    seen = VariationSeen(sentence=found.sentence, kept=found.kept, complete=found.complete)
    return StepAnswer(replace(facts, variation=seen), _variation_line(found))


def _variation_line(found: Variation) -> str:
    """The sentence where it is short; else the first things that must be so, and how many more there are."""
    if len(found.sentence) <= _LONGEST_LINE or not found.fixed:
        return found.sentence
    told = [f"{one.title} {one.short}" for one in found.fixed[:_VARIATION_MOST_SHOWN] if one.short]
    more = len(found.fixed) - len(told)
    rest = f" · {count(more, 'condition')} more in {VARIATION_REPORT}" if more else ""
    free = f" · {count(len(found.free), 'feature')} may be anything" if found.free else ""
    return f"fails only with: {'; '.join(told)}{rest}{free}"


def _variation_job(words: Words, context: StepContext) -> VariationJob:
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
    not_asked=_variation_not_asked,
    answer=_variation_answer,
    evidence="variation",
    files=(VARIATION_REPORT,),
)
"""Attributes, sizes, types and values that the failure depends on, and those that may be others."""
