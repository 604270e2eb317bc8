"""Where a check says which engine it runs, for questions that are asked with other settings or releases of it."""

from __future__ import annotations

from pathlib import Path

from biopsy.diagnosis.facts import FailureSeen, KnownFacts, PieceFound
from biopsy.diagnosis.question import DiagnosisQuestion, Words, with_engine_place, with_inputs, without_weights_folder
from biopsy.diagnosis.reasons import NO_PLACE, UNKNOWN_ENGINE
from biopsy.engines.registry import parse_spec
from biopsy.tactics.setting_changes import CheckTemplate


def why_not_varied(facts: KnownFacts, question: DiagnosisQuestion, what: str) -> str | None:
    """Why it is not asked which ``what`` of the engine is at fault, such as a setting; None if it is."""
    failure = facts.failure
    if failure is None:
        return "nothing fails"
    if facts.fault_before is not None and facts.fault_before.kind != "refused":
        return "no engine is at fault"
    if facts.rounding is not None and facts.rounding.is_rounding:
        return f"it is rounding: no {what} is at fault"
    if failure.masked:
        return "a failure that the outputs do not show"
    if failure.suspect is None:
        return UNKNOWN_ENGINE
    if _template(failure.check, failure, question) is None:
        return NO_PLACE
    return None


def original_template(failure: FailureSeen, question: DiagnosisQuestion) -> CheckTemplate:
    """The check of the original with a place for the engine, where ``why_not_varied`` has no objection."""
    found = _template(failure.check, failure, question)
    assert found is not None
    return found


def piece_template(failure: FailureSeen, piece: PieceFound, question: DiagnosisQuestion) -> CheckTemplate:
    """The same for the piece, with the inputs that it is fed."""
    inputs = None if piece.inputs is None else Path(piece.inputs)
    found = _template(with_inputs(without_weights_folder(failure.check), inputs), failure, question)
    assert found is not None
    return found


def _template(words: Words, failure: FailureSeen, question: DiagnosisQuestion) -> CheckTemplate | None:
    """The words with a place for the engine; None if they have none."""
    if failure.suspect is None:
        return None
    given = question.template
    placed = with_engine_place(words, failure.suspect) if given is None else given
    return None if placed is None else CheckTemplate(placed, parse_spec(failure.suspect), is_own_run=given is None)
