"""Hears what a module does when it is imported that a look at the process afterwards does not tell.

It reads a file that may have changed by the next check, writes one, starts a program, or seeds the generators that each
fork seeds anew. This file imports nothing of biopsy, and runs in any CPython from 3.8 on.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_QUIET, _LOUD = "ORT_DISABLE_TELEMETRY", "onnxruntime"
"""Set when this is imported: ONNX Runtime would start a thread that tells of its use, and forks would lose it."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_OF_THE_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib/", "/lib64/", "/bin/", "/opt/")
PLAIN_FILES = ("/dev/null", "/dev/urandom", "/dev/random")
_DEEDS = {
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.utime", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec", "subprocess.Popen",
    "tempfile.mkdtemp", "tempfile.mkstemp", "socket.bind", "socket.connect", "sqlite3.connect",
}  # fmt: skip
_GENERATORS = ("random", "numpy.random.mtrand")


class Deeds:
    """What was done between ``begin`` and ``end``. ``places`` are the folders of libraries."""

    def __init__(self, places: Iterable[str]) -> None:
        prefixes = (os.path.join(prefix, "") for prefix in (sys.prefix, sys.base_prefix))
        self._places = (*places, *(prefix for prefix in prefixes if prefix != os.sep), *_OF_THE_SYSTEM)
        self._listens = False
        self._quiet = False
        self._done = False
        self._states: dict[str, object] = {}
        sys.addaudithook(self._hear)

    def begin(self) -> None:
        """Listen from now on."""
        self._done, self._quiet = False, False
        self._states = {name: _state(name) for name in _GENERATORS if name in sys.modules}
        self._listens = True

    def end(self) -> bool:
        """Listen no more, and say whether anything was done."""
        self._listens = False
        if self._quiet:
            os.environ.pop(_QUIET, None)
        return self._done or any(_state(name) != state for name, state in self._states.items())

    def _hear(self, event: str, details: tuple[Any, ...]) -> None:
        if not self._listens:
            return
        try:
            if event == "import":
                self._imported(*details[:2])
            elif event == "open":
                self._done |= self._opened(*details)
            elif event in _DEEDS and not _is_of_cache(details[0]):
                self._done = True
        except Exception:  # whatever a library has given there
            self._done = True

    def _imported(self, name: str, file: str | None) -> None:
        """See a module that is about to be imported, and begins to be looked for."""
        if name in _GENERATORS and file is None and name not in self._states:
            self._states[name] = None  # what follows says the same once more
            __import__(name)
            self._states[name] = _state(name)  # before anybody else can seed it
        if name.partition(".")[0] == _LOUD and _QUIET not in os.environ:
            os.environ[_QUIET] = "1"
            self._quiet = True

    def _opened(self, file: Any, mode: str | None, flags: int) -> bool:
        """Whether that is more than reading a file of the system or of libraries."""
        if isinstance(file, int) or _is_of_cache(file):
            return False
        path = os.path.abspath(os.fsdecode(file))
        if (mode and set(mode) & set("wax+")) or flags & _WRITES:
            return path not in PLAIN_FILES
        return not path.startswith(self._places) and not os.path.realpath(path).startswith(self._places)


def _is_of_cache(file: Any) -> bool:
    """Whether it is where compiled modules are kept."""
    if not isinstance(file, (str, bytes)):
        return False
    path = os.fsdecode(file)
    kept = getattr(sys, "pycache_prefix", None)
    return "__pycache__" in path or ".pyc" in os.path.basename(path) or bool(kept and path.startswith(kept))


def _state(name: str) -> object:
    """The state of the generator that all modules share; None while its module is not whole."""
    module: Any = sys.modules.get(name)
    if name == "random":
        return module.getstate() if hasattr(module, "getstate") else None
    generator = getattr(module, "_rand", None)
    if generator is None:
        return None
    kind, key, *rest = generator.get_state()
    return kind, key.tobytes(), rest
