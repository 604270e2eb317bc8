"""Checks that are our own ``run``, made in forks of one warm process.

A cold process pays for its imports and for reading inputs and golden values again in every check. Here one process,
the zygote, pays once; each check is a fork of it. What the check prints and how it ends are the same either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from biopsy.checks.command import CommandCheck, verdict_of
from biopsy.checks.command_line import CommandLine, OwnRun, parse
from biopsy.checks.python_script import python_script
from biopsy.checks.script_check import ScriptCheck
from biopsy.checks.served import ServedCheck
from biopsy.isolation.cleanup import VERDICT_VARIABLE
from biopsy.isolation.fork_server import ForkServer, ServerGoneError
from biopsy.isolation.interpreter import own_python
from biopsy.isolation.watch import Ended, Stop

_ZYGOTE = "biopsy.cli.zygote"
"""It is named, not imported: the command line stands above this layer."""


class WarmCheck(ServedCheck):
    """A command that is our own ``run``."""

    def _started_server(self) -> ForkServer:
        return ForkServer([*own_python(_ZYGOTE), *self.words], connections=self._jobs)

    def _with(self, command: CommandLine) -> CommandCheck:
        """A check of other words that is served by the same zygote."""
        check = WarmCheck(command.words, self.default_name, self.timeout, self.memory, self._jobs)
        check._server, check._given_up, check._starting = self._server, self._given_up, self._starting
        return check

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
) -> CommandCheck:
    """The check that a command makes: warm if it is our own ``run``, or a Python script."""
    command = parse(words)
    if isinstance(command, OwnRun) and command.is_this_installation:
        return WarmCheck(words, default_name, timeout, memory, jobs)
    if python_script(words, default_name) is not None:
        return ScriptCheck(words, default_name, timeout, memory, jobs)
    return CommandCheck(words, default_name, timeout, memory)
