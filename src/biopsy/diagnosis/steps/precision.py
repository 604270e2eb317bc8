"""Whether layers in a higher precision mend the model: asked of one that has layers in fp16 or bf16."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.warm import command_check
from biopsy.diagnosis.context import StepContext, limit_as_time_up
from biopsy.diagnosis.facts import KnownFacts, PrecisionSeen
from biopsy.diagnosis.low_precision import low_precision
from biopsy.diagnosis.question import without_weights_folder
from biopsy.diagnosis.reasons import UNKNOWN_COMPARISON
from biopsy.diagnosis.step import DiagnosisStep, StepAnswer
from biopsy.filesystem.write import write_whole
from biopsy.mixed_precision.job import PrecisionJob
from biopsy.mixed_precision.job_run import run_job
from biopsy.mixed_precision.precisions import Precisions, mixed_models
from biopsy.mixed_precision.result import PrecisionResult, PrecisionTarget, precision_tree
from biopsy.report.envelope import as_json
from biopsy.session.budget import Budget
from biopsy.session.options import SearchOptions
from biopsy.session.pool import Parallelism
from biopsy.text import first_of

MIXED = "mixed.onnx"
REPORT = "precision.json"
"""The model with some layers high, and the report of ``debug precision``, in the folder of the evidence."""

_KINDS = frozenset({"mismatch", "not-finite-mismatch"})
_MOST_SHOWN = 5


def _not_asked(facts: KnownFacts, context: StepContext) -> str | None:
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


def _answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
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
    seen = _record(found, low)
    return StepAnswer(replace(facts, precision=seen), _line(seen))


def _job(context: StepContext) -> PrecisionJob:
    question = context.question
    return PrecisionJob(
        target=PrecisionTarget(
            output=question.folder / MIXED,
            report=question.folder / REPORT,
            write_report=lambda found: write_whole(question.folder / REPORT, [as_json(precision_tree(found))]),
        ),
        search=SearchOptions(
            rules=question.judging.rules,
            candidate=context.candidate,
            parallelism=Parallelism(jobs=question.effort.jobs),
            budget=Budget(seconds=context.seconds_left),
        ),
    )


def _record(found: PrecisionResult, low: str) -> PrecisionSeen:
    return PrecisionSeen(
        low=low,
        passes=True,
        high=tuple(layer.label for layer in found.high),
        layers=found.layers,
        output=str(found.output),
    )


def _line(seen: PrecisionSeen) -> str:
    if not seen.high:
        return f"it passes when all layers are cast to {seen.low} explicitly: no layer needs more"
    return f"it passes with {first_of(seen.high, _MOST_SHOWN)} in float32, of {seen.layers} layers"


PRECISION = DiagnosisStep(
    name="precision",
    question="do layers in a higher precision mend it?",
    not_asked=_not_asked,
    answer=_answer,
    evidence="precision",
    files=(MIXED, REPORT),
)
"""It says which layers; not whether the precision or an engine's arithmetic in it is at fault."""
