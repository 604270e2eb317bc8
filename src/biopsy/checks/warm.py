"""Checks that are our own ``run``, made in forks of one warm process, the zygote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from biopsy.checks import warming
from biopsy.checks.cold_start import ColdCheck, ColdStart
from biopsy.checks.command import CommandCheck, verdict_of
from biopsy.checks.command_line import CommandLine
from biopsy.checks.python_script import python_script
from biopsy.checks.script_check import ScriptCheck
from biopsy.checks.served import ServedCheck
from biopsy.isolation.cleanup import VERDICT_VARIABLE
from biopsy.isolation.fork_server import ForkServer, ServerGoneError
from biopsy.isolation.watch import Ended, Stop


class WarmCheck(ServedCheck):
    """A command that is our own ``run``. ``zygote`` was started for these words before, and is ended with this."""

    def __init__(
        self,
        words: Sequence[str],
        default_name: str,
        timeout: float | None = None,
        memory: int | None = None,
        jobs: int = 1,
        zygote: ForkServer | None = None,
    ) -> None:
        super().__init__(words, default_name, timeout, memory, jobs)
        self._server = zygote
        self._cold_start = ColdStart()

    def _started_server(self) -> ForkServer:
        return warming.started(self.words, self._jobs)

    def _with(self, command: CommandLine) -> CommandCheck:
        """A check of other words that is served by the same zygote."""
        check = WarmCheck(command.words, self.default_name, self.timeout, self.memory, self._jobs)
        check._server, check._given_up, check._starting = self._server, self._given_up, self._starting
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
        super().close()

    def _run(self, words: list[str], told: Path, stop: Stop | None) -> Ended:
        self.start()
        zygote = self._server
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


def command_check(
    words: Sequence[str],
    default_name: str,
    timeout: float | None = None,
    memory: int | None = None,
    jobs: int = 1,
    zygote: ForkServer | None = None,
) -> CommandCheck:
    """The check that a command makes: warm if it is our own ``run``, or a Python script.

    A ``zygote`` is given if one was started for these words before.
    """
    if warming.serves(words):
        return WarmCheck(words, default_name, timeout, memory, jobs, zygote)
    if python_script(words, default_name) is not None:
        return ScriptCheck(words, default_name, timeout, memory, jobs)
    return CommandCheck(words, default_name, timeout, memory)
