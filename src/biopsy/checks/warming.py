"""The start of the warm process behind checks of some words. It costs few imports: it comes before all others."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.checks.command_line import OwnRun, parse
from biopsy.isolation.fork_server import ForkServer, ServerGoneError

_ZYGOTE = "biopsy.cli.zygote"
"""It is named, not imported: the command line stands above this layer."""


def serves(words: Sequence[str]) -> bool:
    """Whether checks of these words are made in forks of a warm process: those that are our own ``run``."""
    command = parse(words)
    return isinstance(command, OwnRun) and command.is_this_installation


def begin(words: Sequence[str], jobs: int) -> ForkServer | None:
    """Start the warm process for as many checks at once, and do not wait for it; None where none can be started."""
    try:
        return ForkServer(_ZYGOTE, *words, connections=jobs)
    except ServerGoneError:
        return None
