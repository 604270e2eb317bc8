"""Child processes that are commands: each leads a session of its own, sees only certain environment variables, and is
registered so that it ends with this process.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TypeVar

from biopsy import errors
from biopsy.processes import cleanup
from biopsy.processes.forks import FORK_VARIABLE, START_VARIABLE, UNMARKED, end_group, keeps_processes, sacrifice
from biopsy.processes.reaper import Moment, end_marked
from biopsy.processes.watch import KEPT_OUTPUT, Ended, Limits, Pipe, Stop, attend, lets_processes_stay, readable

IN_ORDER = {"PYTHONUNBUFFERED": "1"}
"""Keeps the output of Python in order, as on a terminal; else a traceback may come before earlier output."""

_LAST_WAIT = 1.0  # seconds to wait after SIGKILL


class CannotStartError(errors.BiopsyError):
    """A command could not be started; ``reason`` is the system's error."""

    def __init__(self, reason: OSError | ValueError) -> None:
        super().__init__(f"a process could not be started: {reason}")
        self.reason = reason


class Process:
    """A process that leads a session of its own. Its group is killed when this process ends, at the latest.

    ``stdin``, ``stdout`` and ``stderr`` are as for Popen; the process inherits ``descriptors``, too. ``environment`` is
    added to that of this process; None removes a variable. ``patient``: it gets time to clean up when it is to end.
    ``folder`` is its current folder, by default ours.

    Raises CannotStartError.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        folder: Path | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.DEVNULL,
        stderr: int = subprocess.DEVNULL,
        environment: Mapping[str, str | None] | None = None,
        descriptors: Sequence[int] = (),
        patient: bool = True,
    ) -> None:
        self.patient = patient
        changes, mark = dict(environment or {}), ""
        try:
            cleanup.start()
            if START_VARIABLE not in changes:  # a check has another mark, and may look at its environment
                changes[START_VARIABLE] = os.urandom(8).hex()
                mark = f"{START_VARIABLE}={changes[START_VARIABLE]}"
                cleanup.register("marked", mark)  # for the case that we are killed before its number is registered
            with _interruptible():
                self._popen = subprocess.Popen(
                    words,
                    cwd=folder,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    env={name: value for name, value in {**os.environ, **changes}.items() if value is not None},
                    pass_fds=descriptors,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            cleanup.unregister("marked", mark)
            raise CannotStartError(error) from error
        self.pid = self._popen.pid
        self._entry = cleanup.group(self.pid)
        cleanup.register(*self._entry)
        cleanup.unregister("marked", mark)
        self._end: int | None = None
        try:
            self._end = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        except OSError as error:  # without a pidfd it could not be watched
            self._ended()
            raise CannotStartError(error) from error
        sacrifice(self.pid)

    @property
    def streams(self) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
        """Our ends of its three streams, all of which must be ``subprocess.PIPE``."""
        stdin, stdout, stderr = self._popen.stdin, self._popen.stdout, self._popen.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        return stdin, stdout, stderr

    def fileno(self) -> int | None:
        """A descriptor that is readable once it has ended; None on a platform without pidfd."""
        return self._end

    def status(self) -> int | None:
        """Its status if it has ended, else None. Processes left in its group are ended first, unless they are kept.

        Only then may its number be given to another process.
        """
        if self._popen.returncode is not None:
            return self._popen.returncode
        has_ended = self._popen.poll() is not None if self._end is None else bool(readable([self._end], 0))
        return self._ended(by_itself=True) if has_ended else None

    def wait(self, seconds: float) -> int | None:
        """Its status once it has ended; None after these seconds."""
        if self._end is not None:
            readable([self._end], seconds)
        elif self._popen.returncode is None:
            try:
                self._popen.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            return self._ended(by_itself=True)
        return self.status()

    def kill(self) -> int:
        """Kill it and its group; returns its status once it has ended."""
        return self._ended() if self._popen.returncode is None else self._popen.returncode

    def _ended(self, *, by_itself: bool = False) -> int:
        if not (by_itself and keeps_processes()):
            end_group(self.pid)
        cleanup.unregister(*self._entry)
        return self._popen.wait()

    def close(self) -> None:
        """Close our descriptor of the process. If it still runs, it is killed when this process ends."""
        self.status()  # takes it off the list if it has ended
        if self._end is not None:
            os.close(self._end)
            self._end = None


@contextmanager
def _interruptible() -> Iterator[None]:
    """Unblock SIGINT meanwhile, if this thread blocks it, as Ray does in its processes.

    A program inherits blocked signals: a check that ends another program by SIGINT would wait for ever.
    """
    is_blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if is_blocked:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if is_blocked:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


class PrintingProcess:
    """A process that prints into a pipe of ours, and is later watched to its end or killed. Raises CannotStartError."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        folder: Path | None = None,
        environment: Mapping[str, str | None] | None = None,
        descriptors: Sequence[int] = (),
        patient: bool = True,
    ) -> None:
        self._pipe = pipe = Pipe()
        ordered = {**IN_ORDER, **os.environ, **(environment or {})}
        streams = {"stdout": pipe.writing, "stderr": pipe.writing}
        try:
            self.process = Process(
                words, folder=folder, **streams, environment=ordered, descriptors=descriptors, patient=patient
            )
        except BaseException:
            pipe.close()
            raise
        pipe.close_writing()

    def watched(self, limits: Callable[[], Limits], stop: Stop | None = None, *, kept: int = KEPT_OUTPUT) -> Ended:
        """Watch it to its end; see ``attend``. Raises StillRunningError."""
        try:
            return attend(self.process, self._pipe.reading, limits, stop, kept=kept)
        finally:
            self.process.wait(_LAST_WAIT)
            self.process.close()
            self._pipe.close()

    def end(self) -> None:
        """Kill it and its group."""
        self.process.kill()
        self.process.close()
        self._pipe.close()


_EndedOrNot = TypeVar("_EndedOrNot", bound="Ended | None")


def run_marked(mark: str, run: Callable[[], _EndedOrNot]) -> _EndedOrNot:
    """Run something, then end all processes with its mark, whatever session they are in."""
    begun, ended, left = Moment(), None, set[int]()
    cleanup.register("marked", mark)
    try:
        ended = run()
    finally:
        if not lets_processes_stay(ended):
            left = end_marked([mark], begun.younger)
        cleanup.unregister("marked", mark)
    return ended if ended is None or not left else replace(ended, left=ended.left + len(left))


def run_with_own_mark(run: Callable[[str], _EndedOrNot]) -> _EndedOrNot:
    """``run_marked`` with a new mark, for a process that was started before; see ``forks.carry_mark``."""
    mark = os.urandom(len(UNMARKED) // 2).hex()
    return run_marked(f"{FORK_VARIABLE}={mark}", lambda: run(mark))


def run(
    words: Sequence[str],
    limits: Callable[[], Limits],
    stop: Stop | None = None,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str | None] | None = None,
    descriptors: Sequence[int] = (),
    kept: int = KEPT_OUTPUT,
    patient: bool = True,
) -> Ended:
    """Run a command to its end; see ``attend`` for the limits, and ``Process`` for the rest.

    Raises CannotStartError and StillRunningError.
    """
    process = PrintingProcess(words, folder=folder, environment=environment, descriptors=descriptors, patient=patient)
    return process.watched(limits, stop, kept=kept)


_HARMLESS = frozenset({
    "PIP_CACHE_DIR", "PIP_DEFAULT_TIMEOUT", "PIP_KEYRING_PROVIDER", "PIP_RETRIES", "PIP_TIMEOUT",
    "UV_CACHE_DIR", "UV_HTTP_RETRIES", "UV_HTTP_TIMEOUT", "UV_KEYRING_PROVIDER", "UV_LINK_MODE", "UV_OFFLINE",
})  # fmt: skip
_OTHERS = ("VIRTUAL_ENV", "CONDA_PREFIX")


def isolating_variables() -> dict[str, str | None]:
    """Changes of the environment, for ``Process``, so that another environment's Python uses only its own packages.

    They remove PYTHONPATH and settings of pip and uv, except harmless ones and names and passwords for indexes.
    """
    changes: dict[str, str | None] = {}
    for name in os.environ:
        kept = name in _HARMLESS or (name.startswith("UV_INDEX_") and name.endswith(("_USERNAME", "_PASSWORD")))
        if not kept and (name.startswith(("PYTHON", "PIP_", "UV_")) or name in _OTHERS):
            changes[name] = None
    return changes
