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
from biopsy.isolation.process import CannotStartError
from biopsy.isolation.reaper import VERDICT_VARIABLE
from biopsy.isolation.waiting import WaitingProcess
from biopsy.isolation.watch import Ended, Limits, Stop

_PROCESS = "biopsy.cli.cold_start"
"""It is named, not imported: the command line stands above this layer."""

MOST_SECONDS = 30.0
"""How long before it is foreseen the process may have been started: what it has loaded could be out of date."""


class ColdStart:
    """The process of the next cold check, once it was foreseen; one for all checks of the same command.

    ``waiting`` was started before for another purpose too, and is taken for it if that was not long ago.
    """

    def __init__(self, waiting: WaitingProcess | None = None) -> None:
        self._waiting = waiting
        self._was_foreseen = False
        self._lock = threading.Lock()

    def offer(self, waiting: WaitingProcess) -> None:
        """Take a process that was started for another purpose too, unless one was foreseen or offered before."""
        with self._lock:
            if self._was_foreseen or self._waiting is not None:
                waiting.close()
            else:
                self._waiting = waiting

    def foresee(self, words: Sequence[str]) -> None:
        """Have the process of the next check of such words load all that it can, unless that was done once before."""
        with self._lock:
            if self._was_foreseen:
                return
            self._was_foreseen = True
            if self._waiting is not None and self._waiting.age > MOST_SECONDS:
                self._waiting.close()
                self._waiting = None
            try:
                self._waiting = self._waiting or WaitingProcess(_PROCESS, words)
            except CannotStartError:
                return  # the check will tell, if it cannot be started then either
            self._waiting.expect()

    def run(
        self, words: Sequence[str], told: Path, limits: Callable[[], Limits], stop: Stop | None = None
    ) -> Ended | None:
        """Run a check in the process that waits; None if there is none, or if it died before it looked at the model."""
        waiting = self._for_a_check()
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

    def _for_a_check(self) -> WaitingProcess | None:
        """The process that waits, if it is young or was foreseen; else that is ended."""
        waiting = self._taken()
        if waiting is None or self._was_foreseen or waiting.age <= MOST_SECONDS:
            return waiting
        waiting.close()
        return None


class ColdCheck(CommandCheck):
    """A command that is our own ``run``, each in a process of its own, of which the first may have begun to load."""

    def __init__(self, check: CommandCheck, cold_start: ColdStart) -> None:
        super().__init__(*check.given)
        self._cold_start = cold_start

    def __reduce__(self) -> tuple[object, ...]:
        """On another machine, or in another process, nothing has begun to load."""
        return CommandCheck, self.given

    def close(self) -> None:
        """End the process that waits, if it was not needed."""
        self._cold_start.close()

    def _with(self, command: CommandLine) -> CommandCheck:
        return ColdCheck(super()._with(command), self._cold_start)

    def _run(self, words: list[str], told: Path, stop: Stop | None) -> Ended:
        ended = self._cold_start.run(words, told, lambda: self.limits, stop)
        return super()._run(words, told, stop) if ended is None else ended
