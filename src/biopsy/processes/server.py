"""A child process that answers requests, one after the other; ``serving`` is its side.

It stays, since starting one costs more than most requests. When a request ends it, the next one starts another.
Requests and answers are JSON, one object a line; before its answer the child may send notes, which say how far it has
come. Threads read and write, so that neither a child that never reads nor one that never answers holds up this one
beyond the limits.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import IO, Any

from biopsy.processes.own_process import own_python, taken_by_family
from biopsy.processes.process import Process
from biopsy.processes.serving import from_json
from biopsy.processes.watch import Cause, Ended, KeptOutput, Limits

LONGEST_ANSWER = 256 << 20
"""Bytes of the longest answer that is read."""

_KEPT = 1 << 16  # bytes of the beginning, and as many of the end, of what the child prints
_LOOK = 1.0  # seconds between two looks whether the child is there still, which the end of its answers need not tell
_LAST_WAIT = 2.0  # seconds for what a dying process still has to say; a daemon of it may keep its streams open


class ServerEndedError(Exception):
    """The child has ended, or was ended, without an answer. ``note`` is the last one that it sent, if any."""

    def __init__(self, ended: Ended, note: str | None) -> None:
        super().__init__(f"{ended.cause}, status {ended.status}, after {note}")
        self.ended = ended
        self.note = note


class Server:
    """A process that calls ``main`` of a module of ours with these words and then answers requests.

    ``environment`` is added to that of this process.
    """

    def __init__(self, module: str, *words: str, environment: Mapping[str, str] | None = None) -> None:
        self._words = [*own_python(module), *words]
        self._environment = environment
        self._child: _Child | None = None

    def start(self) -> None:
        """Start the process now, if there is none, and do not wait for it. Raises CannotStartError."""
        if self._child is None:
            self._child = _Child(self._words, self._environment)

    def ask(self, request: Mapping[str, Any], limits: Limits | None = None) -> dict[str, Any]:
        """The answer to a request. Raises the error that the child raised instead, and CannotStartError.

        ``limits.memory`` is for all processes of the child; files that they map do not count.

        Raises ServerEndedError if the child ends without an answer, reaches a limit, or answers something that is no
        answer; it has ended then.
        """
        self.start()
        assert self._child is not None
        try:
            answer = self._child.ask(request, limits or Limits())
        except ServerEndedError:
            self._child = None
            raise
        except BaseException:
            self.close()  # or its answer would be taken for that to the next request
            raise
        if "error" in answer:
            raise from_json(answer["error"])
        reply: dict[str, Any] = answer["answer"]
        return reply

    def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            child.end("stop")


class _Child:
    """One process, and the threads that talk to it."""

    def __init__(self, words: list[str], environment: Mapping[str, str] | None) -> None:
        pipe = subprocess.PIPE
        self._process = Process(words, stdin=pipe, stdout=pipe, stderr=pipe, environment=environment)
        stdin, stdout, stderr = self._process.streams
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # An interrupt leaves a Queue or a Semaphore locked: they are made of Python, in which it comes anywhere.
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()  # for one answer that nobody has taken yet
        self._room.put(None)
        self._printed = KeptOutput(_KEPT)
        self._note: str | None = None
        self._threads = [
            threading.Thread(target=target, args=(stream,), daemon=True)
            for target, stream in ((self._write, stdin), (self._read_answers, stdout), (self._read_output, stderr))
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, request: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
        """The object that ends a request: an answer or an error. Raises ServerEndedError."""
        started, self._note = time.monotonic(), None
        self._requests.put(json.dumps(request).encode() + b"\n")
        while True:
            line = self._next_line(started, limits)
            if not line:
                raise self.end("itself")
            reply = _understood(line)
            if reply is None:
                raise self.end("answer" if line.endswith(b"\n") else "itself")  # its death may cut a line short
            if "note" not in reply:
                return reply
            self._note = reply["note"]

    def _next_line(self, started: float, limits: Limits) -> bytes:
        """The next line of its answers, b"" after the last. Raises ServerEndedError if a limit is reached before."""
        while True:
            due = limits.until_due(started)
            with suppress(queue.Empty):
                return self._next_answer(_LOOK if due is None else min(due, _LOOK))
            if self._process.status() is not None:
                with suppress(queue.Empty):
                    return self._next_answer(_LAST_WAIT)
                return b""
            cause = limits.reached(started, partial(taken_by_family, self._process.pid))
            if cause is not None:
                raise self.end(cause)

    def _next_answer(self, seconds: float) -> bytes:
        """Raises queue.Empty if none comes within so many seconds."""
        line = self._answers.get(timeout=seconds)
        self._room.put(None)
        return line

    def end(self, cause: Cause) -> ServerEndedError:
        """End it, whatever it does, and tell how it ended. One that has closed its answers is about to end itself."""
        status = self._process.wait(_LAST_WAIT) if cause == "itself" else None
        if status is None:
            status = self._process.kill()
            cause = "answer" if cause == "itself" else cause
        self._requests.put(None)
        self._room.put(None)  # an interrupt may have kept who took an answer from saying so
        until = time.monotonic() + _LAST_WAIT
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < until:
            with suppress(queue.Empty):
                self._next_answer(0)
            for thread in self._threads:
                thread.join(0.01)
        self._process.close()
        return ServerEndedError(Ended(status, cause, self._printed.all()), self._note)

    # The threads

    def _write(self, stream: IO[bytes]) -> None:
        with suppress(OSError), stream:  # it has died: that is noticed when its answer is read
            while (data := self._requests.get()) is not None:
                stream.write(data)
                stream.flush()

    def _read_answers(self, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(LONGEST_ANSWER):
                self._room.get()
                self._answers.put(line)
        self._room.get()
        self._answers.put(b"")

    def _read_output(self, stream: IO[bytes]) -> None:
        with stream:
            while data := stream.read1(1 << 16):  # type: ignore[attr-defined]
                self._printed.add(data)


def _understood(line: bytes) -> dict[str, Any] | None:
    """What a line says; None if it is not of the protocol."""
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(reply, dict) or len(reply) != 1:
        return None
    [(kind, value)] = reply.items()
    kinds = {"note": str, "answer": dict, "error": dict}
    return reply if kind in kinds and isinstance(value, kinds[kind]) else None
