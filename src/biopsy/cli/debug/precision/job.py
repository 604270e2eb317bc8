"""From the arguments of ``biopsy debug precision`` to the job of a search. Importing this imports the search."""

from __future__ import annotations

import argparse

from biopsy import errors
from biopsy.checks.artifacts import Artifacts
from biopsy.cli.arguments import groups
from biopsy.cli.debug import checking
from biopsy.precision.job import Job
from biopsy.precision.result import Target
from biopsy.session.flakiness import Repeating
from biopsy.session.iteration import IterationFiles
from biopsy.session.trials import Budget, Parallelism


def job_of(args: argparse.Namespace, jobs: int) -> Job:
    """What is to be searched, and how. Raises UsageError for arguments that contradict each other."""
    if args.save_external_data is not None and args.output is None:
        raise errors.UsageError("--save-external-data needs an output", next_steps=["-o mixed.onnx"])
    external = None if args.output is None else groups.weights_file(args, args.output)
    return Job(
        target=Target(args.output, external, args.report, args.list),
        mode=args.mode,
        direction=args.direction,
        cost=args.cost,
        rules=checking.rules_of(args),
        candidate=args.candidate,
        files=IterationFiles(
            artifacts=Artifacts(tuple(args.artifacts), args.art_dir),
            info=args.iter_info,
            keep_last=args.no_remove_intermediate,
        ),
        parallelism=Parallelism(jobs),
        budget=Budget(args.max_checks, args.max_time),
        repeating=Repeating(args.repeat, args.confidence),
    )
