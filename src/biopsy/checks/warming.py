"""The start of the warm process behind checks of some words. It costs few imports: it comes before all others."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from biopsy.checks.command_line import OwnRun, parse
from biopsy.processes.warm import ForkOfWaiting, ForkServer, WaitingProcess

_ZYGOTE = "biopsy.cli.zygote"
"""It is named, not imported: the command line stands above this layer."""


@dataclass(frozen=True, kw_only=True)
class Warming:
    """What was started for checks of some words.

    ``cold`` loads the code of a check, and waits to be one: a process of its own. ``zygote`` is a fork of it, made
    before it has opened an engine, a model or a file that the words name; it does all that, and is forked for each
    check.
    """

    zygote: ForkServer
    cold: WaitingProcess

    def close(self) -> None:
        """End both: they are not needed."""
        self.cold.close()
        self.zygote.close()


def serves(words: Sequence[str]) -> bool:
    """Whether checks of these words are made in forks of a warm process: those that are our own ``run``."""
    command = parse(words)
    return isinstance(command, OwnRun) and command.is_this_installation


def started(words: Sequence[str], jobs: int) -> Warming:
    """The processes for as many checks at once, which are not waited for.

    Raises ServerGoneError where none can be started.
    """
    made: list[WaitingProcess] = []

    def start(
        words: Sequence[str], *, environment: Mapping[str, str], descriptors: Sequence[int], **_: int
    ) -> ForkOfWaiting:
        lifeline, theirs = socket.socketpair()
        try:
            cold = WaitingProcess(
                _ZYGOTE,
                [str(theirs.fileno()), *words],
                environment=environment,
                descriptors=[*descriptors, theirs.fileno()],
            )
        except BaseException:
            lifeline.close()
            raise
        finally:
            theirs.close()
        made.append(cold)
        return ForkOfWaiting(cold, lifeline)

    zygote = ForkServer(words, connections=jobs, start=start)
    return Warming(zygote=zygote, cold=made[0])
