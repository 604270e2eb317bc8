"""The files that ``biopsy debug reduce`` writes by names of its own."""

from __future__ import annotations

import argparse
from pathlib import Path

from biopsy.cli.arguments import checks


def output_of(args: argparse.Namespace) -> Path:
    """Where the result is written."""
    return args.output or Path(f"{args.model.stem}_reduced.onnx")


def explanation_journal(args: argparse.Namespace, output: Path) -> Path | None:
    """Where the journal of ``--explain`` stands; None if that is not asked for."""
    wanted = args.explain or args.explain_checks
    return checks.journal_of(output.with_name(f"{output.name}.explain")) if wanted else None


def feeds_recorded(args: argparse.Namespace, own_run: argparse.Namespace | None, output: Path) -> bool:
    """Whether recorded inputs are written beside the result.

    They are if the check is ``biopsy run`` with inputs of the whole model only: it would make up the inputs of a cut.
    """
    from biopsy.reduction.inputs_file import inputs_file

    if own_run is None or not own_run.load_inputs or own_run.load_outputs or args.iter_inputs or args.no_reduce_inputs:
        return False
    if args.load_inputs and args.load_inputs != own_run.load_inputs:
        return False
    files = [file.resolve() for file in own_run.load_inputs if file.exists()]
    return len(files) == len(own_run.load_inputs) and inputs_file(output).resolve() not in files
