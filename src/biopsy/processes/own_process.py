"""The process that runs biopsy: how it starts Python again, is interrupted and ends, its memory, warnings for the end
of its command, and where it was installed from.
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
from typing import Any, NoReturn

from biopsy.processes.reaper import processes, stat_of
from biopsy.text import line_of

_START = """\
import sys
sys.argv[0] = "biopsy"
from {module} import main
sys.exit(main())
"""


def own_python(module: str) -> list[str]:
    """The words of a command that calls ``main`` of one of biopsy's modules and exits with the status it returns.

    The current folder is the user's, and may contain an onnx.py. ``-P`` keeps it off the search path from the start,
    since for ``-c`` Python imports modules before our first line. Further words of the command become
    ``sys.argv[1:]``.
    """
    return [sys.executable, "-P", "-c", _START.format(module=module)]


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
    """As ``own_python``, in another interpreter, which can import biopsy but no other package of this one.

    The module and what it imports must need only the standard library of that version of Python.
    """
    return [str(python), "-I", "-c", _START_ELSEWHERE.format(module=module), str(Path(__file__).parents[1])]


@contextmanager
def variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables, and restore the old ones afterwards. Not thread-safe."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            os.environ |= {} if value is None else {name: value}


_AGAIN_AFTER = 0.05
"""Seconds until a lost interrupt is raised again, after the callback that lost it has ended."""

is_program = False
"""Whether this process runs only the command, so that it may ignore signals until it ends."""


def signals(*names: str) -> frozenset[signal.Signals]:
    """Those of these signals that the platform has."""
    return frozenset(getattr(signal, name) for name in names if hasattr(signal, name))


FROM_SOMEBODY = signals("SIGTERM", "SIGHUP", "SIGINT")
"""Signals that no engine raises itself: a death by these says nothing about the model."""


class Interrupts:
    """Signal handlers that raise KeyboardInterrupt, but not again within ``seconds``, when it is the same request.

    Python prints and drops an exception in a callback, such as one of ``weakref`` or ``__del__``. An interrupt that is
    lost like this is raised again.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._requested: float | None = None
        self._number = signal.SIGINT.value

    def handle(self, number: int, frame: object) -> None:
        """The handler of a signal."""
        del frame
        self._number = number
        if self._requested is None or time.monotonic() - self._requested > self._seconds:
            self._requested = time.monotonic()
            raise KeyboardInterrupt

    def take_over(self, numbers: Sequence[int]) -> dict[int, Any]:
        """Handle these signals, except ignored ones, as with nohup; returns the handlers that they had."""
        handlers = {number: signal.getsignal(number) for number in numbers}
        kept = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
        for number in kept:
            signal.signal(number, self.handle)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return kept

    def give_back(self, handlers: dict[int, Any]) -> None:
        """Undo ``take_over``. After an interrupt, the program is ending and ignores the signals instead."""
        sys.unraisablehook = self._hook
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_IGN if self._requested is not None and is_program else handler)

    def _unraisable(self, lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            self._hook(lost)
            return
        self._requested = None
        again = threading.Timer(_AGAIN_AFTER, self._come_again)
        again.daemon = True
        again.start()

    def _come_again(self) -> None:
        """Send the signal to the main thread, which handles it, so that it also ends a call in which that waits."""
        main = threading.main_thread().ident
        if main is not None and hasattr(signal, "pthread_kill"):
            signal.pthread_kill(main, self._number)
        else:
            signal.raise_signal(self._number)


@contextlib.contextmanager
def interrupted_once(seconds: float) -> Iterator[None]:
    """Let SIGTERM, and SIGHUP of a closed terminal, raise KeyboardInterrupt inside, as Ctrl-C does.

    Further signals within these seconds do nothing, so that the best result can be written and checks can be ended.
    Ignored signals stay ignored, as with nohup.
    """
    interrupts = Interrupts(seconds)
    handlers = interrupts.take_over([*signals("SIGINT", "SIGTERM", "SIGHUP")])
    try:
        yield
    finally:
        interrupts.give_back(handlers)


class HeldSignals:
    """Delays signals with handlers in Python from now on until ``release``, which handles them in their order.

    A handler that raises while this process forks would leave an unknown fork; in a function that was registered for
    forks, Python would print and drop what it raises. Only the main thread runs handlers, so nothing is delayed in
    others.
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
        """Restore the handlers, and call those of the signals that have arrived."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        arrived, self._arrived = self._arrived, []
        for number, frame in arrived:
            self._handlers[number](number, frame)


@contextmanager
def kept_signal_stack() -> Iterator[None]:
    """Restore this thread's signal stack afterwards.

    OpenVINO's CPU plug-in gives the thread that loads it a new signal stack, and frees it in the thread that unloads
    the plug-in, which may be another one: the next signal, such as Ctrl-C, would then end this process by SIGSEGV.
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


def flush() -> None:
    """Flush stdout and stderr, if they can still be written."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def leave(status: int) -> NoReturn:
    """End this process with a status, after flushing its output and running the functions registered with atexit.

    Python's own cleanup of modules and engines is skipped: it takes some 30 ms and has crashed engines. Running threads
    end with the process. Output that cannot be written, as into a closed pipe, is dropped.
    """
    try:
        flush()
        atexit._run_exitfuncs()
    finally:
        os._exit(status)


def end_by_signal(number: int) -> None:
    """End this process by a signal; returns only if that fails, as in the first process of a container."""
    with suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(0.1)


_UNKNOWN = 1 << 62
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def memory() -> int:
    """The greatest memory of this process in bytes: the machine's, its container's, or its limit (``ulimit -v``)."""
    limits = [_memory_of_the_container()]
    with suppress(AttributeError, ValueError, OSError):  # unknown on this platform
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        limits += [] if soft == resource.RLIM_INFINITY else [soft]
    return min(limits)


@functools.cache  # else the file would be read for each input of a model
def _memory_of_the_container() -> int:
    with suppress(OSError, ValueError):  # no container, or no limit: "max"
        return int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
    return _UNKNOWN


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def taken_by(pid: int) -> int:
    """The resident memory of a process in bytes, without mapped files such as weights; 0 without ``/proc``."""
    with suppress(OSError, ValueError, IndexError):
        resident, shared = Path(f"/proc/{pid}/statm").read_bytes().split()[1:3]
        return (int(resident) - int(shared)) * _PAGE
    return 0


def taken_by_family(leader: int) -> int:
    """As ``taken_by``, for a process, all processes in the session that it leads, and all that these have started.

    Memory shared by forks counts for each of them. A process may name in its own name the session it works for.
    """
    queue = [leader]
    with suppress(OSError, IndexError):
        if int(stat_of(leader)[4]) == leader:
            for pid in processes():
                with suppress(OSError, IndexError):
                    status = stat_of(pid)
                    if int(status[4]) == leader or status[0] == b"for %d" % leader:
                        queue.append(pid)
    family: set[int] = set()
    while queue:
        each = queue.pop()
        if each not in family:
            family.add(each)
            with suppress(OSError, ValueError):  # the process and its threads may end at any moment
                for thread in Path(f"/proc/{each}/task").iterdir():
                    queue += map(int, (thread / "children").read_bytes().split())
    return sum(map(taken_by, family))


settings_of_checks: dict[str, None] = {}
"""The options from settings files of commands inside checks, which affect the answers of these checks."""

_MOST_WARNINGS = 20
_warnings: list[str] = []


def warn_at_end(text: str) -> None:
    """Show a warning once, when the command ends, unless there are many already."""
    if text not in _warnings and len(_warnings) < _MOST_WARNINGS:
        _warnings.append(text)


def taken_warnings() -> list[str]:
    """The warnings since the last call of this."""
    warnings, _warnings[:] = _warnings[:], []
    return warnings


def install_line(requirement: str) -> str:
    """The line that installs a package, or an extra such as ``biopsy[openvino]`` from where biopsy was installed from.

    In the folder of a checkout that is ``.[openvino]``.
    """
    name, bracket, extras = requirement.partition("[")
    root = Path(__file__).parents[3]
    if name == "biopsy" and bracket and (root / "pyproject.toml").is_file():
        name = "." if root.samefile(".") else str(root)
    return line_of(["pip", "install", f"{name}{bracket}{extras}"])
