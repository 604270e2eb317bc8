"""From the arguments of ``biopsy debug reduce`` to the job of a reduction. Importing this imports the reducer."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from biopsy.checks.artifacts import Artifacts
from biopsy.cli.arguments import checks, groups, named_values
from biopsy.cli.debug import checking, preconditions
from biopsy.cli.debug.recorded_inputs import draws_of
from biopsy.cli.debug.reduce.outputs import feeds_recorded, output_of
from biopsy.cli.run.settings import given_feeds
from biopsy.engines.yardsticks import PLAIN
from biopsy.reduction.job import Border, RecordingOptions, ReductionJob
from biopsy.reduction.result import Target
from biopsy.reduction.schedule import Passes
from biopsy.session.budget import Budget
from biopsy.session.flakiness import Repeating
from biopsy.session.iteration import IterationFiles
from biopsy.session.options import SearchOptions
from biopsy.session.pool import Parallelism
from biopsy.session.workers import Workers
from biopsy.tensors.results import Feed


def job_of(args: argparse.Namespace, jobs: int, machines: Workers | None = None) -> ReductionJob:
    """What is to be reduced, and how; ``machines`` run the checks, if not this one.

    Raises UsageError for arguments that could only mislead.
    """
    from biopsy.checks.command_line import parse

    own_run = checking.own_run(args)
    output = output_of(args)
    preconditions.require_writable_candidate(args.iter_artifact)
    preconditions.require_inputs_of_golden_values(own_run, keep_inputs=args.no_reduce_inputs)
    return ReductionJob(
        target=Target(output, args.min_good, groups.weights_file(args, output)),
        mode=args.mode,
        search=_search(args, Parallelism(jobs=jobs, executor=machines), output),
        recording=RecordingOptions(
            samples=_samples(args, own_run),
            draws=draws_of(args),
            engines=(args.record_with,) if args.record_with else PLAIN,
            memory=args.run_memory,
            infer_types=not args.no_shape_inference,
            types_by_running=args.force_fallback_shape_inference,
        ),
        border=_border(args, own_run),
        input_shapes=named_values.parse_shapes(args.model_input_shapes, "--model-input-shapes"),
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
        budget=Budget(checks=args.max_checks, seconds=args.max_time),
        repeating=Repeating(repeat=args.repeat, confidence=args.confidence),
        resume=checks.resume_of(args, checks.journal_of(output), "reduction"),
        keep_other=args.keep_other,
    )


def _border(args: argparse.Namespace, own_run: argparse.Namespace | None) -> Border:
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
        artifacts=Artifacts(tuple(args.artifacts), args.art_dir),
        info=args.iter_info,
        inputs=args.iter_inputs,
        keep_last=args.no_remove_intermediate,
    )


def _ranking(args: argparse.Namespace) -> Sequence[Sequence[int]]:
    if args.order_by is None:
        return ()
    from biopsy.layerwise.report import ranking_in

    return ranking_in(args.order_by, args.model)


def _samples(args: argparse.Namespace, own_run: argparse.Namespace | None) -> Callable[[], Sequence[Feed]] | None:
    """Inputs to record with: the user's, else those that a check of ours loads: both must speak of the same values.

    The user's are read now, so that a wrong file is told now. Those of the check are told by the check.
    """
    feeds = given_feeds(args)
    if feeds is not None:
        return lambda: feeds
    if own_run is not None and own_run.load_inputs:
        # A file that is made anew for each candidate (--iter-inputs) is of another time, or not there yet.
        files = own_run.load_inputs
        if args.iter_inputs not in files and all(file.exists() for file in files):
            return lambda: _read(files)
    return None


def _read(files: Sequence[Path]) -> Sequence[Feed]:
    from biopsy.tensors.files import read_feeds

    return [feed for file in files for feed in read_feeds(file)]
