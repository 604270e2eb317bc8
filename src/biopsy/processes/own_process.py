"""The process that runs this program: how it starts itself again, is interrupted and ends, the memory it may take,
the engine that it called last, and what is to be said at the end of its command.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from biopsy.processes.reaper import processes, stat_of

if TYPE_CHECKING:
    from mmap import mmap

_START = """\
import sys
sys.argv[0] = {name!r}
from {module} import main
sys.exit(main())
"""


def own_python(module: str, *, name: str = "biopsy") -> list[str]:
    """The words of a command that calls ``main`` of one of our modules, and exits with what it returns.

    The current folder is the user's, and may hold an onnx.py. ``-P`` keeps it off the search path from the very start:
    Python itself imports modules for ``-c`` before it comes to our first line. ``name`` is what ``sys.argv[0]`` says
    there. Further words follow as ``sys.argv[1:]``.
    """
    return [sys.executable, "-P", "-c", _START.format(name=name, module=module)]


_START_ELSEWHERE = """\
import importlib.util, sys
place = sys.argv.pop(1)
found = importlib.util.spec_from_file_location("biopsy", place + "/__init__.py", submodule_search_locations=[place])
sys.modules["biopsy"] = importlib.util.module_from_spec(found)
found.loader.exec_module(sys.modules["biopsy"])
sys.argv[0] = "biopsy"
from {module} import main
sys.exit(main())
"""


def other_python(python: Path, module: str) -> list[str]:
    """As ``own_python``, in another interpreter, which sees our modules and nothing else of what is installed here.

    The module, and what it imports, must need nothing but the standard library, in that version of Python.
    """
    return [str(python), "-I", "-c", _START_ELSEWHERE.format(module=module), str(Path(__file__).parents[1])]


@contextmanager
def variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """Have these variables, then what was there before. For one thread: they are those of the whole process."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            os.environ |= {} if value is None else {name: value}


# Signals that ask this process to end: one KeyboardInterrupt, however often they come and wherever they arrive.

_AGAIN_AFTER = 0.05
"""Seconds until an interrupt that was swallowed is raised once more: what has swallowed it is over by then."""

is_program = False
"""Whether this process is the command and nothing else, so that it may go on ignoring signals until it ends."""


def signals(*names: str) -> frozenset[signal.Signals]:
    """Those of these signals that the platform has."""
    return frozenset(getattr(signal, name) for name in names if hasattr(signal, name))


class Interrupts:
    """Handlers that raise KeyboardInterrupt, but not again for what comes within ``seconds``: it is the same request.

    Python prints and forgets an exception that is raised in a callback, such as one of ``weakref`` or ``__del__``. An
    interrupt that is lost there is raised again.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._asked: float | None = None
        self._number = signal.SIGINT.value

    def handle(self, number: int, frame: object) -> None:
        """The handler of a signal."""
        del frame
        self._number = number
        if self._asked is None or time.monotonic() - self._asked > self._seconds:
            self._asked = time.monotonic()
            raise KeyboardInterrupt

    def take_over(self, numbers: Sequence[int]) -> dict[int, Any]:
        """Handle signals, but for those that are ignored, as with nohup; returns the handlers that they had."""
        handlers = {number: signal.getsignal(number) for number in numbers}
        kept = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
        for number in kept:
            signal.signal(number, self.handle)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return kept

    def give_back(self, handlers: dict[int, Any]) -> None:
        """Undo ``take_over``. After a request a program ignores the signals instead: it is ending."""
        sys.unraisablehook = self._hook
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_IGN if self._asked is not None and is_program else handler)

    def _unraisable(self, lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            self._hook(lost)
            return

        self._asked = None
        again = threading.Timer(_AGAIN_AFTER, self._come_again)
        again.daemon = True
        again.start()

    def _come_again(self) -> None:
        """Send the signal to the thread that handles it, so that it ends a call in which that thread waits."""
        main = threading.main_thread().ident
        if main is not None and hasattr(signal, "pthread_kill"):
            signal.pthread_kill(main, self._number)
        else:
            signal.raise_signal(self._number)


@contextlib.contextmanager
def interrupted_once(seconds: float) -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is closed, end what stands inside as Ctrl-C does: nothing found is lost.

    Asked again within so many seconds it goes on with what it does then: to write the best result, and to end checks.
    What is ignored, as with nohup, stays so.
    """
    interrupts = Interrupts(seconds)
    handlers = interrupts.take_over([*signals("SIGINT", "SIGTERM", "SIGHUP")])
    try:
        yield
    finally:
        interrupts.give_back(handlers)


class HeldSignals:
    """Signals whose handlers are in Python wait from now on until they are released, in the order of their arrival.

    A handler that raises while this process forks would leave a fork that nobody knows of; in a function that was
    registered for forks, Python prints and forgets what it raises. In other threads than the main one, which run no
    handlers, nothing is held.
    """

    def __init__(self) -> None:
        self._arrived: list[tuple[int, Any]] = []
        self._handlers: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                if callable(handler := signal.getsignal(number)) and not isinstance(handler, signal.Handlers):
                    self._handlers[number] = handler
                    signal.signal(number, self._arrive)

    def _arrive(self, number: int, frame: object) -> None:
        self._arrived.append((number, frame))

    def release(self) -> None:
        """Give the handlers back and call those whose signals have come."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        arrived, self._arrived = self._arrived, []
        for number, frame in arrived:
            self._handlers[number](number, frame)


@contextmanager
def kept_signal_stack() -> Iterator[None]:
    """The stack on which this thread handles signals is afterwards what it was.

    OpenVINO's CPU plug-in gives the thread that loads it a stack of its own, and frees that in the thread that
    unloads it, whichever that is: the next signal, such as Ctrl-C, would end this process by SIGSEGV.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    import ctypes

    class Stack(ctypes.Structure):
        _fields_ = (("place", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

    before, system = Stack(), ctypes.CDLL(None)
    system.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        system.sigaltstack(ctypes.byref(before), None)


# The end of a process of ours: nothing that is loaded is taken apart.


def flush() -> None:
    """Write what was printed, if it can be written any more."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def leave(status: int) -> NoReturn:
    """End this process with a status, once all is written and what was registered for its end is done.

    Modules and engines stay as they are: nobody needs them taken apart, which takes some 30 ms and has crashed engines.
    Threads that still run end with the process. What cannot be written any more, as into a closed pipe, is dropped.
    """
    try:
        flush()
        atexit._run_exitfuncs()
    finally:
        os._exit(status)


# How much of the machine there is for one process, its memory and its processors, and how much memory it has taken.

_UNKNOWN = 1 << 62
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def memory() -> int:
    """Bytes that this process may have at most: the machine's, its container's, or its own limit (``ulimit -v``)."""
    limits = [_memory_of_the_container()]
    with suppress(AttributeError, ValueError, OSError):  # not on this platform
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        limits += [] if soft == resource.RLIM_INFINITY else [soft]
    return min(limits)


@functools.cache  # a file, which a model of many inputs would have read for each of them
def _memory_of_the_container() -> int:
    with suppress(OSError, ValueError):  # no container, or no limit: "max"
        return int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
    return _UNKNOWN


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def taken_by(pid: int) -> int:
    """Resident bytes of a process that no file backs; 0 where they are not known, as on a system without ``/proc``.

    Weights that are mapped from their file do not count, nor does address space that was only reserved.
    """
    with suppress(OSError, ValueError, IndexError):
        resident, shared = Path(f"/proc/{pid}/statm").read_bytes().split()[1:3]
        return (int(resident) - int(shared)) * _PAGE
    return 0


def taken_by_family(leader: int) -> int:
    """The same for a process, for all in the session that it leads, and for all that they have started.

    What forks share counts for each. A process that a warm process forked belongs to the session that its name says.
    """
    waiting = [leader]
    with suppress(OSError, IndexError):
        if int(stat_of(leader)[4]) == leader:
            for pid in processes():
                with suppress(OSError, IndexError):
                    status = stat_of(pid)
                    if int(status[4]) == leader or status[0] == b"for %d" % leader:
                        waiting.append(pid)
    family: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each not in family:
            family.add(each)
            with suppress(OSError, ValueError):  # it may end at any moment, as may each of its threads
                for thread in Path(f"/proc/{each}/task").iterdir():
                    waiting += map(int, (thread / "children").read_bytes().split())
    return sum(map(taken_by, family))


# The call of an engine that this process made last, for whoever has to tell of its death: which engine, and for what.
#
# It stands in memory that is shared with the process that watches this one (``supervised``), so it outlives a crash.
# Where nobody watches, nothing is kept.

SIZE = 4096
"""Bytes of the shared memory."""

_DONE, _STATUS, _OPEN, _LENGTH, _TEXT = 0, 1, 2, slice(3, 5), 5
_MOST = SIZE - _TEXT

_shared: list[mmap] = []
"""The memory, if there is any."""


class LastCall(NamedTuple):
    """The call that was made last; ``is_open``: the engine had not answered yet."""

    engine: str
    stage: str
    description: str
    is_open: bool


class EngineCall:
    """While an engine is called: ``with EngineCall(label, "build", "it built the model"):``.

    An engine that calls another is the one that counts.
    """

    def __init__(self, engine: str, stage: str, description: str) -> None:
        self._text = "\0".join((engine, stage, description))
        self._is_outermost = False

    def __enter__(self) -> None:
        if not _shared or _shared[0][_OPEN]:
            return
        self._is_outermost, page = True, _shared[0]
        data = self._text.encode("utf-8", "replace")[:_MOST]
        page[_TEXT : _TEXT + len(data)] = data
        page[_LENGTH] = len(data).to_bytes(2, "little")
        page[_OPEN] = 1

    def __exit__(self, *_: object) -> None:
        if self._is_outermost:
            _shared[0][_OPEN] = 0


def is_watched() -> bool:
    """Whether a process watches this one, and will tell of its death."""
    return bool(_shared)


def share(page: mmap) -> None:
    """Tell from now on, into this page."""
    _shared[:] = [page]


def finish(page: mmap, status: int) -> None:
    """Tell that the task is done, and its exit status: what ends the process after that spoils nothing."""
    page[_STATUS] = status & 0xFF
    page[_DONE] = 1


def finished(page: mmap) -> int | None:
    """The exit status of a task that was done to its end, else None."""
    return page[_STATUS] if page[_DONE] else None


def last_call(page: mmap) -> LastCall | None:
    """The call that the process made last; None if it called no engine."""
    data = page[_TEXT : _TEXT + int.from_bytes(page[_LENGTH], "little")]
    words = data.decode("utf-8", "replace").split("\0")
    return LastCall(words[0], words[1], words[2], bool(page[_OPEN])) if len(words) == 3 else None


# What is to be said at the end of the command, learnt where no console is at hand.

settings_heard: dict[str, None] = {}
"""What settings files gave to commands inside of the checks that were judged here: their answers rest on it, too."""

_MOST_WARNINGS = 20
_warnings: list[str] = []


def warn_at_end(text: str) -> None:
    """Have a warning shown when the command ends, once; nothing if there are many of them already."""
    if text not in _warnings and len(_warnings) < _MOST_WARNINGS:
        _warnings.append(text)


def taken_warnings() -> list[str]:
    """The warnings since this was called last."""
    taken, _warnings[:] = _warnings[:], []
    return taken
