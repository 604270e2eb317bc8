"""A child process that answers requests one after the other: both ends; the child's end of a process that makes a fork
for each request; and errors as JSON.

A child stays, since starting one costs more than most requests. If a request ends it, the next request starts another.
Where a process needs one child of a module after the other, they become forks of one that has imported what all need.
Requests and answers are JSON, one object a line; before its answer, the child may send notes about its progress. The
asking end never blocks on a read or write, so that a child that does not read or answer cannot exceed the limits.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, Any, NoReturn, TypeAlias

from biopsy import errors
from biopsy.processes.forks import ForkLoop, connections_of_environment
from biopsy.processes.own_process import own_python
from biopsy.processes.process import Process
from biopsy.processes.warm import Fork, ForkServer, ServerGoneError
from biopsy.processes.watch import Cause, Ended, KeptOutput, Limits, Watch

LONGEST_ANSWER = 256 << 20
"""Bytes of the longest answer that is read."""

_KEPT = 1 << 16  # bytes kept of the beginning of the child's output, and as many of the end
_LAST_WAIT = 2.0  # seconds for a child to end that has closed its answers

Streams: TypeAlias = tuple[IO[bytes], IO[bytes], IO[bytes]]
"""Our ends of the standard streams of a child: input, output, errors."""


class ServerEndedError(Exception):
    """The child has ended, or was ended, without an answer. ``note`` is its last note, if any."""

    def __init__(self, ended: Ended, note: str | None) -> None:
        super().__init__(f"{ended.cause}, status {ended.status}, after {note}")
        self.ended = ended
        self.note = note


class Server:
    """A process that calls ``main`` of one of biopsy's modules with these words, which answers requests.

    ``environment`` is added to that of this process. ``zygote`` may make a fork instead.
    """

    def __init__(
        self, module: str, *words: str, environment: Mapping[str, str] | None = None, zygote: Zygote | None = None
    ) -> None:
        self._module = module
        self._words = words
        self._environment = environment
        self._zygote = zygote
        self._child: _Child | None = None

    def start(self) -> None:
        """Start the process, if there is none, without waiting for it. Raises CannotStartError."""
        if self._child is None:
            forked = None if self._zygote is None else self._zygote.forked(self._words)
            self._child = _Child(*(forked or self._started()))

    def _started(self) -> tuple[Process, Streams]:
        words, pipe = [*own_python(self._module), *self._words], subprocess.PIPE
        process = Process(words, stdin=pipe, stdout=pipe, stderr=pipe, environment=self._environment, patient=False)
        return process, process.streams

    def ask(self, request: Mapping[str, Any], limits: Limits | None = None) -> dict[str, Any]:
        """The answer to a request. Raises the error that the child raised, and CannotStartError.

        ``limits.memory`` is for all processes of the child, without mapped files.

        Raises ServerEndedError if the child ended without an answer, or was ended at a limit or after an invalid
        answer.
        """
        self.start()
        assert self._child is not None
        try:
            answer = self._child.ask(request, limits or Limits())
        except ServerEndedError:
            is_lost, self._child = self._child.is_lost, None
            if is_lost:  # the zygote has ended, which says nothing of the request
                return self.ask(request, limits)
            raise
        except BaseException:
            self.close()  # else its answer would be taken for that to the next request
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


_FIRST_WITH_ZYGOTE = 2
_MOST_FORKS = 8
_OF_THIS_TEST = "PYTEST_CURRENT_TEST"
"""An environment variable that pytest changes for each test; no engine looks at it."""


@dataclass(kw_only=True)
class Zygote:
    """A process of which later children of ``module`` are forks, so that they need not import what all need.

    The first child is started by itself, since many commands need no other; the second starts the zygote as well. A
    child whose environment would be another than the zygote's is started by itself, too: libraries read variables when
    they are loaded. The zygote calls ``main`` without words, which calls ``serve_children``.
    """

    module: str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _owner: int = field(default_factory=os.getpid)
    _children: int = 0
    _server: ForkServer | None = None
    _environment: Mapping[str, str] = field(default_factory=dict)

    def forked(self, words: Sequence[str]) -> tuple[Fork, Streams] | None:
        """A fork that is given these words, and our ends of its streams; None if none can be made now."""
        with self._lock:
            if self._owner != os.getpid():  # the zygote belongs to the process that this is a fork of
                self._owner, self._children, self._server = os.getpid(), 0, None
            self._children += 1
            environment = {name: value for name, value in os.environ.items() if name != _OF_THIS_TEST}
            try:
                if self._server is not None:
                    if environment == self._environment and self._server.is_warm(0.0):
                        return _forked(self._server, words)
                elif self._children == _FIRST_WITH_ZYGOTE and sys.platform == "linux":
                    self._environment = environment
                    self._server = ForkServer(own_python(self.module), connections=_MOST_FORKS)
            except ServerGoneError:
                self.close()
            except OSError:  # too many files are open, perhaps
                pass
        return None

    def close(self) -> None:
        """End the zygote and its forks; a later child begins as the first one did."""
        if self._server is not None:
            self._server.close()
        self._children, self._server = 0, None


def _forked(server: ForkServer, words: Sequence[str]) -> tuple[Fork, Streams] | None:
    """A fork of the server, with our ends of its streams; None if it has too many. Raises ServerGoneError, OSError."""
    with ExitStack() as ours, ExitStack() as its:

        def pipe(mode: str) -> tuple[IO[bytes], int]:
            ends = os.pipe()
            own, other = ends if mode == "rb" else ends[::-1]
            its.callback(os.close, other)
            return ours.enter_context(os.fdopen(own, mode, 0)), other

        (into, stdin), (answers, stdout), (output, stderr) = pipe("wb"), pipe("rb"), pipe("rb")
        folder = os.open(".", os.O_PATH)  # it need not be readable
        its.callback(os.close, folder)
        fork = server.begin({"words": words}, stderr, stdin, stdout, folder)
        if fork is not None:
            ours.pop_all()
        return None if fork is None else (fork, (into, answers, output))


class _Child:
    """One process, and what it has sent."""

    def __init__(self, process: Process | Fork, streams: Streams) -> None:
        self._process = process
        self._streams = streams
        for stream in self._streams:
            os.set_blocking(stream.fileno(), False)
        self._printed = KeptOutput(_KEPT)
        self._line = bytearray()
        self._has_closed = self._is_spoiled = False
        self._reply: dict[str, Any] | None = None
        self._note: str | None = None

    @property
    def is_lost(self) -> bool:
        """Whether it was a fork of a zygote that has ended."""
        return isinstance(self._process, Fork) and self._process.is_lost

    def ask(self, request: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
        """The reply to a request: an answer or an error. Raises ServerEndedError."""
        self._note = None
        into, answers, output = (stream.fileno() for stream in self._streams)
        takers = {output: self._printed.add, **({} if self._has_closed else {answers: self._add_answer})}
        unsent = bytearray(json.dumps(request).encode() + b"\n")
        ended = Watch(self._process, lambda: limits, takers, unsent=(into, unsent)).until(self._is_over)
        is_over = self._is_over()
        reply, self._reply = self._reply, None
        if reply is not None:
            return reply
        if ended is not None:
            raise self.end(ended[1])
        raise self.end("answer" if is_over and not self._has_closed else "itself")

    def _add_answer(self, data: bytes) -> None:
        self._has_closed = not data
        self._line += data

    def _is_over(self) -> bool:
        """Whether waiting is over: a reply or an invalid one has come, or the child has closed its answers."""
        while not self._is_spoiled and self._reply is None and b"\n" in self._line:
            line, _, self._line = self._line.partition(b"\n")
            self._reply = _parsed(bytes(line))
            self._is_spoiled = self._reply is None
            if self._reply is not None and "note" in self._reply:
                self._note, self._reply = self._reply["note"], None
        return self._is_spoiled or self._reply is not None or self._has_closed or len(self._line) > LONGEST_ANSWER

    def end(self, cause: Cause) -> ServerEndedError:
        """End it; returns how it ended. With cause "itself", it has closed its answers and gets time to end itself."""
        status = self._process.wait(_LAST_WAIT) if cause == "itself" else None
        if status is None:
            status = self._process.kill()
            cause = "answer" if cause == "itself" else cause
        Watch(self._process, Limits, {self._streams[2].fileno(): self._printed.add}).until()  # what it printed last
        self._process.close()
        for stream in self._streams:
            stream.close()
        return ServerEndedError(Ended(status=status, cause=cause, output=self._printed.all()), self._note)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None if it is invalid."""
    try:
        reply = json.loads(line)
        [(kind, value)] = reply.items()
    except (ValueError, RecursionError, AttributeError):
        return None
    return reply if isinstance(value, {"note": str, "answer": dict, "error": dict}.get(kind, ())) else None


Request: TypeAlias = Mapping[str, Any]
Note: TypeAlias = Callable[[str], None]
"""Sends a note about the child's progress, which explains its death if it dies."""


class Serving:
    """The child's end of a ``Server``. It takes over stdin and stdout: what is printed from now on goes to stderr."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def serve(self, answer: Callable[[Request, Note], dict[str, Any]]) -> int:
        """Answer all requests; returns the exit status. What ``answer`` raises is raised at the asking end."""
        for line in sys.stdin.buffer:
            try:
                self._say({"answer": answer(json.loads(line), lambda text: self._say({"note": text}))})
            except Exception as error:
                self._say({"error": as_json(error)})
        return 0

    def _say(self, tree: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(tree).encode() + b"\n")
        self._answers.flush()


def serve_children(main: Callable[[], int], ends_after: int = 30) -> NoReturn:
    """The other end of a ``Zygote``: call ``main`` in each fork, as in a process of its own.

    It ends these seconds after its last fork.
    """

    def child(request: Request) -> int:
        stdin, stdout, folder = request["descriptors"]
        os.fchdir(folder)
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        for descriptor in (stdin, stdout, folder):
            os.close(descriptor)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # else all forks would draw the same numbers
        sys.argv[1:] = request["words"]
        return main()

    serve_forks(child, ends_after=ends_after)


def serve_forks(
    task: Callable[[Request], int], connections: Sequence[int] | None = None, *, ends_after: int = 0
) -> NoReturn:
    """The child's end of a ``ForkServer``: run a task in a fork for each request, which ends with the task's status.

    It ends when all connections are closed, or ``ends_after`` seconds after its last fork. ``connections`` are the
    descriptors that the environment named, if they have been taken from it already.
    """

    def go_on() -> int:
        signal.alarm(0)
        return 0

    loop = ForkLoop(
        connections_of_environment() if connections is None else list(connections),
        before_fork=go_on,
        idle=lambda: signal.alarm(ends_after),
    )
    gc.collect()
    signal.alarm(ends_after)
    gc.freeze()  # so that garbage collection in forks does not copy the shared memory
    request = loop.next_request()
    status = 4
    try:
        status = task(request)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def as_json(error: Exception) -> dict[str, Any]:
    """An error as JSON, for ``from_json``; any other exception becomes a BiopsyError.

    An error of a class outside ``errors``, or whose constructor has special arguments, becomes one of its nearest base
    class without these.
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
    """The error from the JSON of ``as_json``."""
    kind = _nearest(getattr(errors, tree["error"], errors.BiopsyError))
    error: errors.BiopsyError = kind(
        tree["message"], **{name: tree[name] for name in ("details", "kept", "next_steps", *kind.facts)}
    )
    return error


def _nearest(kind: object) -> Any:
    """The first class in ``errors`` among a class and its bases that has the usual constructor."""
    classes = kind.__mro__ if isinstance(kind, type) else ()
    usual = (
        each for each in classes if getattr(errors, each.__name__, None) is each and each is not errors.EngineCrash
    )
    return next((each for each in usual if issubclass(each, errors.BiopsyError)), errors.BiopsyError)
