"""Warm checks: our own ``run``, or a Python script, made in forks of a process that has loaded everything, as long
as these can be trusted.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from biopsy.checks.command import CommandCheck, ServedCheck, verdict_of
from biopsy.checks.command_line import CommandLine, PythonScript, is_served, python_script
from biopsy.checks.judge import same_failure, signature_of, status_text
from biopsy.checks.message import normalised
from biopsy.checks.outcome import Evidence
from biopsy.processes.process import IN_ORDER, CannotStartError
from biopsy.processes.reading import FileState, state_at
from biopsy.processes.reaper import VERDICT_VARIABLE
from biopsy.processes.warm import (
    ForkServer,
    ServerGoneError,
    WaitingProcess,
    Warming,
    start_script_server,
)
from biopsy.processes.watch import Ended, Limits, Stop


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
        begun = Warming.begun(self.words, self._jobs)
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
    if is_served(words):
        return WarmCheck(cold, jobs, begun)
    script = python_script(words, default_name)
    return cold if script is None else ScriptCheck(cold, script, jobs)


# Cold checks of our own ``run``: the process of one may begin to load before it is asked for.
#
# It is a process of its own all the same, which has seen no candidate. Until it is told its words it opens neither
# the model nor a file that they name, and its limits count from then on.

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
        waiting = self._taken()
        if waiting is None:
            return None
        if not self._was_foreseen and waiting.age > MOST_SECONDS:
            waiting.close()
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


# Checks that are a Python script: its own interpreter is kept warm, with all imported that the script needs.
#
# A fork is not quite a process: docs/explanation/warm-scripts.md says what differs. So no fork is believed before one
# has said of a model what a process has said of it, and again when the server has imported more; from then on, one
# that does not end by itself, or dies of a signal, is asked again as a process.

_NO_CANDIDATE = "no-candidate-yet.onnx"
"""What the server finds in its words: a library that keeps what it finds there cannot take it for a candidate."""

_WAITS_NO_MORE = 3
"""Processes after which a model is checked once more for the comparison, if none was checked twice by then."""

_CHANGED = "or its interpreter has been written to"

_SECONDS_TO_COMPARE = 1.0
"""How long a run waits for others to end the comparison: as processes, all would take each other's time."""


class ScriptCheck(ServedCheck):
    """A command that runs a Python script; ``script`` is what ``python_script`` makes of its words."""

    def __init__(self, cold: CommandCheck, script: PythonScript, jobs: int = 1) -> None:
        super().__init__(cold, jobs)
        self._script = script
        self._seen = self._states()
        self._surroundings = _surroundings()
        self._comparing = threading.Lock()
        self._known: Known | None = None  # what a process said last
        self._processes = 0
        self._believed_generation: int | None = None

    @property
    def served_by(self) -> str:
        """The interpreter that has imported what the script needs."""
        return "your script's interpreter"

    def _started_server(self) -> ForkServer:
        self._surroundings = _surroundings()
        words = self.words_for(Path(self.default_name).with_name(_NO_CANDIDATE))
        return start_script_server(words, {**IN_ORDER, **os.environ}, self._jobs)

    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Run the script once, in a fork if forks are believed. Raises CheckError if it cannot be started."""
        self.start()
        server = self._server
        if server is None or _surroundings() != self._surroundings:
            return super().run(candidate, stop)
        if self._states() != self._seen:
            remark = self._refuse(server, f"{self._script.file_name} {_CHANGED}")
            return replace(super().run(candidate, stop), remark=remark)
        if self._believed_generation is None and self._comparing.acquire(timeout=_SECONDS_TO_COMPARE):
            try:
                if self._believed_generation is None:
                    return self._compared(server, candidate, stop)
            finally:
                self._comparing.release()
        warm = self._believed(server, candidate, stop) if self._believed_generation is not None else None
        return warm or super().run(candidate, stop)

    def _compared(self, server: ForkServer, candidate: Path, stop: Stop | None) -> Evidence:
        """What the script says, and see whether a fork says the same as a process."""
        model = digest(candidate)
        known = self._known
        if known is not None and known.model == model:
            warm, remark = self._agreeing(server, known, candidate, stop)
            return warm or replace(super().run(candidate, stop), remark=remark)
        evidence = super().run(candidate, stop)
        if evidence.timed_out or evidence.out_of_memory or (stop is not None and stop.is_set) or model is None:
            return evidence
        self._known = Known(model, evidence)
        self._processes += 1
        if self._processes < _WAITS_NO_MORE or digest(candidate) != model:
            return evidence
        return replace(evidence, remark=self._agreeing(server, self._known, candidate, stop)[1])

    def _agreeing(
        self, server: ForkServer, known: Known, candidate: Path, stop: Stop | None
    ) -> tuple[Evidence | None, str]:
        """What a fork says of a model, if a process has said the same; what is to be remarked if not."""
        warm, generation = self._forked(server, known.evidence.seconds, candidate, stop)
        if warm is None or (stop is not None and stop.is_set):
            return warm, ""
        differs = difference(known.evidence, warm, self._script.file_name)
        if differs:
            return None, self._refuse(server, differs)
        self._believed_generation = generation
        return warm, ""

    def _believed(self, server: ForkServer, candidate: Path, stop: Stop | None) -> Evidence | None:
        """What a fork says, unless it ended in a way in which a process may not have ended."""
        assert self._known is not None
        warm, generation = self._forked(server, self._known.evidence.seconds, candidate, stop)
        if warm is None or (stop is not None and stop.is_set):
            return warm
        if warm.status < 0 or warm.timed_out or warm.out_of_memory:
            return None
        if generation == self._believed_generation:
            return warm
        # The first fork that found more loaded: a process is to say the same of its candidate.
        evidence = super().run(Path(warm.candidate), stop)
        if evidence.timed_out or evidence.out_of_memory or (stop is not None and stop.is_set):
            return evidence
        differs = difference(evidence, warm, self._script.file_name)
        if differs:
            return replace(evidence, remark=self._refuse(server, differs))
        self._believed_generation = generation
        return evidence

    def _forked(
        self, server: ForkServer, patience: float, candidate: Path, stop: Stop | None
    ) -> tuple[Evidence | None, int]:
        """What a fork says, and its generation; None if the server has gone, or is not warm in so many seconds."""
        generations = [0]

        def run(words: list[str], told: Path, stop: Stop | None) -> Ended:
            argv = self._script.argv(words)
            # The words that the script sees, those of its process, and what its environment has more.
            environment = {VERDICT_VARIABLE: str(told)}
            request = {"argv": argv, "orig_argv": [*self._script.before, *argv], "environment": environment}
            return server.run(request, lambda: self.limits, stop, begun=generations.append)

        try:
            evidence = self._evidence(candidate, stop, run) if server.is_warm(patience) else None
        except ServerGoneError:
            self._lose(server)
            return None, 0
        return evidence, generations[-1]

    def _refuse(self, server: ForkServer, why: str) -> str:
        """Run no more forks; what is to be remarked of that, once."""
        already = self._given_up
        self._lose(server)
        return "" if already else f"checks     run cold: {why}"

    def _states(self) -> list[FileState | None]:
        """What tells that the script or its interpreter was changed."""
        return [state_at(Path(self._script.name)), state_at(self._script.interpreter)]


def _surroundings() -> tuple[dict[str, str], str]:
    """What a process would find, and the server has found when it was started."""
    try:
        return dict(os.environ), os.getcwd()  # noqa: PTH109 -- a word
    except OSError:
        return dict(os.environ), ""


# Whether the fork of a warm process has said of a model what a process of its own has said of it.

_LARGEST = 1 << 28  # bytes of a model that are read to see that it is the same
_COMPARED = 1 << 16  # bytes of each end of what was printed


@dataclass(frozen=True)
class Known:
    """What a process said of a model, which is known by its digest."""

    model: bytes
    evidence: Evidence


def digest(model: Path) -> bytes | None:
    """Tells a model from others; None if it cannot be read, or is so large that reading it is no bargain."""
    try:
        if not model.is_file() or model.stat().st_size > _LARGEST:
            return None
        return hashlib.sha256(model.read_bytes()).digest()
    except OSError:
        return None


def difference(cold: Evidence, warm: Evidence, name: str) -> str:
    """In which way a fork that ran the script of this name has said something else than a process; "" if in none."""
    if (warm.status, warm.timed_out, warm.out_of_memory) != (cold.status, False, False):
        how = "not in time" if warm.timed_out else f"with {status_text(warm.status)}"
        return f"a warm run of {name} ended {how}, a process of its own with {status_text(cold.status)}"
    same = same_failure(signature_of(cold), signature_of(warm), "message")
    if not same or cold.verdict.outcome != warm.verdict.outcome or list(_lines(cold)) != list(_lines(warm)):
        return f"a warm run of {name} said something else than a process of its own"
    return ""


def _lines(evidence: Evidence) -> Iterator[str]:
    """The lines that a script printed, without what may differ between any two runs."""
    for part in (evidence.output[:_COMPARED], evidence.output[_COMPARED:][-_COMPARED:]):
        for line in part.decode("utf-8", "replace").splitlines():
            yield normalised(line.replace(evidence.candidate, "{}") if evidence.candidate else line)
