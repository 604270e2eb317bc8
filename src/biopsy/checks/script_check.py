"""Checks that are a Python script: its own interpreter is kept warm, with all imported that the script needs.

A fork is not quite a process: docs/explanation/warm-scripts.md says what differs. So no fork is believed before one has
said of a model what a process has said of it, and again when the server has imported more; from then on, one that
does not end by itself, or dies of a signal, is asked again as a process.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Evidence
from biopsy.checks.python_script import PythonScript
from biopsy.checks.script_trust import Known, difference, digest
from biopsy.checks.served import ServedCheck
from biopsy.filesystem.plain_file import FileState, state_at
from biopsy.isolation.fork_server import ForkServer, ServerGoneError
from biopsy.isolation.process import IN_ORDER
from biopsy.isolation.reaper import VERDICT_VARIABLE
from biopsy.isolation.script_server import script_request, start_script_server
from biopsy.isolation.watch import Ended, Stop

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
    def _is_believed(self) -> bool:
        return self._believed_generation is not None

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
            return self._as_process(candidate, stop)
        if self._states() != self._seen:
            remark = self._refuse(server, f"{self._script.file_name} {_CHANGED}")
            return replace(self._as_process(candidate, stop), remark=remark)
        if not self._is_believed and self._comparing.acquire(timeout=_SECONDS_TO_COMPARE):
            try:
                if not self._is_believed:
                    return self._compared(server, candidate, stop)
            finally:
                self._comparing.release()
        warm = self._believed(server, candidate, stop) if self._is_believed else None
        return warm or self._as_process(candidate, stop)

    def _compared(self, server: ForkServer, candidate: Path, stop: Stop | None) -> Evidence:
        """What the script says, and see whether a fork says the same as a process."""
        model = digest(candidate)
        known = self._known
        if known is not None and known.model == model:
            warm, remark = self._agreeing(server, known, candidate, stop)
            return warm or replace(self._as_process(candidate, stop), remark=remark)
        evidence = self._as_process(candidate, stop)
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
        return warm if generation == self._believed_generation else self._believed_anew(server, warm, generation, stop)

    def _believed_anew(self, server: ForkServer, warm: Evidence, generation: int, stop: Stop | None) -> Evidence:
        """What a process says of the candidate of the first fork that found more loaded: it is to be the same."""
        evidence = self._as_process(Path(warm.candidate), stop)
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
            request = script_request(argv, [*self._script.before, *argv], {VERDICT_VARIABLE: str(told)})
            return server.run(request, lambda: self.limits, stop, begun=generations.append)

        try:
            evidence = self._evidence(candidate, stop, run) if server.is_warm(patience) else None
        except ServerGoneError:
            self._lose(server)
            return None, 0
        return evidence, generations[-1]

    def _as_process(self, candidate: Path, stop: Stop | None) -> Evidence:
        return self._evidence(candidate, stop, self._run)

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
