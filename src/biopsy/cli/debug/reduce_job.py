"""From the arguments of ``biopsy debug reduce`` to the job of a reduction, and with ``--explain`` to that of an
explanation. Importing this imports the reducer.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.command_line import parse
from biopsy.cli.arguments import checks, comparing, groups
from biopsy.cli.debug import checking
from biopsy.cli.debug.bundling import explanation_journal, feeds_recorded, output_of
from biopsy.cli.run.options import RunOptions
from biopsy.engines.registry import PLAIN
from biopsy.engines.runner import Inputs
from biopsy.model.index import index_file
from biopsy.questions.layers.findings import ranking_in
from biopsy.questions.variation.result import Variation
from biopsy.questions.variation.vary import USUAL_CHECKS, USUAL_SECONDS, VariationJob, vary
from biopsy.reduction.job import Border, RecordingOptions, ReductionJob
from biopsy.reduction.result import Reduction, Target
from biopsy.reduction.schedule import Passes
from biopsy.session.checked_search import SearchOptions
from biopsy.session.iteration import IterationFiles
from biopsy.session.pool import Parallelism
from biopsy.session.trial import Budget
from biopsy.session.workers import Workers
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Feed


def job_of(args: argparse.Namespace, jobs: int, machines: Workers | None = None) -> ReductionJob:
    """What is to be reduced, and how; ``machines`` run the checks, if not this one.

    Raises UsageError for arguments that could only mislead.
    """
    own_run = checking.own_run(args)
    output = output_of(args)
    checking.require_writable_candidate(args.iter_artifact)
    checking.require_inputs_of_golden_values(own_run, keep_inputs=args.no_reduce_inputs)
    return ReductionJob(
        target=Target(output, args.min_good, groups.WeightsFileOption.of(args).weights_file(output)),
        mode=args.mode,
        search=_search(args, Parallelism(jobs=jobs, executor=machines), output),
        recording=RecordingOptions(
            samples=_samples(args, own_run),
            draws=groups.RecordedInputs.of(args).draws(),
            engines=(args.record_with,) if args.record_with else PLAIN,
            memory=args.run_memory,
            infer_types=not args.no_shape_inference,
            types_by_running=args.force_fallback_shape_inference,
        ),
        border=_border(args, own_run),
        input_shapes=comparing.parse_shapes(args.model_input_shapes, "--model-input-shapes"),
        values=args.values,
        command=parse(args.check or ()),
        passes=_passes(args),
        ranking=_ranking(args),
        allow_vacuous_check=args.allow_vacuous_check,
        feeds_recorded=feeds_recorded(args, own_run, output),
    )


def _search(args: argparse.Namespace, parallelism: Parallelism, output: Path) -> SearchOptions:
    return SearchOptions(
        rules=checking.rules_of(args),
        candidate=args.iter_artifact,
        files=_files(args),
        parallelism=parallelism,
        budget=checks.BudgetOptions.of(args).budget(),
        repeating=checks.RepeatOptions.of(args).repeating(),
        resume=checks.ResumedSearch.of(args).resume(checks.journal_of(output), "reduction"),
        keep_other=args.keep_other,
    )


def _border(args: argparse.Namespace, own_run: RunOptions | None) -> Border:
    has_golden_values = own_run is not None and bool(own_run.load_outputs)
    return Border(
        cut=args.cut,
        keep_inputs=args.no_reduce_inputs,
        keep_outputs=args.no_reduce_outputs,
        mark_intermediate=True if args.mark_intermediate else None if has_golden_values else False,
    )


def _passes(args: argparse.Namespace) -> Passes:
    return Passes(
        simplify=args.simplify, anonymize=args.anonymize, skip=tuple(args.skip_pass), only=tuple(args.only_pass)
    )


def _files(args: argparse.Namespace) -> IterationFiles:
    return IterationFiles(
        artifacts=checks.ArtifactOptions.of(args).sorted_files(),
        info=args.iter_info,
        inputs=args.iter_inputs,
        keep_last=args.no_remove_intermediate,
    )


def _ranking(args: argparse.Namespace) -> Sequence[Sequence[int]]:
    if args.order_by is None:
        return ()

    return ranking_in(args.order_by, args.model)


def _samples(args: argparse.Namespace, own_run: RunOptions | None) -> Callable[[], Sequence[Feed]] | None:
    """Inputs to record with: the user's, else those that a check of ours loads: both must speak of the same values.

    The user's are read now, so that a wrong file is told now. Those of the check are told by the check.
    """
    feeds = groups.RecordedInputs.of(args).given_feeds()
    if feeds is not None:
        return lambda: feeds
    if own_run is not None and own_run.load_inputs:
        # A file that is made anew for each candidate (--iter-inputs) is of another time, or not there yet.
        files = own_run.load_inputs
        if args.iter_inputs not in files and all(file.exists() for file in files):
            return lambda: [feed for file in files for feed in read_feeds(file)]
    return None


# ``--explain``: what may vary in the result of a reduction.


def is_wanted(args: argparse.Namespace) -> bool:
    """Whether what may vary is asked for."""
    return bool(args.explain or args.explain_checks)


def require_explainable(args: argparse.Namespace) -> None:
    """Raise UsageError where ``--explain`` could not do what it says."""
    if not is_wanted(args):
        return
    if args.check is None:
        raise errors.UsageError(
            "--explain asks many questions: it needs a check, and no person", next_steps=["--check COMMAND ..."]
        )
    given = {
        "--artifacts": args.artifacts,
        "--iter-inputs": args.iter_inputs,
        "--no-remove-intermediate": args.no_remove_intermediate,
    }
    for option in [option for option, value in given.items() if value]:
        raise errors.UsageError(
            f"--explain cannot be combined with {option}, which is for the candidates of the reduction",
            next_steps=["reduce the result once more, with --explain alone"],
        )


def explained(args: argparse.Namespace, jobs: int, result: Reduction, listener: events.Listener) -> Variation | None:
    """What may vary in the result; None if that is not wanted, or cannot be found out, which is told.

    Raises Interrupted if it is stopped.
    """
    if not is_wanted(args):
        return None
    if result.stopped is not None:
        listener(events.Remark(f"may vary   not asked: the reduction was ended by {result.stopped}"))
        return None

    with checking.ended_politely(), contextlib.closing(checking.check_of(args, jobs)) as check:
        try:
            return vary(
                index_file(result.output), check, _job(args, result, jobs), events.without(events.ModelRead, listener)
            )
        except errors.Interrupted as stop:
            kept = ", and ".join(filter(None, [f"{result.output}, which fails in the same way", stop.kept]))
            raise errors.Interrupted(stop.message, kept=kept) from stop
        except errors.BiopsyError as error:  # the result of the reduction stands, and is told
            listener(events.Remark(f"may vary   not known: {error.summary}", warning=True))
            return None


def _job(args: argparse.Namespace, result: Reduction, jobs: int) -> VariationJob:

    resume = checks.ResumedSearch.of(args).resume(explanation_journal(args, result.output), "explanation")
    return VariationJob(
        search=SearchOptions(
            rules=checking.rules_of(args),
            candidate=args.iter_artifact,
            files=IterationFiles(info=args.iter_info),
            parallelism=Parallelism(jobs=jobs),
            budget=Budget(checks=args.explain_checks or USUAL_CHECKS, seconds=USUAL_SECONDS),
            repeating=checks.RepeatOptions.of(args).repeating(),
            resume=replace(resume, load=None, save=None),
        ),
        inputs=_inputs(args, result),
        values_free=result.values_free,
        reference=result.failure,
        allow_vacuous_check=args.allow_vacuous_check,
    )


def _inputs(args: argparse.Namespace, result: Reduction) -> Inputs | None:
    """What a check that is our own ``run`` feeds the result; None for any other."""
    own_run = checking.own_run(args)
    if own_run is None:
        return None
    inputs = own_run.inputs()
    if result.inputs is None:
        return inputs

    return replace(inputs, given=read_feeds(result.inputs))
