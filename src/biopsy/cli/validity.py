"""What a command writes is at least as valid as what it was given, unless ``--allow-invalid`` says otherwise."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors

if TYPE_CHECKING:
    import onnx

    from biopsy.cli.console import Console


def add_allow_invalid(parser: argparse.ArgumentParser) -> None:
    """The option that has a model written all the same, into ``args.allow_invalid``."""
    parser.add_argument(
        "--allow-invalid",
        action="store_true",
        help="write the result even if it is invalid where the model was not",
    )


def require_as_valid(
    args: argparse.Namespace,
    result: onnx.ModelProto,
    original: bytes,
    folder: Path,
    console: Console,
    *,
    filled: Collection[str] = (),
    at_fault: Sequence[str] = (),
    loads: bool = True,
) -> None:
    """Raise InvalidResult, before anything is written, if a judge refuses the result and accepts the original.

    With ``--allow-invalid`` it is a warning, as where an engine only lacks an implementation. ``at_fault`` are lines on
    what may have made it so; ``filled`` and ``loads`` as ``lost_validity`` has it.
    """
    from biopsy.linting.lost_validity import lost_validity

    lost = lost_validity(result, original, folder, filled=filled, loads=loads)
    if lost is None:
        return
    if not lost.certain:
        console.warn(f"{lost.judge} can run the model, but not what is made of it: {lost.reason}")
    elif args.allow_invalid:
        console.warn(f"what was written is invalid, and the model was not: {lost}")
    else:
        raise errors.InvalidResult(
            f"the result would be invalid, and the model is not: {lost}",
            kept=f"nothing was written to {args.output}",
            next_steps=[*at_fault, "--allow-invalid    writes it all the same"],
        )
