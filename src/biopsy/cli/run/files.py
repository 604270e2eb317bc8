"""``biopsy run`` without an engine: saved outputs compared with each other."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from biopsy.cli.arguments.comparing import limits_of
from biopsy.cli.run.comparisons import compare, find_not_finite
from biopsy.cli.run.conclusion import conclude
from biopsy.cli.run.findings import Findings
from biopsy.cli.run.functions import functions_of

if TYPE_CHECKING:
    from biopsy.cli.console import Console

_NEED_AN_ENGINE = (
    "load_inputs", "data_loader_script", "save_inputs", "save_outputs", "save_onnx", "save_engine", "build_only",
    "compare_with", "record_memory",
)  # fmt: skip
"""Options that speak of a run."""


def is_of_files(args: argparse.Namespace) -> bool:
    """Whether no engine is named, nor anything that needs one, and several files of outputs are."""
    asked_to_run = args.engines or any(getattr(args, name) for name in _NEED_AN_ENGINE)
    return not asked_to_run and len(args.load_outputs or ()) > 1


def compare_files(args: argparse.Namespace, console: Console) -> int:
    """Compare the runners of all files with the first of them. Raises CannotCompare if they have nothing in common."""
    from biopsy.checks import verdict
    from biopsy.cli.run.settings import golden_values, require_writable, tolerances_of
    from biopsy.comparison.spoken_of import names_of, require_known_outputs, spoken_of

    require_writable(args)
    functions = functions_of(args, console)
    verdict.report_looking()
    first, *others = golden_values(args.load_outputs)
    limits = *tolerances_of(args), limits_of(args)
    require_known_outputs(spoken_of(*limits), set().union(*map(names_of, [first, *others])))
    console.note(f"no engine is named: the files are compared with {first.runner}, and {args.model} is not run")
    first, *others = functions.postprocessed([first, *others])
    not_finite = find_not_finite([first, *others], console) if args.validate else []
    pairs = [(other, first) for other in others]
    compared = compare(pairs, (), limits, args, console, function=functions.compare)
    findings = Findings([], compared, odd=not_finite)
    if args.report is not None:
        from biopsy.cli.run.report import write_report

        write_report(args, findings, console)
    return conclude(findings, console)
