"""Questions about the part of the model that fails: the smallest piece, the known bugs that it resembles,
layers that need a higher precision, and what may vary in the piece.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.command_line import OwnRun, parse
from biopsy.comparison.mismatch import ONE_SIDED, ErrorSize
from biopsy.diagnosis.context import (
    NO_PIECE,
    UNKNOWN_COMPARISON,
    StepAnswer,
    StepContext,
    TimeUpError,
    diagnosis_step,
    passes,
)
from biopsy.diagnosis.facts import (
    FailingPiece,
    FaultBeforeEngines,
    KnownBug,
    KnownFacts,
    ModelFailure,
    PrecisionFacts,
    RoundingFacts,
)
from biopsy.diagnosis.question import Words, feeds_in, path_of, with_inputs, without_weights_folder
from biopsy.diagnosis.steps.rounding import judged_by_float64, low_precision, with_corrected_suspect
from biopsy.diagnosis.steps.undefined import excused, undefined_in
from biopsy.engines.registry import PLAIN, parse_spec
from biopsy.engines.runner import Inputs
from biopsy.findings.reduction import search_tree
from biopsy.findings.report import SearchHistory
from biopsy.model.index import ModelIndex, index_file
from biopsy.model.nodes import warning_of_random
from biopsy.model.tensor_type import TensorType, spaced
from biopsy.processes.writing import write_whole
from biopsy.questions.known_failures.catalogue import ORIGIN
from biopsy.questions.known_failures.lookup import look_up, seen_in
from biopsy.questions.layers.examination import non_finite_in_weight
from biopsy.questions.layers.recorded import non_finite
from biopsy.questions.precision.mixed_models import Precisions, mixed_models
from biopsy.questions.precision.search import PrecisionJob, precision_tree
from biopsy.questions.precision.task import run_job as run_precision_job
from biopsy.questions.variation.features import FedModel
from biopsy.questions.variation.vary import USUAL_CHECKS, VariationJob, vary
from biopsy.reduction.problem import Border
from biopsy.reduction.reduce import RecordingOptions, ReductionJob, run_job
from biopsy.reduction.result import Reduction, Target, inputs_file
from biopsy.session.checked_search import Repeating, SearchOptions
from biopsy.session.files import Resume
from biopsy.session.pool import Parallelism
from biopsy.session.trial import Budget
from biopsy.tensors.files import write_feeds
from biopsy.tensors.results import Feed
from biopsy.text import count, first_of

PIECE = "piece.onnx"
SEARCH_REPORT = "search.json"
"""The piece and the history of the search for it, in the folder of the evidence."""

_MOST_SHOWN = 6

CASTS_LEFT_OUT = "known already: the engine leaves out Casts"

_NO_RESUME, _USUAL_BORDER = Resume(), Border()


def _search_options(
    facts: KnownFacts, context: StepContext, budget: Budget, resume: Resume = _NO_RESUME, jobs: int = 0
) -> SearchOptions:
    question = context.question
    return SearchOptions(
        rules=question.judging.rules,
        candidate=question.candidate,
        parallelism=Parallelism(jobs=jobs or question.effort.jobs),
        budget=budget,
        resume=resume,
        repeating=Repeating(known=facts.flaky_rate),
    )


def reduce_to(
    output: Path,
    index: ModelIndex,
    words: Words,
    facts: KnownFacts,
    context: StepContext,
    listener: events.Listener,
    *,
    samples: Callable[[], Sequence[Feed]] | None,
    engines: Sequence[str] = PLAIN,
    border: Border = _USUAL_BORDER,
    resume: Resume = _NO_RESUME,
) -> Reduction:
    """Reduce a model to ``output`` in the time left for the step, with the check ``words``.

    ``samples`` are the inputs with which values are recorded, by the first of ``engines`` that can; None: random ones.
    """
    command, default = parse(words), str(context.question.candidate)
    loaded = command.input_files if isinstance(command, OwnRun) and not command.golden_files else []
    jobs = context.question.effort.jobs if command.names_candidate(default) else 1
    job = ReductionJob(
        target=Target(output),
        search=_search_options(facts, context, context.budget(), resume, jobs),
        recording=RecordingOptions(samples=samples, engines=engines),
        border=border,
        command=command,
        feeds_recorded=bool(loaded) and inputs_file(output).resolve() not in [file.resolve() for file in loaded],
    )
    with context.check_for_search(words, jobs) as check:
        return run_job(index, check, job, listener)


@diagnosis_step(
    "piece",
    "which is the smallest part that still fails?",
    unless=lambda facts, context: {
        "nothing fails": facts.failure is None,
        "no engine is at fault, but the size of the inputs": facts.fault == "input",
        "the model is random: no comparison of its values says anything": facts.fault == "random",
        "the model is invalid, so an engine may refuse it": facts.fault == "invalid",
        "no engine is at fault: ONNX defines no result": facts.fault == "undefined",
        "it is rounding: no part of the model is at fault": facts.is_rounding,
        CASTS_LEFT_OUT: facts.rounding and facts.rounding.leaves_out,
    },
    evidence="search",
    files=(PIECE, inputs_file(Path(PIECE)).name, SEARCH_REPORT),
    share=0.6,  # leave time for questions about the piece
)
def smallest_piece(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Reduce the model; later questions are about the piece."""
    failure, question, rounding = facts.known_failure, context.question, facts.rounding
    words = without_weights_folder(failure.check)
    command = parse(words)
    files = command.input_files if isinstance(command, OwnRun) else list(question.samples.files)
    output = question.folder / PIECE
    history = SearchHistory()

    def smallest(words: Words, journal: Path) -> Reduction:
        return reduce_to(
            output, question.index, words, facts, context, events.both(history, context.listener),
            samples=(lambda: feeds_in(files)) if files else None,
            border=Border(mark_intermediate=failure.masked),
            resume=Resume(journal=journal, files=tuple(files), search="diagnosis", fresh=question.fresh),
        )  # fmt: skip

    try:
        reduction = smallest(words, question.folder / f"{PIECE}.journal")
    except errors.VacuousCheck as error:
        if not facts.is_self_contradiction:
            raise
        raise errors.CheckError("a model of one Identity node fails too: no node is at fault") from error
    with contextlib.suppress(TimeUpError, errors.CheckError):  # the piece that is known stays
        beside, is_run = _with_trusted(facts, context, Path(reduction.output), reduction.inputs)
        if not is_run:  # a search like that from the beginning would run a perhaps slow engine on every candidate
            reduction = smallest(beside, question.folder / f"{PIECE}-run-by-trusted.journal")
    context.keep(SEARCH_REPORT, search_tree(reduction, history, "minimal"))
    _require_same_failure(failure, reduction)
    piece = FailingPiece(
        path=str(reduction.output),
        inputs=None if reduction.inputs is None else str(reduction.inputs),
        **{key: getattr(reduction, key) for key in ("nodes", "reads", "kept", "nodes_before", "signature", "stopped")},
        other_failures=tuple(reduction.other_failures.items()),
        error=_as_declared(reduction.error_after, question.index),
        types=tuple(_types_of_ends(reduction.output)),
        places=tuple(dict.fromkeys(str(source) for source in reduction.sources if source is not None)),
    )
    fault, random = failure.fault, warning_of_random(index_file(reduction.output))
    if failure.report.stage == "compare" and random is not None:
        fault = FaultBeforeEngines(kind="random", every=(), text=f"as its smallest part that fails shows, {random}")
        failure = replace(failure, fault=fault)
    elif fault is not None and fault.kind == "not-finite" and len(piece.nodes) == 1:
        origin = "It is fed with NaN." if _reads_nan(piece) else "It makes NaN of values that are not NaN."
        failure = replace(failure, fault=replace(fault, origin=f" {origin}"))
    elif fault is None and (undefined := undefined_in(piece, facts, context)) is not None:
        piece, failure = replace(piece, undefined=undefined), excused(failure, undefined)
        rounding = None if undefined.explains else rounding  # float64 does not judge that
    if rounding is not None and rounding.exceeds_rounding:
        failure, piece, rounding = _judged_piece(failure, piece, rounding, context)
    more = f" and {len(piece.nodes) - _MOST_SHOWN} more" if len(piece.nodes) > _MOST_SHOWN else ""
    ended = "" if piece.stopped is None else f" · stopped by {piece.stopped}: a smaller one may exist"
    shown = piece.joined(piece.nodes[:_MOST_SHOWN])
    line = f"{len(piece.nodes)} of {count(piece.nodes_before, 'node')}: {shown}{more}{ended}"
    return StepAnswer(replace(facts, piece=piece, rounding=rounding, failure=failure), line)


def _require_same_failure(failure: ModelFailure, reduction: Reduction) -> None:
    """Raise CheckError if the search met another failure first, such as a crash that shows in some runs only."""
    if failure.is_mismatch and failure.mismatch is not None and reduction.error_after is None:
        raise errors.CheckError(f"the search met another failure first: {reduction.signature}")


def _with_trusted(facts: KnownFacts, context: StepContext, piece: Path, inputs: Path | None) -> tuple[Words, bool]:
    """For a refusal: the check that the trusted engine must pass first, and whether it passes it on the piece.

    A part that this engine refuses as well may have lost what makes it valid. No words if there is no such engine.
    """
    failure, question = facts.known_failure, context.question
    trusted, suspect = failure.trusted or "", failure.suspect or ""
    is_refusal = failure.report.stage != "compare" and question.check is None
    if not (is_refusal and trusted and suspect) or parse_spec(trusted).name == parse_spec(suspect).name:
        return (), True
    alone = with_inputs(question.words([trusted]), inputs)
    run = context.run(alone, piece, description=f"{trusted} on the piece")
    return question.words([trusted, suspect]), passes(run)


def _judged_piece(
    failure: ModelFailure, piece: FailingPiece, rounding: RoundingFacts, context: StepContext
) -> tuple[ModelFailure, FailingPiece, RoundingFacts]:
    """The same, with what float64 says of the piece alone: its engines may be others than those of the whole model."""
    wrong: tuple[str, ...] = ()
    right: tuple[str, ...] = ()
    with contextlib.suppress(TimeUpError, errors.CheckError):
        fed = None if piece.inputs is None else [Path(piece.inputs)]
        wrong, right = judged_by_float64(failure, context, Path(piece.path), fed)
        piece = replace(piece, wrong=wrong)
    if wrong or len(rounding.wrong) > 1:  # one that is wrong in the model is so in the piece; two need not be
        rounding = replace(rounding, wrong=wrong, right=right)
    corrected = with_corrected_suspect(failure, rounding)
    if corrected.check != failure.check and piece.error is not None:
        worst = piece.error.worst and piece.error.worst.from_other_side
        piece = replace(piece, error=replace(piece.error, worst=worst))
    return corrected, piece, rounding


def _types_of_ends(path: Path) -> Iterator[tuple[str, str]]:
    """The inputs and outputs of a model, each with its declared type; without the shape if no size is declared."""
    index = index_file(path)
    for tensor in (*index.fed_inputs(), *index.outputs):
        kind = index.value_type(tensor)
        if isinstance(kind, TensorType) and kind.shape and set(kind.shape) == {None}:
            yield index.names[tensor], kind.dtype
        elif kind is not None:
            yield index.names[tensor], spaced(kind)


def _as_declared(error: ErrorSize | None, index: ModelIndex) -> ErrorSize | None:
    """The error of a piece, without a shape that only the piece declares: inference found it, and may be wrong."""
    if error is None or error.worst is None or error.worst.kind != "shape-mismatch":
        return error
    declared = index.declared_type(error.worst.output)
    if isinstance(declared, TensorType) and declared.is_static:
        return error
    return replace(error, worst=replace(error.worst, declared_form=""))


def _reads_nan(piece: FailingPiece) -> bool:
    """Whether an input or a weight of a piece holds NaN, so that no node of it need make it."""
    index, feeds = index_file(Path(piece.path)), feeds_in([Path(piece.inputs)]) if piece.inputs else ()
    fed = non_finite([value for feed in feeds for value in feed.values()])
    found = [fed, *(non_finite_in_weight(index, tensor) for tensor in index.weights)]
    return any(each.nan for each in found if each is not None)


KNOWN_REPORT = "known.json"
"""The report of ``debug known``, in the folder of the evidence."""

NOT_SHOWN = "a failure that the outputs do not show"


@diagnosis_step(
    "known",
    "which known bugs does it look like?",
    unless=lambda facts, context: {NO_PIECE: facts.piece is None, NOT_SHOWN: facts.is_masked},
    evidence="known",
    files=(KNOWN_REPORT,),
    warm=True,
)
def known_bug(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Look the piece up among known bugs, which runs nothing."""
    suspect, report = facts.known_failure.suspect or "", facts.known_failure.report
    assert facts.piece is not None
    seen = seen_in(suspect, release=facts.versions.get(suspect, ""), stage=report.stage, kind=report.kind)
    try:
        lookup = look_up(Path(facts.piece.path), seen, listener=context.listener)
    except errors.BiopsyError:
        raise
    except Exception as error:  # no strange piece may end the diagnosis
        raise errors.BiopsyError(f"the piece could not be looked up: {error}") from error
    is_of_reference = False
    if lookup.best is None and report.kind == "mismatch":  # the reference evaluator judges others, in float64 too
        of_reference = look_up(Path(facts.piece.path), seen_in("reference", stage="compare", kind="mismatch"))
        is_of_reference = of_reference.best is not None
        lookup = of_reference if is_of_reference else lookup
    context.keep(KNOWN_REPORT, lookup.as_json())
    bug, best = KnownBug(sentence=lookup.sentence, is_of_reference=is_of_reference), lookup.best
    if best is not None:
        issue = best.failure.issue if best.failure.origin == ORIGIN else ""
        evidence = "; ".join(best.agreement(lookup.seen))
        avoid = tuple(each.text for each in best.failure.workarounds)
        bug = replace(bug, reference=best.failure.reference, issue=issue, evidence=evidence, avoid=avoid)
    return StepAnswer(replace(facts, known_bug=bug), lookup.sentence)


MIXED = "mixed.onnx"
PRECISION_REPORT = "precision.json"
"""The model of mixed precision and the report of ``debug precision``, in the folder of the evidence."""

_OF_NUMBERS = ("mismatch", *ONE_SIDED)
_MOST_HIGH_SHOWN = 5


@diagnosis_step(
    "precision",
    "do layers in a higher precision mend it?",
    unless=lambda facts, context: {
        "nothing fails": facts.failure is None,
        "no engine is at fault": facts.fault is not None,
        "it is rounding": facts.is_rounding,
        "not a question of numbers": facts.failure and facts.failure.report.kind not in _OF_NUMBERS,
        "no layer of the model is known to be in a low precision": low_precision(context.question.index) is None,
        "a setting mends it": facts.mending_switches,
        UNKNOWN_COMPARISON: facts.failure and not isinstance(parse(facts.failure.check), OwnRun),
    },
    evidence="precision",
    files=(MIXED, PRECISION_REPORT),
)
def high_precision(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Find the layers. Whether the low precision or an engine's arithmetic in it is at fault stays open."""
    question, low = context.question, low_precision(context.question.index)
    assert low is not None
    precisions = Precisions(low=low, high="float32", form="native")
    job = PrecisionJob(
        output=question.folder / MIXED,
        report=question.folder / PRECISION_REPORT,
        write_report=lambda result: context.keep(PRECISION_REPORT, precision_tree(result)),
        search=_search_options(facts, context, context.budget()),
    )
    try:
        with context.check_for_search(without_weights_folder(facts.known_failure.check)) as check:
            result = run_precision_job(
                question.index,
                lambda place: mixed_models(question.index, place, precisions, ()),
                check,
                job,
                context.listener,
            )
    except errors.HighPrecisionFails:
        precision, line = PrecisionFacts(low=low, passes=False), "no: it fails with every layer in float32 too"
    else:
        high = tuple(layer.label for layer in result.high)
        precision = PrecisionFacts(low=low, passes=True, high=high, layers=result.layers, output=str(result.output))
        line = f"it passes when all layers are cast to {low} explicitly: no layer needs more"
        if high:
            line = f"it passes with {first_of(high, _MOST_HIGH_SHOWN)} in float32, of {result.layers} layers"
    return StepAnswer(replace(facts, precision=precision), line)


VARIATION_REPORT = "variation.json"
PLAIN_PIECE = "plain.onnx"
"""The changes that were tried, and the piece with the least sizes and the simplest values that fail, in the folder of
the evidence."""

_MOST_NODES = 30
"""A larger piece is not varied, since each of its features takes several checks."""

_LONGEST_LINE = 150
_MOST_FIXED_SHOWN = 3


@diagnosis_step(
    "may vary",
    "which sizes, types, attributes and values does it need?",
    unless=lambda facts, context: {
        NO_PIECE: facts.piece is None,
        "no engine is at fault": facts.fault not in (None, "refused", "not-finite"),
        "it fails now and then: each question would take many runs": facts.is_flaky,
        NOT_SHOWN: facts.is_masked,
        f"the piece has more than {_MOST_NODES} nodes": facts.piece and len(facts.piece.nodes) > _MOST_NODES,
    },
    evidence="variation",
    files=(VARIATION_REPORT, PLAIN_PIECE, inputs_file(Path(PLAIN_PIECE)).name),
    share=0.7,
)
def may_vary(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Find the attributes, sizes, types and values that the failure depends on."""
    piece, fed = facts.piece, None
    assert piece is not None
    beside, is_run = _with_trusted(facts, context, Path(piece.path), path_of(piece.inputs))
    words = without_weights_folder(beside if beside and is_run else facts.known_failure.check)
    words = with_inputs(words, path_of(piece.inputs))
    command = parse(words)
    if isinstance(command, OwnRun):
        files = command.input_files
        fed = Inputs(given=feeds_in(files)) if files else context.question.samples.inputs
    job = VariationJob(
        search=_search_options(facts, context, context.budget(checks=USUAL_CHECKS)),
        inputs=fed,
        values_free=None if command.compares_recorded is None else not command.compares_recorded,
        asks_of_plain=True,
    )
    with context.check_for_search(words) as check:
        listener = events.without(events.ModelRead, context.listener)
        variation = vary(index_file(Path(piece.path)), check, job, listener)
    context.keep(VARIATION_REPORT, variation.as_json())
    piece = replace(piece, plain=None if variation.plain is None else _kept_plain(variation.plain, context))
    line = variation.sentence
    if len(line) > _LONGEST_LINE and variation.fixed:
        known = [each.condition for each in variation.fixed if each.short]
        unclear, free = len(variation.fixed) - len(known), len(variation.free)
        more = len(known) - _MOST_FIXED_SHOWN
        parts = [f"needs {'; '.join(known[:_MOST_FIXED_SHOWN])}"] if known else []
        parts += [f"{count(more, 'more condition')} in {VARIATION_REPORT}"] if more > 0 else []
        parts += [f"{count(unclear, 'property', 'properties')} of unclear influence"] if unclear else []
        parts += [f"{count(free, 'property', 'properties')} without influence, as far as was tried"] if free else []
        line = " · ".join(parts)
    brief = variation.brief if variation.plain is None else variation.of_plain
    piece = replace(piece, variation="" if variation.kept else brief)
    return StepAnswer(replace(facts, piece=piece), line)


def _kept_plain(plain: FedModel, context: StepContext) -> str:
    """Write the plain form of the piece and its inputs, and return the path of the model."""
    path = context.question.folder / PLAIN_PIECE
    write_whole(path, [plain.model.SerializeToString(deterministic=True)])
    if plain.feeds is not None:
        write_feeds(inputs_file(path), plain.feeds)
    return str(path)
