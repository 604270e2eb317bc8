"""The two engines of ``debug layers``: the suspect, and the one to trust."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli import golden_values
from biopsy.cli.arguments import engine_options, file_kinds, tensorrt
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
    group.add_argument(
        "--load-outputs",
        type=file_kinds.READ,
        metavar="FILE",
        help="golden values of some of the model's tensors, whoever recorded them, instead of an engine to trust; "
        "layers without one are measured as one piece with the next that have (inputs: --load-inputs, or the same "
        "file)",
    )
    engine_options.add_engines(
        parser,
        "engines, as for run: one alone is the suspect; the first of two is the one to trust",
    )
    tensorrt.add(parser)


def settle(args: argparse.Namespace, console: Console) -> None:
    """Put both into ``args.suspect`` and ``args.reference_engine``, whichever way they are named.

    Raises UsageError if one is named twice, or if there are more than two; and if there are golden values besides an
    engine to trust, or none of the inputs that they belong to.
    """
    if args.load_outputs is not None:
        _take_golden_values(args)
    named = args.engines or engine_options.settings_given(args)
    texts = [spec.text for spec in engine_options.engine_specs(args)] if named else []
    options = {"reference-engine": args.reference_engine, "suspect": args.suspect}
    roles = [option.replace("-", "_") for option, value in options.items() if value is None]
    if len(texts) > len(roles):
        golden = "" if args.load_outputs is None else f"--load-outputs {args.load_outputs}"
        shown = {**options, **({"reference-engine": None} if golden else {})}
        given = [
            *([golden] if golden else []),
            *(f"--{key} {value}" for key, value in shown.items() if value is not None),
        ]
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


def _take_golden_values(args: argparse.Namespace) -> None:
    """Make them the engine to trust, and feed what they belong to: the inputs given, else those in the same file."""
    if args.reference_engine is not None:
        raise errors.UsageError(
            f"--load-outputs {args.load_outputs}, and --reference-engine {args.reference_engine}: trust one of them"
        )
    if args.data_loader_script is not None:
        raise errors.UsageError(
            "--load-outputs: golden values belong to inputs in a file, not to those that a script makes",
            next_steps=["--load-inputs FILE    the inputs that they were recorded with"],
        )
    if len(args.load_inputs or ()) > 1:
        raise errors.UsageError(
            "--load-outputs takes the inputs from one file",
            next_steps=["biopsy data concat FILE FILE -o inputs.npz    puts them into one"],
        )
    args.reference_engine = golden_values.spec_of(args.load_outputs, args.load_inputs[0] if args.load_inputs else None)
    args.load_inputs = args.load_inputs or [args.load_outputs]
