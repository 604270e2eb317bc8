"""A process of ours that answers requests, one after the other: the side that asks, and the child's own; the child's
side of one that makes a fork for each; and errors as they travel back.

A child that serves stays, since starting one costs more than most requests. When a request ends it, the next one starts
another. Requests and answers are JSON, one object a line; before its answer the child may send notes, which say how far
it has come. Whoever asks reads and writes what goes at the moment, so that neither a child that never reads nor one
that never answers holds it up beyond the limits.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from biopsy import errors
from biopsy.processes.forks import ForkLoop, connections_of_environment
from biopsy.processes.own_process import own_python
from biopsy.processes.process import Process
from biopsy.processes.watch import Cause, Ended, KeptOutput, Limits, Watch

LONGEST_ANSWER = 256 << 20
"""Bytes of the longest answer that is read."""

_KEPT = 1 << 16  # bytes of the beginning, and as many of the end, of what the child prints
_LAST_WAIT = 2.0  # seconds for a child that has closed its answers to end


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
    """One process, and what has come of its answers."""

    def __init__(self, words: list[str], environment: Mapping[str, str] | None) -> None:
        pipe = subprocess.PIPE
        self._process = Process(words, stdin=pipe, stdout=pipe, stderr=pipe, environment=environment, patient=False)
        self._streams = self._process.streams
        for stream in self._streams:
            os.set_blocking(stream.fileno(), False)
        self._printed = KeptOutput(_KEPT)
        self._line = bytearray()
        self._has_closed = self._is_spoiled = False
        self._reply: dict[str, Any] | None = None
        self._note: str | None = None

    def ask(self, request: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
        """The object that ends a request: an answer or an error. Raises ServerEndedError."""
        self._note = None
        into, answers, output = (stream.fileno() for stream in self._streams)
        takers = {output: self._printed.add, **({} if self._has_closed else {answers: self._take})}
        unsent = bytearray(json.dumps(request).encode() + b"\n")
        ended = Watch(self._process, lambda: limits, takers, unsent=(into, unsent)).until(self._is_over)
        is_over = self._is_over()
        reply, self._reply = self._reply, None
        if reply is not None:
            return reply
        if ended is not None:
            raise self.end(ended[1])
        raise self.end("answer" if is_over and not self._has_closed else "itself")

    def _take(self, data: bytes) -> None:
        self._has_closed = not data
        self._line += data

    def _is_over(self) -> bool:
        """Whether nothing more is to be waited for: the reply has come, or something that is no answer, or an end."""
        while not self._is_spoiled and self._reply is None and b"\n" in self._line:
            line, _, self._line = self._line.partition(b"\n")
            self._reply = _understood(bytes(line))
            self._is_spoiled = self._reply is None
            if self._reply is not None and "note" in self._reply:
                self._note, self._reply = self._reply["note"], None
        return self._is_spoiled or self._reply is not None or self._has_closed or len(self._line) > LONGEST_ANSWER

    def end(self, cause: Cause) -> ServerEndedError:
        """End it, whatever it does, and tell how it ended. One that has closed its answers is about to end itself."""
        status = self._process.wait(_LAST_WAIT) if cause == "itself" else None
        if status is None:
            status = self._process.kill()
            cause = "answer" if cause == "itself" else cause
        Watch(self._process, Limits, {self._streams[2].fileno(): self._printed.add}).until()  # what it printed last
        self._process.close()
        for stream in self._streams:
            stream.close()
        return ServerEndedError(Ended(status, cause, self._printed.all()), self._note)


def _understood(line: bytes) -> dict[str, Any] | None:
    """What a line says; None if it is not of the protocol."""
    try:
        reply = json.loads(line)
        [(kind, value)] = reply.items()
    except (ValueError, RecursionError, AttributeError):
        return None
    return reply if isinstance(value, {"note": str, "answer": dict, "error": dict}.get(kind, ())) else None


Request: TypeAlias = Mapping[str, Any]
Note: TypeAlias = Callable[[str], None]
"""Says how far the child has come with a request: whoever has to tell of its death knows it then."""


class Serving:
    """The child's side of a ``Server``. It takes over stdin and stdout: what anybody prints from now on is no answer,
    and goes to stderr.
    """

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def serve(self, answer: Callable[[Request, Note], dict[str, Any]]) -> int:
        """Answer all requests; returns the exit status. What ``answer`` raises is raised where it was asked."""
        for line in sys.stdin.buffer:
            try:
                self._say({"answer": answer(json.loads(line), lambda text: self._say({"note": text}))})
            except Exception as error:
                self._say({"error": as_json(error)})
        return 0

    def _say(self, tree: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(tree).encode() + b"\n")
        self._answers.flush()


def serve_forks(task: Callable[[Request], int], connections: Sequence[int] | None = None) -> NoReturn:
    """The side of a warm process of ours: does a task in a fork for each request, which ends with what that returns.

    It ends once nobody listens any more. ``connections`` are the descriptors that the environment named, if they were
    taken from there before.
    """
    loop = ForkLoop(connections_of_environment() if connections is None else list(connections))
    gc.collect()
    gc.freeze()  # what is loaded now is shared with the forks, and not copied by their collector's marks
    request = loop.next_request()
    status = 4
    try:
        status = task(request)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def as_json(error: Exception) -> dict[str, Any]:
    """An error as JSON, of which ``from_json`` makes it again; what nobody foresaw becomes a BiopsyError.

    One of a class that takes other arguments than its attributes, or that stands elsewhere than in ``errors``, becomes
    one of the nearest class above it that does not.
    """
    if not isinstance(error, errors.BiopsyError):
        error = errors.BiopsyError(f"{type(error).__name__}: {error}")
    kind = _nearest(type(error))
    return {
        "error": kind.__name__,
        "message": error.summary,
        "details": list(error.details),
        "kept": error.kept,
        "next_steps": list(error.next_steps),
        **{name: getattr(error, name) for name in kind.facts},
    }


def from_json(tree: Mapping[str, Any]) -> errors.BiopsyError:
    """The error that ``as_json`` has made this of."""
    kind = _nearest(getattr(errors, tree["error"], errors.BiopsyError))
    error: errors.BiopsyError = kind(
        tree["message"], **{name: tree[name] for name in ("details", "kept", "next_steps", *kind.facts)}
    )
    return error


def _nearest(kind: object) -> Any:
    """The first of an error's class and those above it that stands in ``errors``, and takes what it has."""
    above = kind.__mro__ if isinstance(kind, type) else ()
    known = (each for each in above if getattr(errors, each.__name__, None) is each and each is not errors.EngineCrash)
    return next((each for each in known if issubclass(each, errors.BiopsyError)), errors.BiopsyError)
