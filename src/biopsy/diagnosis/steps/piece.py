"""The smallest piece: a reduction of the model by the check that it fails."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.warm import command_check
from biopsy.comparison.error_text import error_text
from biopsy.diagnosis.context import StepContext, TimeUpError, limit_as_time_up
from biopsy.diagnosis.facts import FailureSeen, KnownFacts, PieceFound, PieceSearch
from biopsy.diagnosis.question import Words, without_weights_folder
from biopsy.diagnosis.step import DiagnosisStep, StepAnswer
from biopsy.diagnosis.steps.rounding import accused, judged_in_piece
from biopsy.filesystem.write import write_whole
from biopsy.quantities import count
from biopsy.reduction.inputs_file import inputs_file
from biopsy.reduction.job import Border, RecordingOptions, ReductionJob
from biopsy.reduction.job_run import run_job
from biopsy.reduction.result import Reduction, Target
from biopsy.report.envelope import as_json
from biopsy.report.reduction import search_tree
from biopsy.report.search_history import SearchHistory
from biopsy.session.budget import Budget
from biopsy.session.options import SearchOptions
from biopsy.session.pool import Parallelism
from biopsy.session.resume import Resume
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Feed

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
    job = _job(words, failure, context)
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


def _job(words: Words, failure: FailureSeen, context: StepContext) -> ReductionJob:
    question, command = context.question, parse(words)
    files = command.input_files if isinstance(command, OwnRun) else list(question.samples.files)
    output = question.folder / PIECE
    fed = isinstance(command, OwnRun) and bool(command.input_files) and not command.golden_files
    jobs = question.effort.jobs if command.names_candidate(str(context.candidate)) else 1
    return ReductionJob(
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
