"""Which known bugs the piece looks like: a look-up that takes milliseconds and runs nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from biopsy import errors
from biopsy.comparison.json_report import plain
from biopsy.diagnosis.context import StepContext
from biopsy.diagnosis.facts import FailureSeen, KnownFacts, KnownFailureSeen
from biopsy.diagnosis.reasons import NO_PIECE
from biopsy.diagnosis.step import DiagnosisStep, StepAnswer
from biopsy.filesystem.write import write_whole
from biopsy.known_failures.asking import seen_in
from biopsy.known_failures.catalogue import ORIGIN
from biopsy.known_failures.lookup import KnownLookup, SeenFailure, look_up
from biopsy.report.envelope import as_json
from biopsy.report.known import known_tree

REPORT = "known.json"
"""What was looked up, as ``debug known`` has it, in the folder of the evidence."""


def _not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    if facts.piece is None:
        return NO_PIECE
    if facts.piece.masked:
        return "a failure that the outputs do not show"
    return None


def _answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    failure, piece = facts.failure, facts.piece
    assert failure is not None and piece is not None
    found = _looked_up(Path(piece.path), _seen(failure, facts), context)
    write_whole(context.question.folder / REPORT, [as_json(plain(known_tree(found)))])
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
    not_asked=_not_asked,
    answer=_answer,
    evidence="known",
    files=(REPORT,),
)
"""What others have reported of such a piece."""
