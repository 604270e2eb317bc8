"""``--explain``: what may vary in the result of a reduction."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from biopsy import errors, events
from biopsy.cli.arguments import checks
from biopsy.cli.debug import checking
from biopsy.cli.debug.reduce.outputs import explanation_journal

if TYPE_CHECKING:
    from biopsy.engines.feeding import Inputs
    from biopsy.reduction.result import Reduction
    from biopsy.variation.job import VariationJob
    from biopsy.variation.result import Variation


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
    from biopsy.model.index import index_file
    from biopsy.variation.vary import vary

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
    from biopsy.session.budget import Budget
    from biopsy.session.flakiness import Repeating
    from biopsy.session.iteration import IterationFiles
    from biopsy.session.options import SearchOptions
    from biopsy.session.pool import Parallelism
    from biopsy.variation.job import USUAL_CHECKS, USUAL_SECONDS, VariationJob

    resume = checks.resume_of(args, explanation_journal(args, result.output), "explanation")
    return VariationJob(
        search=SearchOptions(
            rules=checking.rules_of(args),
            candidate=args.iter_artifact,
            files=IterationFiles(info=args.iter_info),
            parallelism=Parallelism(jobs=jobs),
            budget=Budget(checks=args.explain_checks or USUAL_CHECKS, seconds=USUAL_SECONDS),
            repeating=Repeating(repeat=args.repeat, confidence=args.confidence),
            resume=replace(resume, load=None, save=None),
        ),
        inputs=_inputs(args, result),
        values_free=result.values_free,
        reference=result.failure,
        allow_vacuous_check=args.allow_vacuous_check,
    )


def _inputs(args: argparse.Namespace, result: Reduction) -> Inputs | None:
    """What a check that is our own ``run`` feeds the result; None for any other."""
    from biopsy.cli.run.settings import inputs_of

    own_run = checking.own_run(args)
    if own_run is None:
        return None
    inputs = inputs_of(own_run)
    if result.inputs is None:
        return inputs
    from biopsy.tensors.files import read_feeds

    return replace(inputs, given=read_feeds(result.inputs))
