"""Starters for warm checks: our own ``run``, or a Python script, run in forks of a process that is loaded once."""

from __future__ import annotations

import hashlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from biopsy.checks.command import CommandCheck, ProcessStarter, verdict_of
from biopsy.checks.command_line import PythonScript, is_served, python_script
from biopsy.checks.judge import same_failure, signature_of, status_text
from biopsy.checks.message import normalised
from biopsy.checks.outcome import Evidence
from biopsy.processes.process import IN_ORDER, CannotStartError
from biopsy.processes.reading import FileState, state_at
from biopsy.processes.reaper import VERDICT_VARIABLE
from biopsy.processes.warm import ZYGOTE, ForkServer, ServerGoneError, WaitingProcess, Warming, start_script_server
from biopsy.processes.watch import Ended, Stop


def command_check(
    words: Sequence[str],
    default_name: str,
    timeout: float | None = None,
    memory: int | None = None,
    jobs: int = 1,
    begun: Warming | None = None,
) -> CommandCheck:
    """The check that a command makes: warm if it is our own ``run`` or a Python script.

    ``jobs`` is how many runs there may be at once. ``begun`` are processes started for these words before, if any.
    """
    starter: ProcessStarter | None = None
    if is_served(words):
        starter = ZygoteStarter(jobs, begun)
    elif script := python_script(words, default_name):
        starter = ScriptStarter(script, jobs)
    return CommandCheck(words, default_name, timeout, memory, starter=starter)


class ForkStarter(ProcessStarter, ABC):
    """Starts runs as forks of one warm process, the server; as processes if there is no server.

    A process pays for its imports, and perhaps for reading its files, again in every run; the server pays once. Output
    and exit status are the same either way. ``jobs`` is how many forks there may be at once.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._server: ForkServer | None = None
        self._lost: list[ForkServer] = []
        self._given_up = False
        self._starting = threading.Lock()

    @property
    def is_served(self) -> bool:
        """Whether there is a server, or one can still be started."""
        return not self._given_up

    @abstractmethod
    def _started_server(self, check: CommandCheck) -> ForkServer:
        """Start the server. Raises ServerGoneError if that is impossible."""

    def warm_up(self, check: CommandCheck) -> None:
        """Begin to start the server, without waiting."""
        with self._starting:
            if self._server is None and not self._given_up:
                try:
                    self._server = self._started_server(check)
                except ServerGoneError:
                    self._given_up = True

    def close(self) -> None:
        """End the server."""
        with self._starting:
            for server in (*self._lost, *([] if self._server is None else [self._server])):
                server.close()
            self._lost, self._server = [], None

    def _lose(self, server: ForkServer) -> None:
        """Go on without the server. Its connections stay open until the end, since other threads may read them."""
        with self._starting:
            self._given_up = True
            server.kill()
            if self._server is server:
                self._server = None
                self._lost.append(server)


class ZygoteStarter(ForkStarter):
    """Starts our own ``run`` as forks of a zygote. It takes over the processes ``begun`` for the command before."""

    served_by = "a process that has loaded the engines"

    def __init__(self, jobs: int = 1, begun: Warming | None = None) -> None:
        super().__init__(jobs)
        self._server = None if begun is None else begun.zygote
        self._cold = PreloadedStarter(None if begun is None else begun.cold)

    def _started_server(self, check: CommandCheck) -> ForkServer:
        begun = Warming.begun(check.words, self._jobs)
        self._cold.offer(begun.cold)
        return begun.zygote

    def cold(self) -> ProcessStarter:
        """A starter of processes, the first of which may have loaded its code ahead."""
        return self._cold

    def foresee_cold(self, words: Sequence[str]) -> None:
        """Let the process of the next run by ``cold`` load what these words need, and wait."""
        self._cold.foresee(words)

    def close(self) -> None:
        """End the zygote, and a process that waits for a cold run."""
        super().close()  # first, because a start under way may still offer such a process
        self._cold.close()

    def run_words(self, check: CommandCheck, words: list[str], verdict_path: Path, stop: Stop | None) -> Ended:
        """Run the words in a fork; in a process if the fork cannot start or dies before it looks at the model."""
        self.warm_up(check)
        zygote = self._server
        if zygote is not None:
            request = {"words": words, VERDICT_VARIABLE: str(verdict_path)}
            try:
                ended = zygote.run(request, lambda: check.limits, stop)
                if ended.cause != "itself" or verdict_of(verdict_path, ended).has_looked:
                    return ended
            except ServerGoneError:
                self._lose(zygote)
            verdict_path.unlink(missing_ok=True)  # the fork may have written it
        return super().run_words(check, words, verdict_path, stop)


# The process of a cold run of our own ``run`` may begin to load before it is needed. It is a separate process all the
# same, and has seen no candidate: until it gets its words, it opens neither the model nor a file that they name, and
# its limits count from then on.

MOST_SECONDS = 30.0
"""Greatest age of a process when it is foreseen: what it has loaded could be out of date later."""


class PreloadedStarter(ProcessStarter):
    """Starts each run as a process of its own, the first of which may have begun to load before.

    ``waiting`` is a process that was started for another purpose too; it is used unless it is too old.
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
        """Let the process of the next run load all that these words need; later calls do nothing."""
        with self._lock:
            if self._was_foreseen:
                return
            self._was_foreseen = True
            if self._waiting is not None and self._waiting.age > MOST_SECONDS:
                self._waiting.close()
                self._waiting = None
            try:
                self._waiting = self._waiting or WaitingProcess(ZYGOTE, ["-1", *words])
            except CannotStartError:
                return  # the check reports it, if it cannot be started then either
            self._waiting.expect()

    def run_words(self, check: CommandCheck, words: list[str], verdict_path: Path, stop: Stop | None) -> Ended:
        """Run the words in the waiting process; in a new one if it cannot or dies before it looks at the model."""
        waiting = self._taken()
        if waiting is not None and not self._was_foreseen and waiting.age > MOST_SECONDS:
            waiting.close()
        elif waiting is not None:
            request = {"words": words, VERDICT_VARIABLE: str(verdict_path)}
            ended = waiting.run(request, lambda: check.limits, stop)
            if ended is not None and (ended.cause != "itself" or verdict_of(verdict_path, ended).has_looked):
                return ended
            verdict_path.unlink(missing_ok=True)
        return super().run_words(check, words, verdict_path, stop)

    def close(self) -> None:
        """End the process that waits."""
        waiting = self._taken()
        if waiting is not None:
            waiting.close()

    def _taken(self) -> WaitingProcess | None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
            return waiting


# A fork of a script's interpreter is not quite a process: docs/explanation/warm-scripts.md says what differs. So no
# fork is believed before one has agreed with a process about a model, and again when the server has imported more.
# After that, a run is repeated as a process if its fork does not end by itself or dies of a signal.

_NO_CANDIDATE = "no-candidate-yet.onnx"
"""The candidate in the words of the server: a library that keeps these words cannot take it for a real one."""

_RUNS_BEFORE_REPEAT = 3
"""After this many runs as processes, each of another model, a fork repeats the last one for the comparison."""

_SECONDS_TO_COMPARE = 1.0
"""How long a run waits while another makes the comparison: as processes, all of them would slow each other down."""


class ScriptStarter(ForkStarter):
    """Starts a Python script as forks of its own interpreter, which has imported what the script needs."""

    served_by = "your script's interpreter"

    def __init__(self, script: PythonScript, jobs: int = 1) -> None:
        super().__init__(jobs)
        self._script = script
        self._seen = self._states()
        self._surroundings = _surroundings()
        self._comparing = threading.Lock()
        self._known: Known | None = None  # the last answer of a process
        self._processes = 0
        self._believed_generation: int | None = None

    def for_other_words(self) -> ProcessStarter:
        """A starter of processes, since the forks know only the present words."""
        return ProcessStarter()

    def cold(self) -> ProcessStarter:
        """A starter that uses no forks."""
        return ProcessStarter()

    def _started_server(self, check: CommandCheck) -> ForkServer:
        self._surroundings = _surroundings()
        words = check.words_for(Path(check.default_name).with_name(_NO_CANDIDATE))
        return start_script_server(words, {**IN_ORDER, **os.environ}, self._jobs)

    def run(self, check: CommandCheck, candidate: Path, stop: Stop | None) -> Evidence:
        """Run the script once, in a fork if forks are believed. Raises CheckError if it cannot be started."""
        self.warm_up(check)
        server = self._server
        if server is None or _surroundings() != self._surroundings:
            return super().run(check, candidate, stop)
        if self._states() != self._seen:
            remark = self._refuse(server, f"{self._script.file_name} or its interpreter has been written to")
            return replace(super().run(check, candidate, stop), remark=remark)
        if self._believed_generation is None and self._comparing.acquire(timeout=_SECONDS_TO_COMPARE):
            try:
                if self._believed_generation is None:
                    return self._compared(check, server, candidate, stop)
            finally:
                self._comparing.release()
        is_believed = self._believed_generation is not None
        warm = self._believed(check, server, candidate, stop) if is_believed else None
        return warm or super().run(check, candidate, stop)

    def _compared(self, check: CommandCheck, server: ForkServer, candidate: Path, stop: Stop | None) -> Evidence:
        """The evidence of a run: if the last process checked the same model, of a fork that is compared with it."""
        model = digest(candidate)
        known = self._known
        if known is not None and known.model == model:
            warm, remark = self._agreeing(check, server, known, candidate, stop)
            return warm or replace(super().run(check, candidate, stop), remark=remark)
        evidence = super().run(check, candidate, stop)
        if _is_cut_short(evidence, stop) or model is None:
            return evidence
        self._known = Known(model, evidence)
        self._processes += 1
        if self._processes < _RUNS_BEFORE_REPEAT or digest(candidate) != model:
            return evidence
        return replace(evidence, remark=self._agreeing(check, server, self._known, candidate, stop)[1])

    def _agreeing(
        self, check: CommandCheck, server: ForkServer, known: Known, candidate: Path, stop: Stop | None
    ) -> tuple[Evidence | None, str]:
        """The evidence of a fork if it agrees with that of a process about the model; else None and a remark."""
        warm, generation = self._forked(check, server, known.evidence.seconds, candidate, stop)
        if warm is None or (stop is not None and stop.is_set):
            return warm, ""
        differs = difference(known.evidence, warm, self._script.file_name)
        if differs:
            return None, self._refuse(server, differs)
        self._believed_generation = generation
        return warm, ""

    def _believed(self, check: CommandCheck, server: ForkServer, candidate: Path, stop: Stop | None) -> Evidence | None:
        """The evidence of a fork; None if the run must be repeated as a process, which may end in another way."""
        assert self._known is not None
        warm, generation = self._forked(check, server, self._known.evidence.seconds, candidate, stop)
        if warm is None or (stop is not None and stop.is_set):
            return warm
        if warm.status < 0 or _is_cut_short(warm, stop):
            return None
        if generation == self._believed_generation:
            return warm
        # This fork is the first for which the server had loaded more: a process must agree with it.
        evidence = super().run(check, Path(warm.candidate), stop)
        if _is_cut_short(evidence, stop):
            return evidence
        differs = difference(evidence, warm, self._script.file_name)
        if differs:
            return replace(evidence, remark=self._refuse(server, differs))
        self._believed_generation = generation
        return evidence

    def _forked(
        self, check: CommandCheck, server: ForkServer, patience: float, candidate: Path, stop: Stop | None
    ) -> tuple[Evidence | None, int]:
        """The evidence of a fork and its generation; no evidence if the server has gone or is not warm in time."""
        generations = [0]

        def run(words: list[str], verdict_path: Path, stop: Stop | None) -> Ended:
            argv = self._script.argv(words)
            # The words that the script sees, those of its process, and additions to its environment.
            environment = {VERDICT_VARIABLE: str(verdict_path)}
            request = {"argv": argv, "orig_argv": [*self._script.before, *argv], "environment": environment}
            return server.run(request, lambda: check.limits, stop, begun=generations.append)

        try:
            evidence = check.evidence(candidate, stop, run) if server.is_warm(patience) else None
        except ServerGoneError:
            self._lose(server)
            return None, 0
        return evidence, generations[-1]

    def _refuse(self, server: ForkServer, why: str) -> str:
        """Stop using forks; returns the remark that says so, or "" if it was made before."""
        already = self._given_up
        self._lose(server)
        return "" if already else f"checks     run cold: {why}"

    def _states(self) -> list[FileState | None]:
        """The states of the script and its interpreter, to see changes."""
        return [state_at(Path(self._script.name)), state_at(self._script.interpreter)]


def _is_cut_short(evidence: Evidence, stop: Stop | None) -> bool:
    return evidence.timed_out or evidence.out_of_memory or (stop is not None and stop.is_set)


def _surroundings() -> tuple[dict[str, str], str]:
    """What a new process would inherit, to compare with what the server has inherited."""
    try:
        return dict(os.environ), os.getcwd()  # noqa: PTH109 -- a word
    except OSError:
        return dict(os.environ), ""


_LARGEST_MODEL = 1 << 28  # bytes; a larger model is not recognized
_BYTES_COMPARED = 1 << 16  # at each end of the output


@dataclass(frozen=True)
class Known:
    """The evidence of a process, and the digest of its model."""

    model: bytes
    evidence: Evidence


def digest(model: Path) -> bytes | None:
    """The SHA-256 of a model file; None if it cannot be read, or is too large to be worth reading."""
    try:
        if not model.is_file() or model.stat().st_size > _LARGEST_MODEL:
            return None
        return hashlib.sha256(model.read_bytes()).digest()
    except OSError:
        return None


def difference(cold: Evidence, warm: Evidence, name: str) -> str:
    """How a fork of the script ``name`` differs from a process, in words; "" if it does not."""
    if (warm.status, warm.timed_out, warm.out_of_memory) != (cold.status, False, False):
        how = "not in time" if warm.timed_out else f"with {status_text(warm.status)}"
        return f"a warm run of {name} ended {how}, a process of its own with {status_text(cold.status)}"
    same = same_failure(signature_of(cold), signature_of(warm), "message")
    if not same or cold.verdict.outcome != warm.verdict.outcome or list(_lines(cold)) != list(_lines(warm)):
        return f"a warm run of {name} said something else than a process of its own"
    return ""


def _lines(evidence: Evidence) -> Iterator[str]:
    """The printed lines, without what may differ between any two runs."""
    for part in (evidence.output[:_BYTES_COMPARED], evidence.output[_BYTES_COMPARED:][-_BYTES_COMPARED:]):
        for line in part.decode("utf-8", "replace").splitlines():
            yield normalised(line.replace(evidence.candidate, "{}") if evidence.candidate else line)
