"""Starting the runner of a release: cold, as a process for this one; or warm, as one that forks for each of our forks.

Either way it is gone when this process is: nobody but this process, and its forks, has the other end of its lifeline.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from types import ModuleType
from typing import Any

from biopsy import errors
from biopsy.engines.other_release import wire
from biopsy.environments.surroundings import undisturbed
from biopsy.isolation import forks
from biopsy.isolation.process import CannotStartError, Process
from biopsy.text import first_line, printable

_RUNNER = Path(__file__).with_name("runner.py")
_SECONDS_TO_END = 10.0
_SECONDS_TO_FORK = 120.0
_SECONDS_TO_START = 120.0
_LONGEST_LINE = 4096


class RunnerProcess:
    """A runner that was started for this process: ``connection`` leads to it.

    ``mode`` is "once", or "warm" for one that can serve forks afterwards; see ``runner``. Raises EngineMissing.
    """

    def __init__(self, python: Path, mode: str) -> None:
        self.connection, theirs = socket.socketpair()
        self.inviting, listening = socket.socketpair(type=socket.SOCK_DGRAM)
        self._lifeline, their_lifeline = socket.socketpair()
        handed_on = [theirs.fileno(), listening.fileno(), their_lifeline.fileno()]
        files = (str(_RUNNER), mode, _file_of(wire), _file_of(forks))
        words = [str(python), "-I", *files, *map(str, handed_on), str(os.getsid(0))]
        try:
            self._process = Process(
                words, stdout=2, stderr=2, environment=undisturbed(), descriptors=handed_on, patient=False
            )
        except CannotStartError as error:
            raise errors.EngineMissing(f"the interpreter {python} cannot be started: {error.reason}") from error
        finally:
            for end in (theirs, listening, their_lifeline):
                end.close()
        self._require_working(python)

    def _require_working(self, python: Path) -> None:
        """Wait for its first word. Raises EngineMissing if there is none, or if that says what is missing."""
        self.connection.settimeout(_SECONDS_TO_START)
        said = _line(self.connection)
        self.connection.settimeout(None)
        if said.get("works") is True:
            return
        problem = said.get("problem")
        reason = first_line(problem) if isinstance(problem, str) else "it is no Python that works"
        self.close()
        raise errors.EngineMissing(
            f"the interpreter {printable(str(python))} cannot run an engine: {reason}",
            next_steps=["python=/path/of/an/environment/bin/python, of one that holds the package and NumPy"],
        )

    def status(self) -> int:
        """How it has ended, once its connection has: negative for a signal."""
        status = self._process.wait(_SECONDS_TO_END)
        return self._process.kill() if status is None else status

    def is_ready_to_fork(self) -> bool:
        """Whether it serves forks now, which it was told to."""
        return _line(self.connection).get("ready") is True

    def close(self) -> None:
        """End it."""
        self.connection.close()
        self.inviting.close()
        self._process.kill()
        self._process.close()
        self._lifeline.close()


class RunnerFork:
    """A fork of a warm runner, for this process: ``connection`` leads to it. Raises BiopsyError if there can be none.

    ``inviting`` is the socket that belongs to the warm one.
    """

    def __init__(self, inviting: socket.socket) -> None:
        self.connection, theirs = socket.socketpair()
        self._asking, asked = socket.socketpair()
        request = {"session": os.getsid(0), "folder": str(Path.cwd())}
        try:
            socket.send_fds(inviting, [b"+"], [asked.fileno()])
            data = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(self._asking, [data], [2, theirs.fileno()])
            self._asking.sendall(data[sent:])
        except OSError as error:
            raise _no_fork() from error
        finally:
            theirs.close()
            asked.close()
        self._asking.settimeout(_SECONDS_TO_FORK)
        if "pid" not in _line(self._asking):
            raise _no_fork()

    def status(self) -> int:
        """How it has ended, once its connection has: negative for a signal."""
        self._asking.settimeout(_SECONDS_TO_END)
        status = _line(self._asking).get("status")
        return status if isinstance(status, int) else 4

    def close(self) -> None:
        """End it."""
        self.connection.close()
        self._asking.close()


def _file_of(module: ModuleType) -> str:
    assert module.__file__ is not None
    return module.__file__


def _no_fork() -> errors.BiopsyError:
    return errors.BiopsyError("the warm interpreter of the other release does not answer")


def _line(connection: socket.socket) -> dict[str, Any]:
    """The next line, which is an object; an empty one if there is none."""
    data = b""
    try:
        while not data.endswith(b"\n") and len(data) < _LONGEST_LINE:
            more = connection.recv(1)
            if not more:
                return {}
            data += more
        told = json.loads(data)
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}
