"""Two questions about a failure: is it rounding, which other tolerances would let pass, and is it steady?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import onnx

from biopsy import errors
from biopsy.checks.command import ARBITER
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.judge import rate_text
from biopsy.checks.outcome import Judged
from biopsy.comparison.compare import compare_output
from biopsy.comparison.differences import unit_roundoff
from biopsy.comparison.mismatch import Rounding
from biopsy.comparison.noise import MOST_LEFT, NARROWER_TYPES, share_left
from biopsy.comparison.tolerance import criteria_for
from biopsy.diagnosis.context import (
    NO_PIECE,
    UNKNOWN_COMPARISON,
    UNKNOWN_ENGINE,
    StepAnswer,
    StepContext,
    TimeUpError,
    diagnosis_step,
    fails,
    passes,
)
from biopsy.diagnosis.facts import (
    FailingPiece,
    KnownFacts,
    ModelFailure,
    NarrowerFacts,
    RoundingFacts,
    Steadiness,
    UndefinedFacts,
)
from biopsy.diagnosis.question import (
    DiagnosisQuestion,
    Words,
    feeds_in,
    feeds_of,
    inputs_of_other_seed,
    with_inputs,
    with_limits,
    write_inputs,
)
from biopsy.engines.base import ModelInput
from biopsy.engines.reference_float64 import CASTS
from biopsy.engines.registry import EXACT, PLAIN, full_title, is_reference
from biopsy.engines.worker import CANNOT_RUN, Worker
from biopsy.model.index import ModelIndex, index_file
from biopsy.model.infer import has_floats
from biopsy.model.slice import without_weights
from biopsy.processes.cleanup import temporary_folder
from biopsy.questions.precision.formats import BFLOAT16, FLOAT16
from biopsy.tensors.files import read_feeds, read_results
from biopsy.tensors.results import Array, Feed, same_values
from biopsy.text import first_of


def low_precision(index: ModelIndex) -> Literal["fp16", "bf16"] | None:
    """The low precision of a model's inputs, outputs or weights, if any."""
    kinds = [index.tensor_type(tensor) for tensor in (*index.fed_inputs(), *index.outputs)]
    elems = {kind.elem for kind in kinds if kind is not None} | {weight.kind.elem for weight in index.weights.values()}
    return "fp16" if FLOAT16 in elems else "bf16" if BFLOAT16 in elems else None


_MOST_CASTS = 3


def among_casts(labels: Sequence[str]) -> str:
    """The Casts among which are those that are left out, in words."""
    return f"{'one or more of ' if len(labels) > 1 else ''}{first_of(labels, _MOST_CASTS)}"


def narrowing_casts(index: ModelIndex) -> Iterator[str]:
    """The labels of the Casts to float16 and bfloat16, whose rounding a run in float64 leaves out."""
    for node in index.nodes:
        if node.op_type == "Cast" and node.domain == "":
            cast = onnx.NodeProto.FromString(index.node_payload(node.number))
            if any(attribute.name == "to" and attribute.i in (FLOAT16, BFLOAT16) for attribute in cast.attribute):
                yield node.label


_COMPARE_WITH_NOISE = ("--compare-with", "noise")
_WITNESSES = (PLAIN[0], "openvino")
"""Engines that share no code with the reference evaluator."""

_MORE_SEEDS = (1, 2)
"""Added to the seed, for other random inputs."""

_TOLERANCES = ("1e-4", "1e-3", "1e-2")
"""Wider tolerances to try; still wider ones would accept more than rounding."""

_SHARE = 0.3
"""The share of the time left for a question about rounding: evaluation in float64 may be slow."""


def _is_of_numbers(facts: KnownFacts, question: DiagnosisQuestion) -> bool:
    failure = facts.failure
    is_wide = question.check is None and low_precision(question.index) is None  # fp16 may overflow
    return failure is not None and (failure.is_mismatch or (failure.is_non_finite_mismatch and is_wide))


@diagnosis_step(
    "rounding",
    "is it rounding?",
    unless=lambda facts, context: {
        "nothing fails": facts.failure is None,
        "the model is random": facts.fault == "random",
        "float64 does not judge what ONNX does not define": facts.fault == "undefined",
        "not a question of numbers": not _is_of_numbers(facts, context.question),
        UNKNOWN_COMPARISON: facts.failure and not isinstance(parse(facts.failure.check), OwnRun),
    },
    evidence="failure",
    share=_SHARE,
    warm=True,
)
def rounding(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Compare with float64, on the inputs of the check and on other random ones of the same shapes."""
    failure, question = facts.known_failure, context.question
    if failure.is_non_finite_mismatch:
        wrong, right = judged_by_float64(failure, context)
        judged = RoundingFacts(verdicts=(), wrong=wrong, right=right)
        failure = with_corrected_suspect(failure, judged)
        return StepAnswer(replace(facts, rounding=judged, failure=failure), _line(judged, facts.undefined))
    others = (inputs_of_other_seed(question.index, question.samples, seed, question.folder) for seed in _MORE_SEEDS)
    files: list[Path | None] = [None, *(path for path in others if path is not None)]
    runs: list[Judged] = []
    for path in files:
        words = (*with_inputs(failure.check, path), ARBITER)
        try:
            runs.append(context.run(words, question.model, description="held against float64"))
        except TimeUpError:
            if not runs:
                raise
            break  # one set of inputs is enough
    no_answer = Rounding("unknown", reason="the run in float64 gave no answer")
    verdicts = [run.evidence.verdict.rounding or no_answer for run in runs if fails(run)]
    if not verdicts:
        raise errors.CheckError("it did not fail when it was asked for: see whether it is steady")
    judged = RoundingFacts(
        inputs=len(runs),
        verdicts=tuple(verdict.verdict for verdict in verdicts),
        times=max((verdict.times for verdict in verdicts if verdict.times is not None), default=None),
        reason=next((verdict.reason for verdict in verdicts if verdict.reason), ""),
        has_floats=has_floats(without_weights(question.index)),
    )
    with contextlib.suppress(TimeUpError):  # the verdicts alone are an answer
        feeds = feeds_of(question.index, question.samples) if judged.is_rounding else ()
        without, doubt = engine_without_casts(question.index, feeds, failure, context)
        if without:  # float64 without that rounding has judged the outputs
            failure = failure.swapped if without == failure.trusted else failure
            judged = RoundingFacts(
                verdicts=("bug",) * len(verdicts),
                inputs=len(runs),
                wrong=(failure.suspect or "",),
                right=(failure.trusted or "",),
                leaves_out=tuple(narrowing_casts(question.index)),
            )
        elif doubt:
            judged = replace(judged, verdicts=("unknown",) * len(verdicts), times=None, reason=doubt)
        elif judged.is_rounding:
            judged = _with_passing_limits(judged, failure, files[: len(runs)], context)
        elif judged.exceeds_rounding:
            wrong, right = judged_by_float64(failure, context)
            judged = replace(judged, wrong=wrong, right=right)
            failure = with_corrected_suspect(failure, judged)
    return StepAnswer(replace(facts, rounding=judged, failure=failure), _line(judged, facts.undefined))


def judged_by_float64(
    failure: ModelFailure, context: StepContext, part: Path | None = None, files: Sequence[Path] | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those of the two engines that are wrong by float64, and those that are right, in all of the model or a part.

    A difference between two does not show which is wrong. A check of the user's has no engines to compare. Float64 is
    the code of the reference evaluator: where that contradicts another engine, a witness must agree with float64.
    """
    question, engines = context.question.without_limits, [failure.suspect, failure.trusted]
    words_of = question.original_words if part is None else question.words
    wrong: list[str] = []
    right: list[str] = []

    def held_against_float64(engine: str) -> Judged:
        words = words_of([engine], *_COMPARE_WITH_NOISE, files=files)
        return context.run(words, part or question.model, description=f"{engine} held against float64")

    def agrees(witness: str) -> bool:
        with contextlib.suppress(errors.CheckError):  # it may not be installed
            return passes(held_against_float64(witness))
        return False

    for engine in filter(None, engines if question.check is None else []):
        run = held_against_float64(engine)
        is_compared = run.evidence.verdict.stage == "compare"
        (wrong if fails(run) and is_compared else right if passes(run) else []).append(engine)
    if wrong and any(map(is_reference, right)) and not any(map(agrees, _WITNESSES)):
        return (), ()
    return tuple(wrong), tuple(right)


def with_corrected_suspect(failure: ModelFailure, rounding: RoundingFacts) -> ModelFailure:
    """The failure with suspect and trusted engine swapped, if only the trusted one is wrong by float64."""
    is_swapped = failure.trusted is not None and rounding.blames(failure.trusted, failure.suspect)
    return failure.swapped if is_swapped else failure


def _line(rounding: RoundingFacts, undefined: UndefinedFacts | None) -> str:
    if undefined is not None and undefined.explains is not False:
        return f"not judged: ONNX defines no result where {undefined.text}"
    times = "" if rounding.times is None else f" · {rounding.times:.3g} times the rounding error of a plain run"
    inputs = f" · {len(rounding.verdicts)} of {rounding.inputs} sets of inputs fail" if rounding.inputs > 1 else ""
    inputs += f" · wrong: {', '.join(rounding.wrong)}" if rounding.wrong else ""
    if not rounding.verdicts:
        return f"NaN or infinity is not rounding{inputs or ' · it is not known which engine is wrong'}"
    if rounding.leaves_out:
        casts = among_casts(rounding.leaves_out)
        return f"no: {rounding.wrong[0]} leaves out the rounding of {casts}, by float64 with it and without"
    if rounding.is_rounding:
        return f"yes, by float64{times}{inputs}"
    if rounding.exceeds_rounding and not rounding.has_floats:
        return f"no, the model has no floating-point numbers{inputs}"
    if rounding.exceeds_rounding:
        return f"no, it is more than that, by float64{times}{inputs}"
    return f"not known: {rounding.reason}"


def _with_passing_limits(
    rounding: RoundingFacts, failure: ModelFailure, files: Sequence[Path | None], context: StepContext
) -> RoundingFacts:
    """The record with tolerances that pass, and whether a comparison that allows rounding passes."""
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
    return replace(rounding, passing_limits=limits, passes_noise=passes_noise)


def noise_words(engine: str, context: StepContext) -> Words:
    """A run of the original that fails only if an engine's error is more than rounding."""
    return context.question.without_limits.original_words([engine], *_COMPARE_WITH_NOISE)


_RUNS = 4
"""Further runs of the failing check at first."""

_RUNS_IF_FLAKY = 20

_SELF_COMPARISONS = 5
_SELF_COMPARISONS_IF_STEADY = 2
"""Comparisons of an engine with itself if the failure is flaky, and if it shows in every run."""


@diagnosis_step(
    "steady",
    "is it steady?",
    unless=lambda facts, context: {
        "nothing fails": facts.failure is None,
        "the outputs do not show it": facts.is_masked,
        "the model is random": facts.fault == "random",
        "the model is invalid": facts.fault == "invalid",
    },
    evidence="failure",
    share=_SHARE,
    warm=True,
)
def steadiness(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Run the failing check again, each engine against itself, and equal rows of a batch."""
    failure, model = facts.known_failure, context.question.model
    before, time_before = context.rate_of(failure.check, model), context.seconds_left
    failed, runs = max(1, before.failed), max(1, before.runs)  # the runs of earlier questions count
    while runs <= (_RUNS if failed == runs else _RUNS_IF_FLAKY - 1):
        if runs >= 3 and 4 * (time_before - context.seconds_left) / (runs - 1) > context.seconds_left:
            break  # the check is slow: leave time for other questions
        failed += fails(context.run(failure.check, model, description=f"run {runs + 1}"))
        runs += 1
    context.rate_of(failure.check, model)  # these runs are counted
    compares = failure.report.stage == "compare" and context.question.check is None
    comparisons = _SELF_COMPARISONS if failed < runs else _SELF_COMPARISONS_IF_STEADY
    engine, difference = _self_difference(failure, context, comparisons) if compares else ("", "")
    measured = Steadiness(
        failed=failed,
        runs=runs,
        contradicts_itself=engine,
        self_difference=difference,
        row_difference=_row_difference(failure, context) if compares and failed == runs and not engine else "",
    )
    if measured.is_flaky or engine:  # other inputs may have passed by chance
        failure = replace(failure, passes_with=(), passing_inputs=None)
    if engine and engine == failure.trusted:  # of two engines, the one that contradicts itself is wrong
        failure = failure.swapped
    often = f"fails in {rate_text(failed, runs)}" if measured.is_flaky else f"fails in all {runs} runs"
    line = " · ".join(filter(None, (often, measured.self_difference, measured.row_difference)))
    return StepAnswer(replace(facts, steadiness=measured, failure=failure), line)


def _self_difference(failure: ModelFailure, context: StepContext, runs: int) -> tuple[str, str]:
    """The engine that differs from itself in ``runs`` comparisons, and how often, in words; both "" if none does."""
    question = context.question
    for engine in dict.fromkeys(filter(None, (failure.suspect, failure.trusted))):
        words, description = question.original_words([engine, engine]), f"{engine} against itself"
        ran = (context.run(words, question.model, description=description) for _ in range(runs))
        seen = [run.evidence.verdict for run in ran if fails(run)]
        # A refusal says nothing of values, and a wrong type is in both.
        differing = sum(each.stage == "compare" and each.kinds != ("type-mismatch",) for each in seen)
        if differing:
            return engine, f"compared with itself, {engine} differs in {differing} of {runs} runs"
    return "", ""


def _row_difference(failure: ModelFailure, context: StepContext) -> str:
    """Which output has different rows for equal rows of a batch, if not in the trusted engine too; "" if none."""
    question, command = context.question, parse(failure.check)
    if failure.trusted is None or failure.suspect is None or not isinstance(command, OwnRun) or not command.input_files:
        return ""
    feed = read_feeds(command.input_files[0])[0]
    sizes = {value.shape[0] if value.ndim else 0 for value in feed.values()}
    batch = next(iter(sizes)) if len(sizes) == 1 and min(sizes) > 1 else None
    if batch is None:
        return ""
    inputs = write_inputs(
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
            rows = (
                [(each, np.broadcast_to(each[:1], each.shape)) for each in (trusted[name], values)] if is_batch else []
            )
            if [outputs_agree(name, *each, context) for each in rows] == [True, False]:
                return f"for equal rows of the inputs, {failure.suspect} gives different rows of {name!r}"
    except errors.DataError:
        return ""
    return ""


def outputs_agree(name: str, actual: Array, expected: Array, context: StepContext) -> bool:
    """Whether two values of an output agree, by the criteria of the diagnosis."""
    judge = context.question.judging.judge
    criteria = criteria_for(name, judge.tolerances, judge.stats, judge.limits)
    return compare_output(name, np.asarray(actual), np.ascontiguousarray(expected), criteria, "brief").passed


_MOST_RELATIVE = 2.0**-4
"""A greater error, relative to the greatest value, is that of no type: one rounding to bfloat16 is 2**-9 at most."""


def _relative_error(piece: FailingPiece) -> float:
    """The greatest error of a piece's worst output, relative to the greatest value there; 0 if it is not known."""
    worst = None if piece.error is None else piece.error.worst
    dtype = "" if worst is None else dict(piece.types).get(worst.output, "").partition(" ")[0]
    unit = unit_roundoff(np.dtype(dtype)) if dtype in NARROWER_TYPES else 0.0
    return unit * ((worst and worst.times_rounding) or 0.0)


_FORMS: Mapping[Literal["results", "both", "inputs"], str] = {"results": "-results", "both": "", "inputs": "-inputs"}


@diagnosis_step(
    "narrower",
    "is it the error of computing in a narrower type?",
    unless=lambda facts, context: {
        NO_PIECE: facts.piece is None,
        "not a question of numbers": facts.failure and not facts.failure.is_mismatch,
        "it is not known to be more than rounding": facts.rounding is None or not facts.rounding.exceeds_rounding,
        "the outputs do not show it": facts.is_masked,
        "no engine is at fault": facts.fault is not None,
        UNKNOWN_ENGINE: facts.suspect is None,
        "the error is too large for that": facts.piece and _relative_error(facts.piece) > _MOST_RELATIVE,
    },
    evidence="narrower",
    share=_SHARE,
)
def narrower_type(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Hold the engine's result on the piece against float64 that is rounded to narrower types."""
    piece, suspect, judged, samples = facts.piece, facts.suspect, facts.rounding, context.question.samples
    assert piece is not None and suspect is not None and judged is not None
    index = index_file(Path(piece.path))
    feeds = feeds_in([Path(piece.inputs)]) if piece.inputs is not None else feeds_of(context.question.index, samples)
    with outputs_of(index, feeds, context) as outputs_in:
        found = _narrower_facts(outputs_in(suspect), outputs_in)
    line = f"no: none of {found.tried} simulations gives its result" if found.tried else "no: nothing could be rounded"
    if found.types and found.left is not None:
        line = f"yes: {' or '.join(found.types)}, rounded: {found.rounded} · {found.left:.1%} of the error is left"
    return StepAnswer(replace(facts, rounding=replace(judged, narrower=found)), line)


OutputsIn: TypeAlias = Callable[[str], list[dict[str, Array]]]
"""Runs an engine on a model, and gives its outputs per sample. Raises TimeUpError, and what ``Worker.run`` raises."""


@contextlib.contextmanager
def outputs_of(index: ModelIndex, feeds: Sequence[Feed], context: StepContext) -> Iterator[OutputsIn]:
    """Run engines on the model in a file with these inputs."""
    names, file = {index.names[tensor] for tensor in index.fed_inputs()}, index.path
    with temporary_folder("biopsy-") as scratch:
        fed = [{name: feed[name] for name in feed if name in names} for feed in feeds]
        path = write_inputs(scratch / "feeds", fed or [{}])

        def outputs_in(engine: str) -> list[dict[str, Array]]:
            if context.seconds_left == 0:
                raise TimeUpError
            with Worker(engine, scratch, max(1.0, context.seconds_left)) as worker:
                return worker.run(ModelInput(b"", index.folder, file), path)

        yield outputs_in


def engine_without_casts(
    index: ModelIndex, feeds: Sequence[Feed], failure: ModelFailure, context: StepContext
) -> tuple[str, str]:
    """The engine that leaves out the rounding of a model's Casts to float16 and bfloat16, if the other one does not.

    What a run in float64 with this rounding, and one without, explains of each engine's error shows that. The second
    result is a sentence if one engine gives the values with it, and the other those of neither; "" if not.
    """
    pair = (failure.suspect, failure.trusted)
    if not feeds or context.question.check is not None or None in pair or not any(narrowing_casts(index)):
        return "", ""
    try:
        with outputs_of(index, feeds, context) as outputs_in:
            plain, rounded = outputs_in(EXACT), outputs_in(f"{EXACT},rounded={CASTS}")
            outputs = {engine: outputs_in(engine) for engine in pair if engine is not None}
    except CANNOT_RUN:
        return "", ""
    pairs = list(zip(plain, rounded, strict=True))
    names = {name for name in plain[0] if not all(same_values(one[name], other[name]) for one, other in pairs)}

    def share(given: Sequence[Mapping[str, Array]], *simulated: Sequence[Mapping[str, Array]]) -> float | None:
        """Of the outputs that depend on a Cast."""
        chosen = [[{name: each[name] for name in names & each.keys()} for each in side] for side in (given, *simulated)]
        return share_left(chosen[0], chosen[1], chosen[2])

    left = {engine: [share(given, rounded, plain), share(given, plain, rounded)] for engine, given in outputs.items()}
    for engine, other in (pair, pair[::-1]):
        assert engine is not None and other is not None
        (of_plain, of_rounded), (_, of_other) = left[engine], left[other]
        if of_other is not None and of_other <= MOST_LEFT and of_plain is not None and of_rounded is not None:
            if of_plain <= MOST_LEFT:
                return engine, ""
            if of_rounded > MOST_LEFT:
                casts = first_of(list(narrowing_casts(index)), 3)
                with_it = f"{full_title(other, '')} gives what float64 gives with the rounding of {casts}"
                return "", f"{with_it}, but {full_title(engine, '')} gives neither that nor what it gives without"
    return "", ""


def _narrower_facts(
    actual: Sequence[Mapping[str, Array]], outputs_in: Callable[[str], Sequence[Mapping[str, Array]]]
) -> NarrowerFacts:
    """The types whose simulation gives the ``actual`` outputs; ``outputs_in`` runs an engine.

    Once one does, only others that round to as many digits could: float16 and TF32 differ in their range alone.
    """
    exact, tried, found = outputs_in(EXACT), 0, NarrowerFacts()
    wide = next((str(value.dtype) for value in actual[0].values() if value.dtype.kind == "f"), "") if actual else ""
    for name in NARROWER_TYPES.get(wide, ()):
        if found.types and name != "tf32":
            continue
        for form, suffix in _FORMS.items():
            if found.types and form != found.rounded:
                continue
            tried += 1
            left = share_left(actual, exact, outputs_in(f"{EXACT},rounded={name}{suffix}"))
            if left is not None and left <= MOST_LEFT:
                found = NarrowerFacts(types=(*found.types, name), rounded=form, left=max(left, found.left or 0.0))
                break
    return replace(found, tried=tried)
