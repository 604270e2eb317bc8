"""A child process that is a command: started in a session of its own, with the variables that it may see, and
registered, so that it ends with this one.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, TypeVar

from biopsy import errors
from biopsy.processes import cleanup
from biopsy.processes.forks import FORK_VARIABLE, START_VARIABLE, UNMARKED, end_group, keeps_processes, sacrifice
from biopsy.processes.reaper import Moment, end_marked
from biopsy.processes.watch import KEPT_OUTPUT, Ended, Limits, Pipe, Stop, attend, lets_processes_stay, readable

IN_ORDER = {"PYTHONUNBUFFERED": "1"}
"""What Python prints comes in its order, as on a terminal: or a traceback is followed by what was printed before it."""

_LAST_WAIT = 1.0  # seconds for one that was killed just now


class CannotStartError(errors.BiopsyError):
    """A command could not be started; ``reason`` is what the system said."""

    def __init__(self, reason: OSError | ValueError) -> None:
        super().__init__(f"a process could not be started: {reason}")
        self.reason = reason


class Process:
    """A process that leads a session of its own. Its group is killed when this process ends without having done so.

    ``stdin``, ``stdout`` and ``stderr`` are as for Popen; ``descriptors`` are handed on besides. ``environment`` is
    added to that of this process; what is None in it is taken away. ``patient``: it may clean up when it is told to
    end.

    Raises CannotStartError.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
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
            if START_VARIABLE not in changes:  # a check carries another mark, and may look at what it carries
                changes[START_VARIABLE] = os.urandom(8).hex()
                mark = f"{START_VARIABLE}={changes[START_VARIABLE]}"
                cleanup.register("marked", mark)  # who is killed before the number is known leaves nobody behind
            with _interruptible():
                self._popen = subprocess.Popen(
                    words,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    env={name: value for name, value in {**os.environ, **changes}.items() if value is not None},
                    pass_fds=descriptors,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            cleanup.strike("marked", mark)
            raise CannotStartError(error) from error
        self.pid = self._popen.pid
        self._entry = cleanup.group(self.pid)
        cleanup.register(*self._entry)
        cleanup.strike("marked", mark)
        self._end: int | None = None
        try:
            self._end = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        except OSError as error:  # nobody could watch it
            self._ended()
            raise CannotStartError(error) from error
        sacrifice(self.pid)

    @property
    def streams(self) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
        """Our ends of its three streams, all of which must have been given as ``subprocess.PIPE``."""
        stdin, stdout, stderr = self._popen.stdin, self._popen.stdout, self._popen.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        return stdin, stdout, stderr

    def fileno(self) -> int | None:
        """Readable once it has ended; None where the platform has no such thing."""
        return self._end

    def status(self) -> int | None:
        """Its status if it has ended. Whom it left behind in its group is ended first, unless such processes are kept.

        Until then, its number is nobody else's.
        """
        if self._popen.returncode is not None:
            return self._popen.returncode
        has_ended = self._popen.poll() is not None if self._end is None else bool(readable([self._end], 0))
        return self._ended(by_itself=True) if has_ended else None

    def wait(self, seconds: float) -> int | None:
        """Its status once it has ended; None if that takes longer."""
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
        """End it and what it has started in its group; its status, once it is gone."""
        return self._ended() if self._popen.returncode is None else self._popen.returncode

    def _ended(self, *, by_itself: bool = False) -> int:
        if not hasattr(os, "killpg"):
            self._popen.kill()
        elif not (by_itself and keeps_processes()):
            end_group(self.pid)
        cleanup.strike(*self._entry)
        return self._popen.wait()

    def close(self) -> None:
        """Free the descriptor of its end: it has ended, or nobody listens any more.

        One that still runs stays registered, and is killed when this process ends.
        """
        self.status()  # which takes one that has ended off the list
        if self._end is not None:
            os.close(self._end)
            self._end = None


@contextmanager
def _interruptible() -> Iterator[None]:
    """What starts meanwhile can be interrupted, even if this thread cannot: Ray blocks the signal in its processes.

    A program inherits that: a check that ends another by SIGINT would wait for it without end.
    """
    is_blocked = hasattr(signal, "pthread_sigmask") and signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if is_blocked:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if is_blocked:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


class PrintingProcess:
    """A process that prints into a pipe of ours, from its start until it is watched to its end, or is not wanted.

    Raises CannotStartError.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str | None] | None = None,
        descriptors: Sequence[int] = (),
        patient: bool = True,
    ) -> None:
        self._pipe = pipe = Pipe()
        ordered = {**IN_ORDER, **os.environ, **(environment or {})}
        streams = {"stdout": pipe.writing, "stderr": pipe.writing}
        try:
            self.process = Process(words, **streams, environment=ordered, descriptors=descriptors, patient=patient)
        except BaseException:
            pipe.close()
            raise
        pipe.handed_on()

    def watched(self, limits: Callable[[], Limits], stop: Stop | None = None, *, kept: int = KEPT_OUTPUT) -> Ended:
        """Watch it from now on to its end; see ``attend``. Raises StillRunningError."""
        try:
            return attend(self.process, self._pipe.reading, limits, stop, kept=kept)
        finally:
            self.process.wait(_LAST_WAIT)
            self.process.close()
            self._pipe.close()

    def end(self) -> None:
        """Kill it, with what it has started in its group."""
        self.process.kill()
        self.process.close()
        self._pipe.close()


_EndedOrNot = TypeVar("_EndedOrNot", bound="Ended | None")


def run_marked(mark: str, run: Callable[[], _EndedOrNot]) -> _EndedOrNot:
    """A run, and the end of all that it has started: whoever carries its mark, wherever that has gone since."""
    begun, ended, left = Moment(), None, set[int]()
    cleanup.register("marked", mark)
    try:
        ended = run()
    finally:
        if not lets_processes_stay(ended):
            left = end_marked([mark], begun.younger)
        cleanup.strike("marked", mark)
    return ended if ended is None or not left else replace(ended, left=ended.left + len(left))


def run_with_own_mark(run: Callable[[str], _EndedOrNot]) -> _EndedOrNot:
    """``run_marked`` for a process that was started before and is given its mark now; see ``forks.carry_mark``."""
    mark = os.urandom(len(UNMARKED) // 2).hex()
    return run_marked(f"{FORK_VARIABLE}={mark}", lambda: run(mark))


def run(
    words: Sequence[str],
    limits: Callable[[], Limits],
    stop: Stop | None = None,
    *,
    environment: Mapping[str, str | None] | None = None,
    descriptors: Sequence[int] = (),
    kept: int = KEPT_OUTPUT,
    patient: bool = True,
) -> Ended:
    """Run a command to its end; see ``attend`` for the limits, and ``Process`` for the rest.

    Raises CannotStartError and StillRunningError.
    """
    process = PrintingProcess(words, environment=environment, descriptors=descriptors, patient=patient)
    return process.watched(limits, stop, kept=kept)


# What the processes of an environment do not see of this one: settings that would have them use other packages.

_HARMLESS = frozenset({
    "PIP_CACHE_DIR", "PIP_DEFAULT_TIMEOUT", "PIP_KEYRING_PROVIDER", "PIP_RETRIES", "PIP_TIMEOUT",
    "UV_CACHE_DIR", "UV_HTTP_RETRIES", "UV_HTTP_TIMEOUT", "UV_KEYRING_PROVIDER", "UV_LINK_MODE", "UV_OFFLINE",
})  # fmt: skip
_OTHERS = ("VIRTUAL_ENV", "CONDA_PREFIX")


def undisturbed() -> dict[str, str | None]:
    """Changes of the variables of a process, as ``processes.process`` takes them, with which it uses its own packages.

    No module comes from PYTHONPATH, and what pip and uv are told is told by us; names and passwords for indexes stay.
    """
    changes: dict[str, str | None] = {}
    for name in os.environ:
        kept = name in _HARMLESS or (name.startswith("UV_INDEX_") and name.endswith(("_USERNAME", "_PASSWORD")))
        if not kept and (name.startswith(("PYTHON", "PIP_", "UV_")) or name in _OTHERS):
            changes[name] = None
    return changes
