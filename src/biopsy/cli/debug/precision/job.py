"""From the arguments of ``biopsy debug precision`` to the job of a search. Importing this imports the search."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from biopsy import errors
from biopsy.checks.artifacts import Artifacts
from biopsy.cli.arguments import checks, groups
from biopsy.cli.debug import checking
from biopsy.mixed_precision.job import PrecisionJob
from biopsy.mixed_precision.result import PrecisionResult, PrecisionTarget
from biopsy.session.budget import Budget
from biopsy.session.flakiness import Repeating
from biopsy.session.iteration import IterationFiles
from biopsy.session.options import SearchOptions
from biopsy.session.pool import Parallelism


def job_of(
    args: argparse.Namespace, parallelism: Parallelism, write_report: Callable[[PrecisionResult], None]
) -> PrecisionJob:
    """What is to be searched, and how. Raises UsageError for arguments that contradict each other."""
    if args.save_external_data is not None and args.output is None:
        raise errors.UsageError("--save-external-data needs an output", next_steps=["-o mixed.onnx"])
    external = None if args.output is None else groups.weights_file(args, args.output)
    return PrecisionJob(
        target=PrecisionTarget(
            output=args.output, external=external, report=args.report, names=args.list, write_report=write_report
        ),
        mode=args.mode,
        direction=args.direction,
        cost=args.cost,
        search=_search(args, parallelism),
    )


def _search(args: argparse.Namespace, parallelism: Parallelism) -> SearchOptions:
    return SearchOptions(
        rules=checking.rules_of(args),
        candidate=args.candidate,
        files=IterationFiles(
            artifacts=Artifacts(tuple(args.artifacts), args.art_dir),
            info=args.iter_info,
            keep_last=args.no_remove_intermediate,
        ),
        parallelism=parallelism,
        budget=Budget(checks=args.max_checks, seconds=args.max_time),
        repeating=Repeating(repeat=args.repeat, confidence=args.confidence),
        resume=checks.resume_of(args, _journal(args), "search"),
    )


def _journal(args: argparse.Namespace) -> Path | None:
    """Where the journal stands; None without an output to name it after. Raises UsageError if it is needed then."""
    if args.output is not None:
        return checks.journal_of(args.output)
    wanted = {"--fresh": args.fresh, "--load-debug-replay": args.load_debug_replay}
    wanted["--save-debug-replay"] = args.save_debug_replay
    for option, value in wanted.items():
        if value:
            raise errors.UsageError(f"{option} needs an output", next_steps=["-o mixed.onnx"])
    return None
