"""From the arguments of ``biopsy debug precision`` to the mixed-precision models that it tries."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.debug import checking

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.model.index import ModelIndex
    from biopsy.precision.formats import Format
    from biopsy.precision.mixed_models import MixedModels
    from biopsy.session.workspace import Workspace
    from biopsy.tensors.results import Feed


def mixed_models(args: argparse.Namespace, index: ModelIndex, place: Workspace, feeds: Sequence[Feed]) -> MixedModels:
    """What makes the candidates; ``feeds`` calibrate int8."""
    from biopsy.model.load import parse
    from biopsy.precision.mixed_models import CastModels

    model = parse(index.buffer[:], index.path)
    places = {index.names[tensor]: data for tensor, data in place.places.items()}
    if args.low == "int8":
        from biopsy.precision.quantized import QuantizedModels

        return QuantizedModels(model, index.folder, places, feeds)
    return CastModels(model, _low(args), _high(args), args.form, index.folder, places)


def calibration_feeds(args: argparse.Namespace, index: ModelIndex, console: Console) -> Sequence[Feed]:
    """Inputs to calibrate int8 with: the user's, else those that the check loads, else random ones.

    None are needed, and none given, for other precisions.
    """
    if args.low != "int8":
        return ()
    from biopsy.recording.random_samples import random_samples
    from biopsy.tensors.files import read_feeds

    if args.precision != "float32":
        raise errors.UsageError("--int8 needs -p float32")
    own = checking.own_run(args)
    files = args.load_inputs or (own.load_inputs if own is not None else None) or ()
    feeds = [feed for file in files for feed in read_feeds(file)]
    if files:
        console.note(f"int8 is calibrated with {len(feeds)} inputs of {', '.join(map(str, files))}")
        return feeds
    console.warn(
        "int8 is calibrated with RANDOM inputs, between 0 and 1, which may not show what overflows with yours. "
        "Give typical ones with --load-inputs"
    )
    return random_samples(index)


def _low(args: argparse.Namespace) -> Format:
    from biopsy.precision import formats

    fp8 = formats.FP8_E4M3FN if args.fp8_format == "e4m3fn" else formats.FP8_E5M2
    low: Format = {None: formats.FP16, "fp16": formats.FP16, "bf16": formats.BF16, "fp8": fp8}[args.low]
    return low


def _high(args: argparse.Namespace) -> Format:
    from biopsy.precision import formats

    return formats.FP32 if args.precision == "float32" else formats.FP16
