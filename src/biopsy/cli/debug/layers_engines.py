"""The two engines of ``debug layers``: the suspect, and the one to trust."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import engine_options, tensorrt
from biopsy.engines.yardsticks import PLAIN

if TYPE_CHECKING:
    from biopsy.cli.console import Console

DEFAULT_REFERENCE = PLAIN[0]

_SPEC = "NAME[:key=value,...]"


def add(parser: argparse.ArgumentParser) -> None:
    """The options that name them."""
    group = parser.add_argument_group("engines")
    group.add_argument(
        "--suspect",
        metavar=_SPEC,
        help="the engine to examine, such as openvino; 'biopsy doctor' lists all (default: as below)",
    )
    group.add_argument(
        "--reference-engine",
        metavar=_SPEC,
        help=f"the engine to trust, preferably one that does not optimize (default: {DEFAULT_REFERENCE})",
    )
    engine_options.add_engines(
        parser,
        "engines, as for run: one alone is the suspect; the first of two is the one to trust",
    )
    tensorrt.add(parser)


def settle(args: argparse.Namespace, console: Console) -> None:
    """Put both into ``args.suspect`` and ``args.reference_engine``, whichever way they are named.

    Raises UsageError if one is named twice, or if there are more than two.
    """
    named = args.engines or engine_options.settings_given(args)
    texts = [spec.text for spec in engine_options.engine_specs(args)] if named else []
    options = {"reference-engine": args.reference_engine, "suspect": args.suspect}
    roles = [option.replace("-", "_") for option, value in options.items() if value is None]
    if len(texts) > len(roles):
        given = [f"--{option} {value}" for option, value in options.items() if value is not None]
        raise errors.UsageError(
            f"too many engines: {', '.join([*given, *texts])}; there is one suspect, and one engine to trust",
            next_steps=["--engine REFERENCE --engine SUSPECT", "or --reference-engine REFERENCE --suspect SUSPECT"],
        )
    for role, text in zip(reversed(roles), reversed(texts), strict=False):
        setattr(args, role, text)
    if args.suspect is None:
        args.suspect = engine_options.default_engine(runs=True).text
        console.note(f"no engine is named: {args.suspect} is the suspect")
    args.reference_engine = args.reference_engine or DEFAULT_REFERENCE
