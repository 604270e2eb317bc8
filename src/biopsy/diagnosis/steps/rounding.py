"""Whether the failure is a real one: is it steady, or is it rounding that other tolerances would let pass?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from biopsy import errors
from biopsy.checks.command import ARBITER
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.judge import rate_text
from biopsy.checks.outcome import Judged
from biopsy.comparison.compare import compare_output
from biopsy.comparison.mismatch import Rounding
from biopsy.comparison.tolerance import criteria_for
from biopsy.diagnosis.context import (
    UNKNOWN_COMPARISON,
    StepAnswer,
    StepContext,
    TimeUpError,
    asked,
    fails,
    passes,
)
from biopsy.diagnosis.facts import FailingPiece, KnownFacts, ModelFailure, RoundingFacts, Steadiness
from biopsy.diagnosis.question import (
    DiagnosisQuestion,
    Words,
    path_of,
    with_inputs,
    with_limits,
    with_other_seed,
    written,
)
from biopsy.model.index import ModelIndex
from biopsy.questions.precision.formats import BFLOAT16, FLOAT16
from biopsy.tensors.files import read_feeds, read_results
from biopsy.tensors.results import Array


def low_precision(index: ModelIndex) -> Literal["fp16", "bf16"] | None:
    """The low precision that inputs or weights of a model have; None if they have none."""
    kinds = [index.tensor_type(tensor) for tensor in (*index.fed_inputs(), *index.outputs)]
    elems = {kind.elem for kind in kinds if kind is not None} | {weight.kind.elem for weight in index.weights.values()}
    return "fp16" if FLOAT16 in elems else "bf16" if BFLOAT16 in elems else None


# Is it rounding? Float64 and plain float32 say, with several inputs; and with which tolerances it would pass.

_MORE_SEEDS = (1, 2)
"""Of other random inputs that are asked about."""

_TOLERANCES = ("1e-4", "1e-3", "1e-2")
"""Wider ones that are tried; still wider ones would accept what no rounding makes."""

_SHARE = 0.3
"""Of the time that is left: the evaluator that computes in float64 may take long."""


def _is_of_numbers(facts: KnownFacts, question: DiagnosisQuestion) -> bool:
    failure = facts.failure
    is_wide = question.check is None and low_precision(question.index) is None  # nothing may overflow
    return failure is not None and (failure.is_of_values or (failure.is_of_not_finite and is_wide))


@asked(
    "rounding",
    "is it rounding?",
    unless=lambda facts, context: {
        "nothing fails": facts.failure is None,
        "the model is random": facts.fault == "random",
        "not a question of numbers": not _is_of_numbers(facts, context.question),
        UNKNOWN_COMPARISON: facts.failure and not isinstance(parse(facts.failure.check), OwnRun),
    },
    evidence="failure",
    share=_SHARE,
    warm=True,
)
def rounding(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Only float64 may say so."""
    failure, question = facts.failed, context.question
    if failure.is_of_not_finite:
        seen = _with_who_is_wrong(RoundingFacts(verdicts=()), failure, context)
        return StepAnswer(replace(facts, rounding=seen, failure=accused(failure, seen)), _line(seen))
    # The inputs of the check, and other random ones of that shape; as many as there is time for, one at least.
    others = (with_other_seed(question.index, question.samples, seed, question.folder) for seed in _MORE_SEEDS)
    files: list[Path | None] = [None, *(path for path in others if path is not None)]
    runs: list[Judged] = []
    for path in files:
        words = (*with_inputs(failure.check, path), ARBITER)
        try:
            runs.append(context.run(words, question.model, description="held against float64"))
        except TimeUpError:
            if not runs:
                raise
            break
    no_answer = Rounding("unknown", reason="the run in float64 gave no answer")
    verdicts = [run.evidence.verdict.rounding or no_answer for run in runs if fails(run)]
    if not verdicts:
        raise errors.CheckError("it did not fail when it was asked for: see whether it is steady")
    seen = RoundingFacts(
        inputs=len(runs),
        verdicts=tuple(verdict.verdict for verdict in verdicts),
        times=max((verdict.times for verdict in verdicts if verdict.times is not None), default=None),
        reason=next((verdict.reason for verdict in verdicts if verdict.reason), ""),
    )
    with contextlib.suppress(TimeUpError):  # what is known by then is an answer
        if seen.is_rounding:
            seen = _with_what_passes(seen, failure, files[: len(runs)], context)
        elif seen.is_more:
            seen = _with_who_is_wrong(seen, failure, context)
            failure = accused(failure, seen)
    return StepAnswer(replace(facts, rounding=seen, failure=failure), _line(seen))


def _with_who_is_wrong(seen: RoundingFacts, failure: ModelFailure, context: StepContext) -> RoundingFacts:
    """The record with what float64 says of each engine by itself: that they differ does not tell which is wrong."""
    return _judged(seen, failure, context, lambda engine: noise_words(engine, context), context.question.model)


def judged_in_piece(
    seen: RoundingFacts, failure: ModelFailure, context: StepContext, piece: FailingPiece
) -> RoundingFacts:
    """The record with what float64 says of each engine in the piece: behind many layers, rounding alone may be great.

    Where it calls no engine wrong there, the record stays as it was.
    """
    inputs, question = path_of(piece.inputs), context.question.without_limits
    files = question.samples.files if inputs is None else (inputs,)

    def words_of(engine: str) -> Words:
        return question.words([engine], "--compare-with", "noise", files=files)

    in_piece = _judged(seen, failure, context, words_of, Path(piece.path))
    return in_piece if in_piece.wrong else seen


def _judged(
    seen: RoundingFacts, failure: ModelFailure, context: StepContext, words_of: Callable[[str], Words], model: Path
) -> RoundingFacts:
    """The record with the engines that err by more than rounding; without any where a check of the user's decides."""
    wrong: list[str] = []
    right: list[str] = []
    engines = [] if context.question.check is not None else [failure.suspect, failure.trusted]
    for engine in filter(None, engines):
        run = context.run(words_of(engine), model, description=f"{engine} held against float64")
        (wrong if fails(run) else right if passes(run) else []).append(engine)
    return replace(seen, wrong=tuple(wrong), right=tuple(right))


def accused(failure: ModelFailure, seen: RoundingFacts) -> ModelFailure:
    """The failure as that of the engine that is wrong, where only the trusted one is."""
    if failure.trusted is None or not seen.blames(failure.trusted, failure.suspect):
        return failure
    return replace(failure, suspect=failure.trusted, trusted=failure.suspect)


def _line(seen: RoundingFacts) -> str:
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


def _with_what_passes(
    seen: RoundingFacts, failure: ModelFailure, files: Sequence[Path | None], context: StepContext
) -> RoundingFacts:
    """The record with the tolerances that pass, and whether a comparison that allows rounding does."""
    command, model = parse(failure.check), context.question.model
    assert isinstance(command, OwnRun)

    def all_pass(words: Words, description: str) -> bool:
        return all(passes(context.run(with_inputs(words, path), model, description=description)) for path in files)

    tried = ((("--atol", tolerance, "--rtol", tolerance), tolerance) for tolerance in _TOLERANCES)
    passing = (limits for limits, tolerance in tried
               if all_pass(with_limits(command, limits), f"with tolerances of {tolerance}"))  # fmt: skip
    limits: Words = next(passing, ())
    suspect = failure.suspect if context.question.check is None else None
    passes_noise = suspect is not None and all_pass(noise_words(suspect, context), "compared with noise")
    return replace(seen, passing_limits=limits, passes_noise=passes_noise)


def noise_words(engine: str, context: StepContext) -> Words:
    """The words of a run that fails only if an engine errs by more than rounding."""
    return context.question.without_limits.original_words([engine], "--compare-with", "noise")


# Is it steady? The same run again, an engine against itself, and equal rows of a batch.

_RUNS = 4
"""Runs of the failing check at first, besides the one that is known."""

_RUNS_IF_FLAKY = 20

_RUNS_OF_ONE = 5
"""How often an engine is compared with itself if its failure is flaky."""


@asked(
    "steady",
    "is it steady?",
    unless=lambda facts, context: {
        "nothing fails": facts.failure is None,
        "the outputs do not show it": facts.is_masked,
        "the model is random": facts.fault == "random",
    },
    evidence="failure",
    share=_SHARE,
    warm=True,
)
def steadiness(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """A flaky failure is told as one."""
    failure, model = facts.failed, context.question.model
    failed, runs, time_before = 1, 1, context.seconds_left  # the run that is known
    while runs <= (_RUNS if failed == runs else _RUNS_IF_FLAKY - 1):
        if runs >= 3 and 4 * (time_before - context.seconds_left) / (runs - 1) > context.seconds_left:
            break  # a slow check: the time is needed for other questions
        failed += fails(context.run(failure.check, model, description=f"run {runs + 1}"))
        runs += 1
    compares = failure.said.stage == "compare" and context.question.check is None
    seen = Steadiness(
        failed=failed,
        runs=runs,
        itself=_against_itself(failure, context, _RUNS_OF_ONE if failed < runs else 1) if compares else "",
        rows=_rows(failure, context) if compares and failed == runs else "",
    )
    if seen.is_flaky:  # that it passed with other inputs may have been luck
        failure = replace(failure, passes_with=(), passing_inputs=None)
    often = f"fails in {rate_text(failed, runs)}" if seen.is_flaky else f"fails in all {runs} runs"
    line = " · ".join(filter(None, (often, seen.itself, seen.rows)))
    return StepAnswer(replace(facts, steadiness=seen, failure=failure), line)


def _against_itself(failure: ModelFailure, context: StepContext, runs: int) -> str:
    """That an engine differs from itself in some of so many runs, in words; "" if it does not."""
    question = context.question
    for engine in dict.fromkeys(filter(None, (failure.suspect, failure.trusted))):
        words, description = question.original_words([engine, engine]), f"{engine} against itself"
        differing = sum(fails(context.run(words, question.model, description=description)) for _ in range(runs))
        if differing:
            return f"compared with itself, {engine} differs in {differing} of {runs} runs"
    return ""


def _rows(failure: ModelFailure, context: StepContext) -> str:
    """That an engine gives different answers for equal rows, where the trusted one gives equal ones; "" if not."""
    question, command = context.question, parse(failure.check)
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
    path = question.folder / "outputs_equal_rows.safetensors"
    words = question.original_words([failure.trusted, failure.suspect], "--save-outputs", str(path), files=[inputs])
    path.unlink(missing_ok=True)
    context.run(words, question.model, description="with equal rows in the batch")
    try:
        results = read_results(path) if path.is_file() else []
        if len(results) < 2:
            return ""
        trusted, suspect = (result.iterations[0].outputs for result in results[:2])
        for name, values in suspect.items():
            is_batch = name in trusted and values.ndim > 0 and values.shape[0] == batch
            if is_batch and _rows_agree(name, trusted[name], context) and not _rows_agree(name, values, context):
                return f"for equal rows of the inputs, {failure.suspect} gives different rows of {name!r}"
    except errors.DataError:
        return ""
    return ""


def _rows_agree(name: str, values: Array, context: StepContext) -> bool:
    judge = context.question.judging.judge
    criteria = criteria_for(name, judge.tolerances, judge.stats, judge.limits)
    expected = np.ascontiguousarray(np.broadcast_to(values[:1], values.shape))
    return compare_output(name, np.asarray(values), expected, criteria, "brief").passed
