"""What Polygraphy's options are here, where they are not the same: data for the parsers, for the docs and for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from biopsy.cli.arguments.polygraphy_options.difference import OptionDifference


def differences_of(command: str) -> Sequence[OptionDifference]:
    """The rows of a command, such as ``debug reduce``. A spelling stands in one of them at most."""
    from biopsy.cli.arguments.polygraphy_options.of_surgeon import DIFFERENCES

    return DIFFERENCES.get(command, ())
