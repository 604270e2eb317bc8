"""Is it steady? The same run again, an engine against itself, and equal rows of a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.repetition import rate_text
from biopsy.comparison.compare import compare_output
from biopsy.comparison.tolerance import asked_of
from biopsy.diagnosis.context import StepContext
from biopsy.diagnosis.facts import FailureSeen, KnownFacts, SteadinessSeen
from biopsy.diagnosis.samples import written
from biopsy.diagnosis.step import DiagnosisStep, StepAnswer
from biopsy.tensors.files import read_feeds, read_results

if TYPE_CHECKING:
    from biopsy.tensors.results import Array, Feed, RunnerResult

_RUNS = 4
"""Runs of the failing check at first, besides the one that is known."""

_RUNS_IF_FLAKY = 20

_SHARE = 0.3
_RUNS_OF_ONE = 5
"""How often an engine is compared with itself if its failure is flaky."""


def _not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    if facts.failure is None:
        return "nothing fails"
    if facts.failure.masked:
        return "the outputs do not show it"
    if facts.fault_before is not None and facts.fault_before.kind == "random":
        return "the model is random"
    return None


def _answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    failure = facts.failure
    assert failure is not None
    context.begin_step(_SHARE)
    failed, runs = _rate(failure, context)
    compares = failure.said.stage == "compare" and context.question.check is None
    seen = SteadinessSeen(
        failed=failed,
        runs=runs,
        itself=_against_itself(failure, context, often=failed < runs) if compares else "",
        rows=_rows(failure, context) if compares and failed == runs else "",
    )
    if seen.is_flaky:  # that it passed with other inputs may have been luck
        failure = replace(failure, passes_with=(), passing_inputs=None)
    return StepAnswer(replace(facts, steadiness=seen, failure=failure), _line(seen))


def _line(seen: SteadinessSeen) -> str:
    told = [f"fails in {rate_text(seen.failed, seen.runs)}" if seen.is_flaky else f"fails in all {seen.runs} runs"]
    return " · ".join([*told, *filter(None, (seen.itself, seen.rows))])


def _rate(failure: FailureSeen, context: StepContext) -> tuple[int, int]:
    """In how many of how many runs it fails: the known one, some more, and many more if they do not agree."""
    failed, runs = 1, 1
    while runs <= (_RUNS if failed == runs else _RUNS_IF_FLAKY - 1):
        if runs > 1 and runs >= 3 and failure.seconds * 4 > context.seconds_left:
            break  # a slow check: the time is needed for other questions
        seen = context.run(failure.check, context.question.model, description=f"run {runs + 1}")
        failed += seen.fails
        runs += 1
    return failed, runs


def _against_itself(failure: FailureSeen, context: StepContext, *, often: bool) -> str:
    """That an engine differs from itself, in words; "" if it does not."""
    question = context.question
    for engine in dict.fromkeys(filter(None, (failure.suspect, failure.trusted))):
        words = question.original_words([engine, engine])
        runs = _RUNS_OF_ONE if often else 1
        differing = sum(
            context.run(words, question.model, description=f"{engine} against itself").fails for _ in range(runs)
        )
        if differing:
            return f"compared with itself, {engine} differs in {differing} of {runs} runs"
    return ""


# Equal rows


def _rows(failure: FailureSeen, context: StepContext) -> str:
    """That an engine gives different answers for equal rows, where the trusted one gives equal ones; "" if not."""
    question = context.question
    command = parse(failure.check)
    if failure.trusted is None or failure.suspect is None or not isinstance(command, OwnRun) or not command.input_files:
        return ""
    feed = read_feeds(command.input_files[0])[0]
    batch = _batch(feed)
    if batch is None:
        return ""
    inputs = written(question.folder / "inputs_equal_rows", [_equal_rows(feed)])
    outputs = question.folder / "outputs_equal_rows.safetensors"
    words = question.original_words([failure.trusted, failure.suspect], "--save-outputs", str(outputs), files=[inputs])
    outputs.unlink(missing_ok=True)
    context.run(words, question.model, description="with equal rows in the batch")
    if not outputs.is_file():
        return ""
    try:
        return _unequal(read_results(outputs), failure, batch, context)
    except errors.DataError:
        return ""


def _batch(feed: Feed) -> int | None:
    """The size of the first dimension, if all inputs have the same one, and it is more than one."""
    sizes = {value.shape[0] if value.ndim else 0 for value in feed.values()}
    return next(iter(sizes)) if len(sizes) == 1 and min(sizes) > 1 else None


def _equal_rows(feed: Feed) -> dict[str, Array]:
    import numpy as np

    return {name: np.ascontiguousarray(np.broadcast_to(value[:1], value.shape)) for name, value in feed.items()}


def _unequal(results: list[RunnerResult], failure: FailureSeen, batch: int, context: StepContext) -> str:
    """An output in which the rows of the suspect alone differ, in words."""
    by_place = results[:2]
    if len(by_place) < 2:
        return ""
    trusted, suspect = (result.iterations[0].outputs for result in by_place)
    for name, values in suspect.items():
        if name not in trusted or values.ndim == 0 or values.shape[0] != batch:
            continue
        if _rows_agree(name, trusted[name], context) and not _rows_agree(name, values, context):
            return f"for equal rows of the inputs, {failure.suspect} gives different rows of {name!r}"
    return ""


def _rows_agree(name: str, values: Array, context: StepContext) -> bool:
    import numpy as np

    judge = context.question.judging.judge
    asked = asked_of(name, judge.tolerances, judge.stats, judge.limits)
    expected = np.ascontiguousarray(np.broadcast_to(values[:1], values.shape))
    return compare_output(name, np.asarray(values), expected, asked, "brief").passed


STEADINESS = DiagnosisStep(
    name="steady", question="is it steady?", not_asked=_not_asked, answer=_answer, evidence="failure"
)
"""A flaky failure is told as one."""
