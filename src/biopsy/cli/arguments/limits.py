"""``--timeout`` and ``--memory-limit``: what a whole command may use, one meaning for every command that has them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import types

if TYPE_CHECKING:
    from biopsy.isolation.watch import Limits

MOST_OF_THE_MEMORY = 0.9
"""The part of this machine's memory, or of its container's, that a command may take where nobody says otherwise."""


def add(parser: argparse.ArgumentParser, default: str) -> None:
    """Both options; ``default`` is the time that a command may take where nobody says otherwise, "" for any."""
    group = parser.add_argument_group("limits of the command")
    group.add_argument(
        "--timeout",
        type=types.duration,
        metavar="TIME",
        help=f"end the command, with status 4, if it takes longer: 90s, 10m, 1h (default: {default or 'no limit'})",
    )
    group.add_argument(
        "--memory-limit",
        type=types.byte_size,
        metavar="SIZE",
        help="end the command, with status 4, if its processes together use more memory than this, such as 4GB; weights"
        f" that are mapped from a file do not count (default: {MOST_OF_THE_MEMORY:.0%}% of the machine's memory)",
    )


MORE_MEMORY = "--run-memory SIZE    for an engine that needs more"


def add_to_runs(group: argparse._ArgumentGroup) -> None:
    """``--run-memory``."""
    group.add_argument(
        "--run-memory",
        type=types.byte_size,
        metavar="SIZE",
        help="end an engine that takes more memory in one of our runs, such as 16GB; weights that are mapped from a"
        " file do not count (default: 1.5GB, or 8GB for engines other than onnxrt, openvino and reference, and 64 times"
        " the bytes of the model, its weights and its inputs)",
    )


def are_given(args: argparse.Namespace) -> bool:
    """Whether somebody has set a limit."""
    return args.timeout is not None or args.memory_limit is not None


def limits_of(args: argparse.Namespace, default: str) -> Limits:
    """What a command may use. Raises UsageError if somebody has set a limit and nothing could watch the command."""
    from biopsy.isolation import supervised
    from biopsy.isolation.memory import memory
    from biopsy.isolation.watch import Limits

    if are_given(args) and not supervised.is_possible():
        raise errors.UsageError("--timeout and --memory-limit need a second process, which cannot be forked here")
    seconds = types.duration(default) if args.timeout is None and default else args.timeout
    return Limits(seconds=seconds, memory=args.memory_limit or int(MOST_OF_THE_MEMORY * memory()))
