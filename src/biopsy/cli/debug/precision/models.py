"""From the arguments of ``biopsy debug precision`` to the precisions it mixes, and the inputs to calibrate with."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from biopsy.cli.arguments import groups
from biopsy.cli.debug import checking

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.mixed_precision.precisions import Low, Precisions
    from biopsy.model.index import ModelIndex
    from biopsy.tensors.results import Feed


def precisions_of(args: argparse.Namespace) -> Precisions:
    """Which precisions are mixed."""
    from biopsy.mixed_precision.precisions import Precisions

    low: Low = "fp8_e5m2" if (args.low, args.fp8_format) == ("fp8", "e5m2") else args.low or "fp16"
    return Precisions(low=low, high=args.precision, form=args.form)


def calibration_feeds(args: argparse.Namespace, index: ModelIndex, console: Console) -> Sequence[Feed]:
    """Inputs to calibrate int8 with: the user's, else those that the check loads, else random ones.

    None are needed, and none given, for other precisions.
    """
    if args.low != "int8":
        _tell_unused(args, console)
        return ()
    from biopsy.cli.debug.recorded_inputs import draws_of, require_draws
    from biopsy.cli.run.settings import given_feeds
    from biopsy.engines.casting import casts_told, in_declared_types
    from biopsy.recording.random_samples import random_samples
    from biopsy.tensors.files import read_feeds

    precisions_of(args).require_possible()
    own = checking.own_run(args)
    feeds = given_feeds(args)
    origin = args.load_inputs or [args.data_loader_script]
    if feeds is None and own is not None and own.load_inputs:
        origin = own.load_inputs
        feeds = [feed for file in origin for feed in read_feeds(file)]
    fed = [index.names[tensor] for tensor in index.fed_inputs()]
    require_draws(args, fed, random=feeds is None, console=console)
    if feeds is not None:
        console.note(f"int8 is calibrated with {len(feeds)} inputs of {', '.join(map(str, origin))}")
        typed, changes = in_declared_types(feeds, index.declared_type)
        if changes:
            console.warn(casts_told(changes))
        return typed
    console.warn(
        "int8 is calibrated with RANDOM inputs, between 0 and 1, which may not show what overflows with yours. "
        "Give typical ones with --load-inputs"
    )
    return random_samples(index, draws_of(args))


def _tell_unused(args: argparse.Namespace, console: Console) -> None:
    """Say which options on inputs have no effect, as nothing is calibrated."""
    sources = {"--load-inputs": args.load_inputs, "--data-loader-script": args.data_loader_script}
    given = [*(option for option, value in sources.items() if value is not None), *groups.draws_given(args)]
    if given:
        console.warn(f"{', '.join(given)} has no effect without --int8: only calibration needs inputs")
