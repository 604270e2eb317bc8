"""Checks that are our own ``run``, made in children forked from one warm process.

A cold process pays for its imports and for reading inputs and golden values again in every check. Here one process,
the zygote, pays once; each check is a fork of it, with the isolation of a process: a crash, a hang or a memory bomb
ends the child alone. What the check prints and how it ends are the same either way.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from biopsy.checks import verdict
from biopsy.checks.command import CommandCheck

START = "import sys; sys.path.remove(''); from biopsy.cli.zygote import main; main()"
"""What the zygote runs. It is named, not imported: the command line stands above this layer."""

_SECONDS_TO_WARM_UP = 120


class WarmCheck(CommandCheck):
    """A command that is our own ``run``; falls back to cold processes where there is no fork or no zygote."""

    def __init__(self, words: Sequence[str], default_name: str, timeout: float | None = None) -> None:
        super().__init__(words, default_name, timeout)
        self._zygote: Zygote | None = None
        self._given_up = not hasattr(os, "fork")

    def cold(self) -> CommandCheck:
        """The same check in a process of its own."""
        return CommandCheck(self.words, self.default_name, self.timeout)

    def close(self) -> None:
        """End the zygote."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def _run(self, words: list[str], output: BinaryIO, told: Any) -> tuple[int, bool]:
        if self._zygote is None and not self._given_up:
            self._zygote = Zygote.start(self.words)
            self._given_up = self._zygote is None
        if self._zygote is not None:
            try:
                return self._zygote.check(words, output.name, str(told), self.timeout)
            except ZygoteGoneError:
                self._given_up = True
                self.close()
                output.seek(0)
                output.truncate()
        return super()._run(words, output, told)


class ZygoteGoneError(Exception):
    """The zygote has ended, or says something that is no answer."""


class Zygote:
    """The client's end of a warm process; see ``biopsy.cli.zygote`` for the other."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process = process
        self._connection = connection
        self._lines = connection.makefile("rb")

    @classmethod
    def start(cls, words: Sequence[str]) -> Zygote | None:
        """Start a zygote for a check's words; None if it cannot be had for them."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", START, str(theirs.fileno()), json.dumps(list(words))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        zygote = cls(process, ours)
        try:
            if zygote._answer(_SECONDS_TO_WARM_UP) == {"ready": True}:
                return zygote
        except (ZygoteGoneError, TimeoutError):
            pass
        zygote.close()
        return None

    def check(self, words: Sequence[str], output: str, told: str, timeout: float | None) -> tuple[int, bool]:
        """Run one check in a fork: (status, whether it had to be stopped). Raises ZygoteGoneError."""
        request = {"words": list(words), "output": output, verdict.VARIABLE: told}
        try:
            self._connection.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise ZygoteGoneError from error
        child = self._answer(None).get("pid")
        if not isinstance(child, int):
            raise ZygoteGoneError
        try:
            return self._status(timeout), False
        except TimeoutError:
            _end_group(child)
            return self._status(None), True
        except BaseException:
            _end_group(child)
            raise

    def close(self) -> None:
        """End the zygote and whatever it still runs: it sees that nobody listens any more."""
        self._lines.close()
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()

    def _status(self, timeout: float | None) -> int:
        status = self._answer(timeout).get("status")
        if not isinstance(status, int):
            raise ZygoteGoneError
        return status

    def _answer(self, timeout: float | None) -> dict[str, Any]:
        self._connection.settimeout(timeout)
        try:
            line = self._lines.readline()
        except TimeoutError:
            # A file over a socket is of no use after a timeout: begin a new one.
            self._lines = self._connection.makefile("rb")
            raise
        except OSError as error:
            raise ZygoteGoneError from error
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise ZygoteGoneError from error
        if not isinstance(answer, dict):
            raise ZygoteGoneError
        return answer


def _end_group(child: int) -> None:
    """End a child and all that it started: SIGKILL, for a fork of ours has nothing to clean up."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(child, signal.SIGKILL)
