"""Whether the failure is a real one: is it steady, or is it rounding that other tolerances would let pass?"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from biopsy import errors
from biopsy.checks.command import ARBITER
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.repetition import rate_text
from biopsy.comparison.compare import compare_output
from biopsy.comparison.mismatch import Rounding
from biopsy.comparison.tolerance import asked_of
from biopsy.diagnosis.context import UNKNOWN_COMPARISON, CheckRun, DiagnosisStep, StepAnswer, StepContext, TimeUpError
from biopsy.diagnosis.facts import FailureSeen, KnownFacts, PieceFound, RoundingSeen, SteadinessSeen
from biopsy.diagnosis.question import Words, with_inputs, with_other_seed, written
from biopsy.diagnosis.workarounds import with_limits
from biopsy.model.index import ModelIndex
from biopsy.questions.precision.formats import BFLOAT16, FLOAT16
from biopsy.tensors.files import read_feeds, read_results
from biopsy.tensors.results import Array, RunnerResult


def low_precision(index: ModelIndex) -> Literal["fp16", "bf16"] | None:
    """The low precision that inputs or weights of a model have; None if they have none."""
    kinds = [index.tensor_type(tensor) for tensor in (*index.fed_inputs(), *index.outputs)]
    elems = {kind.elem for kind in kinds if kind is not None} | {weight.kind.elem for weight in index.weights.values()}
    return "fp16" if FLOAT16 in elems else "bf16" if BFLOAT16 in elems else None


# Is it rounding? Float64 and plain float32 say, with several inputs; and with which tolerances it would pass.

_MORE_SEEDS = 2
"""Other random inputs that are asked about."""

_TOLERANCES = ("1e-4", "1e-3", "1e-2")
"""Wider ones that are tried; still wider ones would accept what no rounding makes."""

_LIMITS = ("--atol", "--rtol")

_SHARE = 0.3
"""Of the time that is left: the evaluator that computes in float64 may take long."""


def _not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    failure = facts.failure
    if failure is None:
        return "nothing fails"
    if facts.fault_before is not None and facts.fault_before.kind == "random":
        return "the model is random"
    is_wide = context.question.check is None and low_precision(context.question.index) is None  # nothing may overflow
    if not failure.is_of_values and not (failure.is_of_not_finite and is_wide):
        return "not a question of numbers"
    if not isinstance(parse(failure.check), OwnRun):
        return UNKNOWN_COMPARISON
    return None


def _answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    failure = facts.failure
    assert failure is not None
    context.begin_step(_SHARE)
    if failure.is_of_not_finite:
        seen = _with_who_is_wrong(RoundingSeen(verdicts=()), failure, context)
        return StepAnswer(replace(facts, rounding=seen, failure=accused(failure, seen)), _line(seen))
    files = _all_inputs(context)
    runs = _asked_of_all(failure, files, context)
    files = files[: len(runs)]
    told = [run.judged.evidence.verdict.rounding for run in runs if run.fails]
    verdicts = [rounding or Rounding("unknown", reason="the run in float64 gave no answer") for rounding in told]
    if not verdicts:
        raise errors.CheckError("it did not fail when it was asked for: see whether it is steady")
    times = [rounding.times for rounding in verdicts if rounding.times is not None]
    seen = RoundingSeen(
        inputs=len(files),
        verdicts=tuple(rounding.verdict for rounding in verdicts),
        times=max(times, default=None),
        reason=next((rounding.reason for rounding in verdicts if rounding.reason), ""),
    )
    with contextlib.suppress(TimeUpError):  # what is known by then is an answer
        if seen.is_rounding:
            seen = _with_what_passes(seen, failure, files, context)
        elif seen.is_more:
            seen = _with_who_is_wrong(seen, failure, context)
            failure = accused(failure, seen)
    return StepAnswer(replace(facts, rounding=seen, failure=failure), _line(seen))


def _with_who_is_wrong(seen: RoundingSeen, failure: FailureSeen, context: StepContext) -> RoundingSeen:
    """The record with what float64 says of each engine by itself: that they differ does not tell which is wrong."""
    words = {engine: noise_words(engine, context) for engine in _compared(failure, context)}
    return _judged(seen, words, context.question.model, context)


def judged_in_piece(seen: RoundingSeen, failure: FailureSeen, context: StepContext, piece: PieceFound) -> RoundingSeen:
    """The record with what float64 says of each engine in the piece: behind many layers, rounding alone may be great.

    Where it calls no engine wrong there, the record stays as it was.
    """
    inputs = context.question.samples.files if piece.inputs is None else (Path(piece.inputs),)
    plain = context.question.without_limits
    words = {
        engine: plain.words([engine], "--compare-with", "noise", files=inputs) for engine in _compared(failure, context)
    }
    found = _judged(seen, words, Path(piece.path), context)
    return found if found.wrong else seen


def _compared(failure: FailureSeen, context: StepContext) -> list[str]:
    """The engines that are compared; none where a check of the user's decides."""
    return [] if context.question.check is not None else [*filter(None, (failure.suspect, failure.trusted))]


def _judged(seen: RoundingSeen, words: Mapping[str, Words], model: Path, context: StepContext) -> RoundingSeen:
    wrong: list[str] = []
    right: list[str] = []
    for engine, line in words.items():
        asked = context.run(line, model, description=f"{engine} held against float64")
        (wrong if asked.fails else right if asked.passes else []).append(engine)
    return replace(seen, wrong=tuple(wrong), right=tuple(right))


def accused(failure: FailureSeen, seen: RoundingSeen) -> FailureSeen:
    """The failure as that of the engine that is wrong, where only the trusted one is."""
    if failure.trusted is None or failure.trusted not in seen.wrong or failure.suspect not in seen.right:
        return failure
    return replace(failure, suspect=failure.trusted, trusted=failure.suspect)


def _line(seen: RoundingSeen) -> str:
    times = "" if seen.times is None else f" · {seen.times:.3g} times the error of plain float32"
    inputs = f" · {len(seen.verdicts)} of {seen.inputs} sets of inputs fail" if seen.inputs > 1 else ""
    inputs += f" · wrong: {', '.join(seen.wrong)}" if seen.wrong else ""
    if not seen.verdicts:
        wrong = ", ".join(seen.wrong) or "nobody can say which engine"
        return f"NaN or infinity is no rounding · wrong, by float64: {wrong}"
    if seen.is_rounding:
        return f"yes, by float64{times}{inputs}"
    if seen.is_more:
        return f"no, it is more than that, by float64{times}{inputs}"
    return f"nobody can say: {seen.reason}"


def _all_inputs(context: StepContext) -> list[Path | None]:
    """The inputs of the diagnosis, None for what the check has of its own, and other random ones of that shape."""
    question = context.question
    more = [
        with_other_seed(question.index, question.samples, seed, question.folder) for seed in range(1, _MORE_SEEDS + 1)
    ]
    return [None, *(path for path in more if path is not None)]


def _asked_of_all(failure: FailureSeen, files: Sequence[Path | None], context: StepContext) -> list[CheckRun]:
    """The answers for as many inputs as there is time for, one at least. Raises TimeUpError for none."""
    runs: list[CheckRun] = []
    for path in files:
        try:
            runs.append(_asked(failure, path, context))
        except TimeUpError:
            if not runs:
                raise
            break
    return runs


def _asked(failure: FailureSeen, inputs: Path | None, context: StepContext) -> CheckRun:
    words = (*with_inputs(failure.check, inputs), ARBITER)
    return context.run(words, context.question.model, description="held against float64")


def _with_what_passes(
    seen: RoundingSeen, failure: FailureSeen, files: Sequence[Path | None], context: StepContext
) -> RoundingSeen:
    """The record with the tolerances that pass, and whether a comparison that allows rounding does."""
    return replace(
        seen,
        passing_limits=_passing_limits(failure, files, context),
        passes_noise=_passes_noise(failure, files, context),
    )


def _passing_limits(failure: FailureSeen, files: Sequence[Path | None], context: StepContext) -> Words:
    command = parse(failure.check)
    assert isinstance(command, OwnRun)
    for tolerance in _TOLERANCES:
        limits = tuple(word for option in _LIMITS for word in (option, tolerance))
        if _all_pass(with_limits(command, limits), files, context, f"with tolerances of {tolerance}"):
            return limits
    return ()


def _passes_noise(failure: FailureSeen, files: Sequence[Path | None], context: StepContext) -> bool:
    if failure.suspect is None or context.question.check is not None:
        return False
    words = noise_words(failure.suspect, context)
    return _all_pass(words, files, context, "compared with noise")


def noise_words(engine: str, context: StepContext) -> Words:
    """The words of a run that fails only if an engine errs by more than rounding."""
    return context.question.without_limits.original_words([engine], "--compare-with", "noise")


def _all_pass(words: Words, files: Sequence[Path | None], context: StepContext, description: str) -> bool:
    model = context.question.model
    return all(context.run(with_inputs(words, path), model, description=description).passes for path in files)


ROUNDING = DiagnosisStep(
    name="rounding", question="is it rounding?", not_asked=_not_asked, answer=_answer, evidence="failure"
)
"""Only float64 may say so."""


# Is it steady? The same run again, an engine against itself, and equal rows of a batch.

_RUNS = 4
"""Runs of the failing check at first, besides the one that is known."""

_RUNS_IF_FLAKY = 20

_RUNS_OF_ONE = 5
"""How often an engine is compared with itself if its failure is flaky."""


def _steadiness_not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    if facts.failure is None:
        return "nothing fails"
    if facts.failure.masked:
        return "the outputs do not show it"
    if facts.fault_before is not None and facts.fault_before.kind == "random":
        return "the model is random"
    return None


def _steadiness_answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
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
    return StepAnswer(replace(facts, steadiness=seen, failure=failure), _steadiness_line(seen))


def _steadiness_line(seen: SteadinessSeen) -> str:
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
    sizes = {value.shape[0] if value.ndim else 0 for value in feed.values()}
    batch = next(iter(sizes)) if len(sizes) == 1 and min(sizes) > 1 else None
    if batch is None:
        return ""
    inputs = written(
        question.folder / "inputs_equal_rows",
        [{name: np.ascontiguousarray(np.broadcast_to(value[:1], value.shape)) for name, value in feed.items()}],
    )
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

    judge = context.question.judging.judge
    asked = asked_of(name, judge.tolerances, judge.stats, judge.limits)
    expected = np.ascontiguousarray(np.broadcast_to(values[:1], values.shape))
    return compare_output(name, np.asarray(values), expected, asked, "brief").passed


STEADINESS = DiagnosisStep(
    name="steady",
    question="is it steady?",
    not_asked=_steadiness_not_asked,
    answer=_steadiness_answer,
    evidence="failure",
)
"""A flaky failure is told as one."""
