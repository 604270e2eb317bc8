"""Cold checks of our own ``run``: the process of one may begin to load before it is asked for.

It is a process of its own all the same, which has seen no candidate. Until it is told its words it opens neither the
model nor a file that they name, and its limits count from then on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from biopsy.checks.command import CommandCheck, verdict_of
from biopsy.checks.command_line import CommandLine
from biopsy.isolation.cleanup import VERDICT_VARIABLE
from biopsy.isolation.process import CannotStartError
from biopsy.isolation.waiting import WaitingProcess
from biopsy.isolation.watch import Ended, Limits, Stop

_PROCESS = "biopsy.cli.cold_start"
"""It is named, not imported: the command line stands above this layer."""


class ColdStart:
    """The process of the next cold check, once it was foreseen; one for all checks of the same command."""

    def __init__(self) -> None:
        self._waiting: WaitingProcess | None = None
        self._was_foreseen = False
        self._lock = threading.Lock()

    def foresee(self, words: Sequence[str]) -> None:
        """Start the process of the next check of such words, unless that was done once before."""
        with self._lock:
            if not self._was_foreseen:
                self._was_foreseen = True
                try:
                    self._waiting = WaitingProcess(_PROCESS, words)
                except CannotStartError:
                    return  # the check will tell, if it cannot be started then either

    def run(
        self, words: Sequence[str], told: Path, limits: Callable[[], Limits], stop: Stop | None = None
    ) -> Ended | None:
        """Run a check in the process that waits; None if there is none, or if it died before it looked at the model."""
        waiting = self._taken()
        if waiting is None:
            return None
        ended = waiting.run({"words": words, VERDICT_VARIABLE: str(told)}, limits, stop)
        if ended is None or (ended.cause == "itself" and not verdict_of(told, ended).has_looked):
            told.unlink(missing_ok=True)
            return None
        return ended

    def close(self) -> None:
        """End the process that waits."""
        waiting = self._taken()
        if waiting is not None:
            waiting.close()

    def _taken(self) -> WaitingProcess | None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
            return waiting


class ColdCheck(CommandCheck):
    """A command that is our own ``run``, each in a process of its own, of which the first may have begun to load."""

    def __init__(
        self,
        words: Sequence[str],
        default_name: str,
        timeout: float | None,
        memory: int | None,
        cold_start: ColdStart,
    ) -> None:
        super().__init__(words, default_name, timeout, memory)
        self._cold_start = cold_start

    def __reduce__(self) -> tuple[object, ...]:
        """On another machine, or in another process, nothing has begun to load."""
        return CommandCheck, (self.words, self.default_name, self.timeout, self.memory)

    def close(self) -> None:
        """End the process that waits, if it was not needed."""
        self._cold_start.close()

    def _with(self, command: CommandLine) -> CommandCheck:
        return ColdCheck(command.words, self.default_name, self.timeout, self.memory, self._cold_start)

    def _run(self, words: list[str], told: Path, stop: Stop | None) -> Ended:
        ended = self._cold_start.run(words, told, lambda: self._limits, stop)
        return super()._run(words, told, stop) if ended is None else ended
