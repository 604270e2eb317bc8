"""The options of ``biopsy debug reduce``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from biopsy.cli.arguments import absent_options, checks, file_kinds, groups, limits, packages, types
from biopsy.cli.arguments.report_option import add_report
from biopsy.cli.debug import bundling, other_machines


def add(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    parser.add_argument("model", type=file_kinds.READ, metavar="MODEL", help="the ONNX model that fails")
    parser.add_argument(
        "-o",
        "--output",
        type=file_kinds.WRITTEN,
        metavar="FILE",
        help="the reduced model (default: MODEL_reduced.onnx)",
    )
    add_report(parser)
    parser.add_argument(
        "--min-good",
        "--minimal-good",
        type=file_kinds.WRITTEN,
        metavar="FILE",
        help="also write the passing model that is closest in size",
    )
    bundling.add(parser, "the result")
    parser.add_argument(
        "--mode",
        choices=("minimal", "bisect", "linear"),
        default="minimal",
        help="minimal: bisect, then search for the needed nodes wherever they are, until no single node can be removed "
        "(default); bisect: one piece, by halving, O(log N) checks; linear: node by node, O(N) checks",
    )
    _add_check(parser)
    packages.add_packages(
        parser,
        "the releases that the check is made with",
        "run the engines of this package in a check that is 'biopsy run' from this release of it; in any other check, "
        "{python} stands for the interpreter of an environment with it",
    )
    checks.add_repeating(parser.add_argument_group("flaky failures"))
    _add_limits(parser)
    _add_iteration(parser)
    _add_model(parser)
    _add_boundary(parser)
    _add_passes(parser)
    _add_explaining(parser)
    absent_options.add(parser, "debug reduce")


def _add_check(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the check")
    checks.add_command(
        group,
        "the command that tells whether a candidate fails",
        f"In it, {checks.CANDIDATE}",
        checks.ASKED,
        "The check that allows the smallest results is 'biopsy run' without --load-outputs, which computes its "
        "reference anew for each candidate",
    )
    checks.add_rules(group, "how alike two failures must be to count as the same")
    checks.add_timeout(group, "20 times as long as the original's, at least 60")
    checks.add_memory(group, "; this counts as another failure, unless the original needs more too")
    group.add_argument(
        "--allow-vacuous-check",
        action="store_true",
        help="continue even if a model of a single Identity node fails the check the same way, so that the result says "
        "nothing; without this the status is then 4, and nothing is written",
    )
    checks.add_cold(group)
    checks.add_shown_output(group, "the original's failure")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("time limits, and resuming")
    checks.add_limits(group)
    checks.add_resume(group, "reduction")
    other_machines.add(parser)


def _add_iteration(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files of each iteration")
    checks.add_artifacts(group)
    checks.add_iteration_artifact(
        group,
        f"where each candidate is written (default: {checks.DEFAULT_CANDIDATE})",
        "the last candidate",
        default=Path(checks.DEFAULT_CANDIDATE),
    )
    checks.add_iteration_info(group)
    group.add_argument(
        "--iter-inputs",
        type=file_kinds.ITERATION,
        metavar="FILE",
        help="write the recorded values of each candidate's inputs (.json, .npz, .safetensors)",
    )
    group.add_argument(
        "--keep-other",
        type=file_kinds.FOLDER_WRITTEN,
        metavar="DIR",
        help="keep one model of each other failure met on the way",
    )
    checks.add_events(group)


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the model")
    group.add_argument(
        "--model-input-shapes",
        "--model-inputs",
        nargs="+",
        metavar="NAME:[SHAPE]",
        help="fix the shapes of dynamic inputs: x:[1,3,224,224] y:[2]",
    )
    shapes = group.add_mutually_exclusive_group()
    shapes.add_argument(
        "--no-shape-inference", action="store_true", help="take types only from the model's own value_info"
    )
    shapes.add_argument(
        "--force-fallback-shape-inference", action="store_true", help="take types and shapes from a run of the model"
    )
    groups.add_recorded_inputs(
        group, "record values with these inputs, all iterations of them (default: those of the check, else random ones)"
    )
    group.add_argument(
        "--record-with",
        metavar="NAME[:key=value,...]",
        help="the engine that records the original's values (default: onnxrt with its optimizer off, else reference)",
    )
    limits.add_to_runs(group)
    groups.add_weights_folder(group)
    groups.add_weights_file(group)


def _add_boundary(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what may change")
    kept = group.add_mutually_exclusive_group()
    kept.add_argument("--no-reduce-inputs", action="store_true", help="keep the inputs: remove nodes only from the end")
    kept.add_argument(
        "--no-reduce-outputs", action="store_true", help="keep the outputs: remove nodes only from the beginning"
    )
    group.add_argument(
        "--cut",
        choices=("auto", "input", "constant"),
        default="auto",
        help="what happens to a cut tensor: it becomes an input, a constant, or either, by its kind (default: auto)",
    )
    group.add_argument(
        "--values",
        choices=("auto", "keep", "free"),
        default="auto",
        help="may candidates compute other values than the original? keep: no; free: yes, which allows smaller results "
        "but misleads a check against golden values; auto: find out (default)",
    )
    group.add_argument(
        "--mark-intermediate",
        action="store_true",
        help="start with every tensor marked as an output, for a failure that later nodes mask (automatic where a "
        "check with --load-outputs passes but finds an inner tensor wrong)",
    )


def _add_explaining(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what may vary")
    group.add_argument(
        "--explain",
        action="store_true",
        help="find out which attributes, sizes, types, weights and inputs of the result may be others, and it still "
        "fails in the same way, and which must be as they are",
    )
    group.add_argument(
        "--explain-checks",
        type=types.positive,
        metavar="N",
        help="as --explain, with at most N checks (default: 60; in any case it ends after 5 minutes)",
    )


class _ListPasses(argparse.Action):
    """Shows the table of passes and exits, as --help does: no model is needed."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        from biopsy.cli.console import Console
        from biopsy.reduction.schedule import MODEL_PASSES, PASSES

        rows = [(named.name, named.summary, "") for named in PASSES]
        rows += [
            (named.name, named.summary, " or ".join(f"--{option}" for option in named.only_with))
            for named in MODEL_PASSES
        ]
        width = max(len(name) for name, _, _ in rows)
        table = [f"{name:<{width}}  {summary}{f' ({only})' if only else ''}" for name, summary, only in rows]
        Console().say(*table)
        parser.exit()


def _add_passes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the passes of mode minimal")
    group.add_argument(
        "--simplify",
        action="store_true",
        help="when few nodes are left, also try to remove attributes, shrink sizes and fill weights",
    )
    group.add_argument(
        "--anonymize",
        action="store_true",
        help="when few nodes are left, also try to replace names and weights, so that the file can be shared; reports "
        "what could not be replaced",
    )
    group.add_argument(
        "--order-by",
        type=file_kinds.READ,
        metavar="LAYERS.json",
        help="try first the layers that a report of 'biopsy debug layers' finds wrong (--mode minimal and bisect)",
    )
    group.add_argument(
        "--list-passes", nargs=0, action=_ListPasses, default=argparse.SUPPRESS, help="list the passes in order"
    )
    group.add_argument("--skip-pass", nargs="+", action="extend", default=[], metavar="NAME", help="skip these passes")
    group.add_argument(
        "--only-pass", nargs="+", action="extend", default=[], metavar="NAME", help="run only these passes"
    )
