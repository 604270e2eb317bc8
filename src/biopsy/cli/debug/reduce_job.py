"""From the options of ``biopsy debug reduce`` to the job of a reduction, and with ``--explain`` to that of an
explanation. Importing this imports the reducer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from biopsy import errors, events
from biopsy.checks.command_line import parse
from biopsy.checks.outcome import Check
from biopsy.cli.arguments import checks
from biopsy.cli.debug import checking
from biopsy.cli.debug.reduce_options import ReduceOptions
from biopsy.cli.run.options import RunOptions
from biopsy.engines.registry import PLAIN
from biopsy.model.index import index_file
from biopsy.questions.layers.findings import ranking_in
from biopsy.questions.variation.result import Variation
from biopsy.questions.variation.vary import USUAL_CHECKS, USUAL_SECONDS, VariationJob, vary
from biopsy.reduction.problem import Border
from biopsy.reduction.reduce import RecordingOptions, ReductionJob
from biopsy.reduction.result import Reduction, Target
from biopsy.session.checked_search import SearchOptions
from biopsy.session.files import IterationFiles
from biopsy.session.pool import Parallelism, Workers
from biopsy.session.trial import Budget
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Feed


def job_of(
    options: ReduceOptions, own_run: RunOptions | None, jobs: int, machines: Workers | None = None
) -> ReductionJob:
    """What is to be reduced, and how; ``machines`` run the checks, if not this one.

    ``own_run`` are the options of a check that is ``biopsy run``. Raises UsageError for options that could only
    mislead.
    """
    checking.require_writable_candidate(options.candidate)
    checking.require_inputs_of_golden_values(own_run, keep_inputs=options.no_reduce_inputs)
    has_golden_values = own_run is not None and bool(own_run.load_outputs)
    return ReductionJob(
        target=Target(options.result, options.min_good, options.weights_file(options.result)),
        mode=options.mode,
        search=SearchOptions(
            rules=options.rules(),
            candidate=options.candidate,
            files=IterationFiles(
                artifacts=options.sorted_files(),
                info=options.iter_info,
                inputs=options.iter_inputs,
                keep_last=options.no_remove_intermediate,
            ),
            parallelism=Parallelism(jobs=jobs, executor=machines),
            budget=options.budget(),
            repeating=options.repeating(),
            resume=options.resume(checks.journal_of(options.result), "reduction"),
            keep_other=options.keep_other,
        ),
        recording=RecordingOptions(
            samples=_samples(options, own_run),
            draws=options.draws(),
            engines=(options.record_with,) if options.record_with else PLAIN,
            memory=options.run_memory,
            infer_types=not options.no_shape_inference,
            types_by_running=options.force_fallback_shape_inference,
        ),
        border=Border(
            cut=options.cut,
            keep_inputs=options.no_reduce_inputs,
            keep_outputs=options.no_reduce_outputs,
            mark_intermediate=True if options.mark_intermediate else None if has_golden_values else False,
        ),
        input_shapes=options.shapes_fixed(),
        values=options.values,
        command=parse(options.check or ()),
        passes=options.passes(),
        ranking=() if options.order_by is None else ranking_in(options.order_by, options.model),
        allow_vacuous_check=options.allow_vacuous_check,
        feeds_recorded=options.records_feeds(own_run),
    )


def _samples(options: ReduceOptions, own_run: RunOptions | None) -> Callable[[], Sequence[Feed]] | None:
    """Inputs to record with: the user's, else those that a check of ours loads: both must speak of the same values.

    The user's are read now, so that a wrong file is told now. Those of the check are told by the check.
    """
    feeds = options.given_feeds()
    if feeds is not None:
        return lambda: feeds
    if own_run is not None and own_run.load_inputs:
        # A file that is made anew for each candidate (--iter-inputs) is of another time, or not there yet.
        files = own_run.load_inputs
        if options.iter_inputs not in files and all(file.exists() for file in files):
            return lambda: [feed for file in files for feed in read_feeds(file)]
    return None


# ``--explain``: what may vary in the result of a reduction.


def require_explainable(options: ReduceOptions) -> None:
    """Raise UsageError where ``--explain`` could not do what it says."""
    if not options.explains:
        return
    if options.check is None:
        raise errors.UsageError(
            "--explain asks many questions: it needs a check, and no person", next_steps=["--check COMMAND ..."]
        )
    for spelling in options.given(("artifacts", "iter_inputs", "no_remove_intermediate")):
        raise errors.UsageError(
            f"--explain cannot be combined with {spelling}, which is for the candidates of the reduction",
            next_steps=["reduce the result once more, with --explain alone"],
        )


def explained(
    options: ReduceOptions,
    own_run: RunOptions | None,
    begin: Callable[[], Check],
    jobs: int,
    result: Reduction,
    listener: events.Listener,
) -> Variation | None:
    """What may vary in the result; None if that is not wanted, or cannot be found out, which is told.

    ``begin`` gives the check. Raises Interrupted if it is stopped.
    """
    if not options.explains:
        return None
    if result.stopped is not None:
        listener(events.Remark(f"may vary   not asked: the reduction was ended by {result.stopped}"))
        return None
    with checking.ended_politely(), contextlib.closing(begin()) as check:
        try:
            job = _variation_job(options, own_run, result, jobs)
            return vary(index_file(result.output), check, job, events.without(events.ModelRead, listener))
        except errors.Interrupted as stop:
            kept = ", and ".join(filter(None, [f"{result.output}, which fails in the same way", stop.kept]))
            raise errors.Interrupted(stop.message, kept=kept) from stop
        except errors.BiopsyError as error:  # the result of the reduction stands, and is told
            listener(events.Remark(f"may vary   not known: {error.summary}", warning=True))
            return None


def _variation_job(options: ReduceOptions, own_run: RunOptions | None, result: Reduction, jobs: int) -> VariationJob:
    """The questions about a result; a check that is ``biopsy run`` feeds it what is recorded beside it."""
    inputs = None if own_run is None else own_run.inputs()
    if inputs is not None and result.inputs is not None:
        inputs = replace(inputs, given=read_feeds(result.inputs))
    return VariationJob(
        search=SearchOptions(
            rules=options.rules(),
            candidate=options.candidate,
            files=IterationFiles(info=options.iter_info),
            parallelism=Parallelism(jobs=jobs),
            budget=Budget(checks=options.explain_checks or USUAL_CHECKS, seconds=USUAL_SECONDS),
            repeating=options.repeating(),
            resume=replace(options.resume(options.explanation_journal, "explanation"), load=None, save=None),
        ),
        inputs=inputs,
        values_free=result.values_free,
        reference=result.failure,
        allow_vacuous_check=options.allow_vacuous_check,
    )
