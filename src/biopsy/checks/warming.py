"""The start of the warm process behind checks of some words. It costs few imports: it comes before all others."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.checks.command_line import OwnRun, parse
from biopsy.isolation.fork_server import ForkServer
from biopsy.isolation.interpreter import own_python

_ZYGOTE = "biopsy.cli.zygote"
"""It is named, not imported: the command line stands above this layer."""


def serves(words: Sequence[str]) -> bool:
    """Whether checks of these words are made in forks of a warm process: those that are our own ``run``."""
    command = parse(words)
    return isinstance(command, OwnRun) and command.is_this_installation


def started(words: Sequence[str], jobs: int) -> ForkServer:
    """The warm process for as many checks at once, which is not waited for.

    Raises ServerGoneError where none can be started.
    """
    return ForkServer([*own_python(_ZYGOTE), *words], connections=jobs)
