"""Checks that are our own ``run``, made in forks of one warm process.

A cold process pays for its imports and for reading inputs and golden values again in every check. Here one process,
the zygote, pays once; each check is a fork of it. What the check prints and how it ends are the same either way.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from biopsy.checks import warming
from biopsy.checks.cold_start import ColdCheck, ColdStart
from biopsy.checks.command import CommandCheck, verdict_of
from biopsy.checks.command_line import CommandLine
from biopsy.isolation.cleanup import VERDICT_VARIABLE
from biopsy.isolation.fork_server import ForkServer, ServerGoneError
from biopsy.isolation.watch import Ended, Stop


class WarmCheck(CommandCheck):
    """A command that is our own ``run``; falls back to cold processes where there is no fork or no zygote.

    ``jobs`` is how many of them may run at once. ``zygote`` was started for these words before, and is ended with this.
    """

    def __init__(
        self,
        words: Sequence[str],
        default_name: str,
        timeout: float | None = None,
        memory: int | None = None,
        jobs: int = 1,
        zygote: ForkServer | None = None,
    ) -> None:
        super().__init__(words, default_name, timeout, memory)
        self._jobs = jobs
        self._zygote = zygote
        self._lost: list[ForkServer] = []
        self._given_up = not hasattr(os, "fork")
        self._starting = threading.Lock()
        self._cold_start = ColdStart()

    def __reduce__(self) -> tuple[object, ...]:
        """On another machine, or in another process, the check is a cold one: the zygote is here."""
        return CommandCheck, (self.words, self.default_name, self.timeout, self.memory)

    def start(self) -> None:
        """Begin to warm up, and do not wait for it. If no zygote can be started, every check is a cold one."""
        with self._starting:
            if self._zygote is None and not self._given_up:
                self._zygote = warming.begin(self.words, self._jobs)
                self._given_up = self._zygote is None

    def _with(self, command: CommandLine) -> CommandCheck:
        """A check of other words that is served by the same zygote."""
        check = WarmCheck(command.words, self.default_name, self.timeout, self.memory, self._jobs)
        check._zygote, check._given_up, check._starting = self._zygote, self._given_up, self._starting
        check._cold_start = self._cold_start
        return check

    def cold(self) -> CommandCheck:
        """The same check in a process of its own."""
        return ColdCheck(self.words, self.default_name, self.timeout, self.memory, self._cold_start)

    def foresee_cold(self) -> None:
        """Start the process of the next check of ``cold``, which loads what it needs and waits."""
        self._cold_start.foresee(self.words)

    def close(self) -> None:
        """End the zygote, and a process that waits for a cold check."""
        self._cold_start.close()
        with self._starting:
            for zygote in (*self._lost, *([] if self._zygote is None else [self._zygote])):
                zygote.close()
            self._lost, self._zygote = [], None

    def _run(self, words: list[str], told: Path, stop: Stop | None) -> Ended:
        self.start()
        zygote = self._zygote
        if zygote is not None:
            request = {"words": words, VERDICT_VARIABLE: str(told)}
            try:
                ended = zygote.run(request, lambda: self._limits, stop)
                if ended.cause != "itself" or verdict_of(told, ended).has_looked:
                    return ended
            except ServerGoneError:
                self._lose(zygote)
            # A fork that died before it looked at the model says nothing of that: a process of its own is asked.
            told.unlink(missing_ok=True)  # what the fork may have said of itself is not what this run will say
        return super()._run(words, told, stop)

    def _lose(self, zygote: ForkServer) -> None:
        """Go on without it. Other threads may still listen to it: what they listen to stays open until the end."""
        with self._starting:
            self._given_up = True
            zygote.kill()
            if self._zygote is zygote:
                self._zygote = None
                self._lost.append(zygote)


def command_check(
    words: Sequence[str],
    default_name: str,
    timeout: float | None = None,
    memory: int | None = None,
    jobs: int = 1,
    zygote: ForkServer | None = None,
) -> CommandCheck:
    """The check that a command makes: warm if it is our own ``run``, by a ``zygote`` that was started before if any."""
    if warming.serves(words):
        return WarmCheck(words, default_name, timeout, memory, jobs, zygote)
    return CommandCheck(words, default_name, timeout, memory)
