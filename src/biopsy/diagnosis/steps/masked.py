"""Whether a model that passes computes an inner tensor wrongly, which its outputs do not show."""

from __future__ import annotations

from dataclasses import replace

from biopsy.diagnosis.context import StepContext
from biopsy.diagnosis.facts import ComparisonSeen, FailureReport, FailureSeen, KnownFacts
from biopsy.diagnosis.step import DiagnosisStep, StepAnswer
from biopsy.diagnosis.steps.layers import examined, layers_line, layers_seen
from biopsy.engines.registry import create

REPORT = "masked.json"
"""The report of ``debug layers`` on the whole model, in the folder of the evidence."""


def _not_asked(facts: KnownFacts, context: StepContext) -> str | None:
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


def _answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    assert facts.compared is not None
    trusted, suspect = _pair(facts.compared)
    found = examined(context, context.question.model, None, (trusted, suspect), report=REPORT)
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
    not_asked=_not_asked,
    answer=_answer,
    evidence="layers",
    files=(REPORT,),
)
"""What float64 does not call more than rounding is no error here: nothing else has failed."""
