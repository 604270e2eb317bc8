"""Options of Polygraphy that a command does not have: each says why, and what to type instead. The rows are loaded
only for a command that has some.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from biopsy import errors

if TYPE_CHECKING:
    from biopsy.cli.arguments.polygraphy_options import OptionDifference


class _Refused(argparse.Action):
    """Raises UsageError where the option is met."""

    def __init__(self, *args: Any, difference: OptionDifference, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._difference = difference

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        raise errors.UsageError(f"{option} is not available: {self._difference.why}", next_steps=self._steps())

    def _steps(self) -> list[str]:
        return [self._difference.instead] if self._difference.instead else []


class _WithoutEffect(_Refused):
    """Notes why nothing changes; ``notes`` gives it."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        namespace.without_effect = (*namespace.without_effect, f"{option} has no effect: {self._difference.why}")


def add(parser: argparse.ArgumentParser, command: str) -> None:
    """Add what Polygraphy has under this name and the command has not; the help does not show it."""
    parser.set_defaults(without_effect=())
    for difference in differences_of(command):
        if difference.fate == "differs":
            continue
        action = _Refused if difference.fate == "refused" else _WithoutEffect
        parser.add_argument(
            *difference.options,
            action=action,
            difference=difference,
            dest=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
            nargs="*" if difference.fate == "refused" else None if difference.values else 0,
            help=argparse.SUPPRESS,
        )


def notes(args: argparse.Namespace) -> tuple[str, ...]:
    """A line for each option that was given and changes nothing."""
    found: tuple[str, ...] = getattr(args, "without_effect", ())
    return found


# What Polygraphy's options are here, where they are not the same: data for the parsers, for the docs and for tests.


def differences_of(command: str) -> Sequence[OptionDifference]:
    """The rows of a command, such as ``debug reduce``. A spelling stands in one of them at most."""
    from biopsy.cli.arguments.polygraphy_options import DIFFERENCES

    return DIFFERENCES.get(command, ())
