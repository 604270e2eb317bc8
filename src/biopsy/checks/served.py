"""Checks that are made in forks of one warm process, as far as that is possible.

A cold process pays for its imports, and perhaps for reading its files, again in every check. Here one process, the
server, pays once; each check is a fork of it. What the check prints and how it ends are the same either way.
"""

from __future__ import annotations

import os
import threading
from abc import abstractmethod

from biopsy.checks.command import CommandCheck
from biopsy.isolation.fork_server import ForkServer, ServerGoneError


class ServedCheck(CommandCheck):
    """A command that a warm process can run; falls back to cold processes where there is no fork or no server.

    ``cold`` is the same command in a process of its own, and ``jobs`` is how many of them may run at once. A subclass
    says what the server is, and when it is asked.
    """

    def __init__(self, cold: CommandCheck, jobs: int = 1) -> None:
        super().__init__(*cold.given)
        self._jobs = jobs
        self._server: ForkServer | None = None
        self._lost: list[ForkServer] = []
        self._given_up = not hasattr(os, "fork")
        self._starting = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        """On another machine, or in another process, the check is a cold one: the server is here."""
        return CommandCheck, self.given

    @property
    @abstractmethod
    def served_by(self) -> str:
        """Of what each check is a fork, in words."""

    @property
    def is_served(self) -> bool:
        """Whether there is a warm process, or one can still be started."""
        return not self._given_up

    @abstractmethod
    def _started_server(self) -> ForkServer:
        """The server, started. Raises ServerGoneError if it cannot be."""

    def start(self) -> None:
        """Begin to warm up, and do not wait for it. If no server can be started, every check is a cold one."""
        with self._starting:
            if self._server is None and not self._given_up:
                try:
                    self._server = self._started_server()
                except ServerGoneError:
                    self._given_up = True

    def cold(self) -> CommandCheck:
        """The same check in a process of its own."""
        return CommandCheck(*self.given)

    def close(self) -> None:
        """End the server."""
        with self._starting:
            for server in (*self._lost, *([] if self._server is None else [self._server])):
                server.close()
            self._lost, self._server = [], None

    def _lose(self, server: ForkServer) -> None:
        """Go on without it. Other threads may still listen to it: what they listen to stays open until the end."""
        with self._starting:
            self._given_up = True
            server.kill()
            if self._server is server:
                self._server = None
                self._lost.append(server)
