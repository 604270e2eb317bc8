"""The options of ``biopsy debug build``."""

from __future__ import annotations

import argparse

from biopsy.cli.arguments import absent_options, checks, engine_options, file_kinds, groups, tensorrt, types
from biopsy.cli.arguments.report_option import add_report
from biopsy.cli.debug import other_machines

PLACEHOLDER = "{}"
"""What stands for a build in the words of a check."""

USUAL_NAME = "polygraphy_debug.engine"
"""What Polygraphy calls the engine of an iteration: it stands for ours in a check, whatever its ending is."""

LEAST_BUILDS = 10


def add(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    parser.add_argument("model", type=file_kinds.READ, metavar="MODEL", help="the ONNX model")
    parser.add_argument(
        "--until",
        type=types.until,
        metavar="N|good|bad",
        help="stop after N builds, or after the first that passes (good) or fails (bad) (default: every combination "
        f"of --vary once, and at least {LEAST_BUILDS} builds)",
    )
    _add_variations(parser)
    _add_files(parser)
    _add_check(parser)
    engine_options.add_engines(
        parser,
        "the engine to build with (default: that of the check, else TensorRT if it works here, else ONNX Runtime)",
    )
    group = other_machines.add(
        parser, runs="the builds and their checks", sent="the model, its weights, and the files that the check names"
    )
    group.add_argument(
        "--jobs",
        type=types.positive,
        metavar="N",
        help="with --on, make N builds at once; they are told of in the order that they have without it",
    )
    tensorrt.add(parser)
    groups.add_model_type(parser)
    groups.add_weights_folder(parser)
    absent_options.add(parser, "debug build")


def _add_variations(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what differs from build to build")
    group.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=V1,V2,...",
        help="a setting of the engine, or an environment variable written env.NAME, and its values; repeatable: every "
        "combination is built, equally often",
    )
    group.add_argument(
        "--seed",
        type=types.count,
        metavar="N",
        help="seed of the random build order; each block contains every combination equally often, so a periodic "
        "disturbance is not blamed on a setting (default: random, shown)",
    )


def _add_files(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files of each build")
    group.add_argument(
        "--save-tactics",
        "--save-tactic-replay",
        type=file_kinds.ITERATION,
        metavar="FILE",
        help="before the check, write what the engine chose for each layer, as JSON; sorted with the artifacts",
    )
    checks.add_artifacts(group)
    checks.add_iteration_artifact(
        group,
        "where the engine saves what it has built (default: polygraphy_debug with the engine's suffix)",
        "the last build",
    )
    checks.add_iteration_info(group)
    checks.add_events(group)
    add_report(group)


def _add_check(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the check")
    checks.add_command(
        group,
        "the command that tells whether a build is bad",
        f"In it, {{}}, {USUAL_NAME} or the name of --iter-artifact stands for what was built (for the model, if the "
        "engine saves nothing), and {engine} for the engine with its settings; 'biopsy run {}' gets these settings "
        "automatically",
        "'build' alone: a build that fails is bad, and nothing else is checked",
        checks.ASKED,
    )
    checks.add_rules(group, "has no effect here: any failure is bad")
    checks.add_timeout(group, "none")
    group.add_argument("--build-timeout", type=types.duration, metavar="SECONDS", help="end a build that takes longer")
    checks.add_shown_output(group, "the first bad build")
