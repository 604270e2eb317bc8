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
from biopsy.checks.warming import Warming
from biopsy.isolation.fork_server import ForkServer, ServerGoneError
from biopsy.isolation.reaper import VERDICT_VARIABLE
from biopsy.isolation.watch import Ended, Stop


class WarmCheck(ServedCheck):
    """A command that is our own ``run``. What has ``begun`` for these words before is ended with this."""

    def __init__(self, cold: CommandCheck, jobs: int = 1, begun: Warming | None = None) -> None:
        super().__init__(cold, jobs)
        self._server = None if begun is None else begun.zygote
        self._cold_start = ColdStart(None if begun is None else begun.cold)

    @property
    def served_by(self) -> str:
        """The process that has loaded the engines."""
        return "a process that has loaded the engines"

    def _started_server(self) -> ForkServer:
        begun = warming.started(self.words, self._jobs)
        self._cold_start.offer(begun.cold)
        return begun.zygote

    def _with(self, command: CommandLine) -> CommandCheck:
        """A check of other words that is served by the same zygote."""
        check = WarmCheck(super()._with(command), self._jobs)
        check._server, check._given_up, check._starting = self._server, self._given_up, self._starting
        check._cold_start = self._cold_start
        return check

    def cold(self) -> CommandCheck:
        """The same check in a process of its own."""
        return ColdCheck(super().cold(), self._cold_start)

    def foresee_cold(self) -> None:
        """Have the process of the next check of ``cold`` load what it needs, and wait."""
        self._cold_start.foresee(self.words)

    def close(self) -> None:
        """End the zygote, and a process that waits for a cold check."""
        super().close()  # first: a start that is under way may still offer such a process
        self._cold_start.close()

    def _run(self, words: list[str], told: Path, stop: Stop | None) -> Ended:
        self.start()
        zygote = self._server
        if zygote is not None:
            request = {"words": words, VERDICT_VARIABLE: str(told)}
            try:
                ended = zygote.run(request, lambda: self.limits, stop)
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
    begun: Warming | None = None,
) -> CommandCheck:
    """The check that a command makes: warm if it is our own ``run``, or a Python script.

    What has ``begun`` for these words before is given, if anything has.
    """
    cold = CommandCheck(words, default_name, timeout, memory)
    if warming.serves(words):
        return WarmCheck(cold, jobs, begun)
    script = python_script(words, default_name)
    return cold if script is None else ScriptCheck(cold, script, jobs)
