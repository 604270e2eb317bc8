"""What the warm process of a script imports ahead of it, so that the forks need not.

First the imports that the script begins with: whatever it does later, it does these, in this order. Then what the
first forks have imported besides, of which they leave a note. Only modules of the standard library and of
site-packages, never the user's own: those are imported anew in each fork, as in a process.

A module may do something when it is imported that a fork does not share, or that a script could tell: start threads,
open files or devices, print, change the environment, signal handlers, limits. That is found by looking, and cannot be
taken back; so this process begins anew, in its own place, and leaves that module to the forks.

This file imports nothing of biopsy, and runs in any CPython from 3.8 on.
"""

from __future__ import annotations

import _locale
import fcntl
import gc
import json
import os
import select
import site
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, MutableMapping
    from typing import Any

_ONLY_SYNTAX = 0x400  # a flag of compile(): a tree, and no code
_MOST_RESTARTS = 6
_MOST_NOTES = 3
_LONGEST_NOTE = 1 << 20
_SIGNALS_OF_LIBC = 0x1_8000_0000  # 32 and 33
_INHERITED = ("Umask:", "SigIgn:", "SigCgt:", "SigBlk:")


def told(environment: MutableMapping[str, str], name: str) -> dict[str, Any]:
    """What the environment tells under a name; afterwards it is as the script is to find it."""
    text = environment.pop(name)
    state: dict[str, Any] = json.loads(text)
    if state["PYTHONPATH"] is None:
        del environment["PYTHONPATH"]
    else:
        environment["PYTHONPATH"] = state["PYTHONPATH"]
    return state


class UnfitError(Exception):
    """A module is left to the forks."""


class WarmImports:
    """The imports of a warm process. ``state`` is what it was told, ``bare`` are the modules of a bare interpreter,
    ``forks`` the module of that name.

    The state has ``printed``, the descriptor of the end to read of what this process prints; ``connections``, the
    descriptors that lead to who asks; ``left``, the modules that are left to the forks; ``noted``, modules to import
    besides; ``own``, modules of the user; ``starts``, how often it has begun; ``generation``, how often what it has
    loaded became different; ``ready``, whether it has said that it is; and ``PYTHONPATH`` and ``here``, what the
    user has there and what was put before it.
    """

    def __init__(self, state: dict[str, Any], bare: set[str], forks: Any) -> None:
        self._state = state
        self._bare = bare
        self._forks = forks
        libraries = [os.path.dirname(os.__file__), *site.getsitepackages()]
        libraries += [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        self._places = tuple(os.path.join(place, "") for place in libraries)
        self._deeds = Deeds(self._places)
        self._environment = dict(os.environ)
        self._notes = 0
        self._note: tuple[int, int] | None = None
        self._kept: set[str] = set()
        self._is_noting = False
        os.set_blocking(state["printed"], False)
        os.set_blocking(1, False)  # of those two ends nobody reads: who prints too much shall not wait for ever

    # In the warm process

    def of_the_start(self, work: Callable[[], bool]) -> bool:
        """What the start of the interpreter does besides; this process ends if a fork of it would lack something."""
        self._deeds.begin()
        answer = work()
        if self._deeds.end() or not self._forks.fork_loses_no_thread():
            os._exit(4)
        return answer

    def begin(self) -> None:
        """Import what the script begins with, and what was noted."""
        if _says_anything(self._state["printed"]):
            os._exit(4)  # each process of this interpreter prints, and a fork would not
        leading = list(_leading_imports(sys.argv[0], self._is_found_in_library))
        _forget_what_was_said(self._state["printed"])  # warnings of the syntax, which each fork will repeat
        self._import_all([*leading, *((name, ()) for name in self._state["noted"])])

    def before_fork(self) -> int:
        """Have the fork leave a note, if more of them are worth it; the generation of the fork."""
        self._kept = set(sys.modules)
        self._is_noting = self._notes < _MOST_NOTES and self._note is None
        if self._is_noting:
            self._notes += 1
            self._note = os.pipe()
            for descriptor in self._note:
                os.set_blocking(descriptor, False)
            with_room = getattr(fcntl, "F_SETPIPE_SZ", 1031)
            try:
                fcntl.fcntl(self._note[1], with_room, _LONGEST_NOTE)
            except OSError:
                pass  # a long note will not fit
        generation: int = self._state["generation"]
        return generation

    def idle(self) -> None:
        """Import what the last fork has noted."""
        if self._note is None:
            return
        (reading, writing), self._note, said = self._note, None, b""
        os.close(writing)
        try:
            while data := os.read(reading, _LONGEST_NOTE):
                said += data
        except BlockingIOError:
            pass  # something that it started has not ended yet
        os.close(reading)
        noted = json.loads(said) if said.endswith(b"\n") else {"libraries": [], "own": []}  # it did not come to that
        self._state["ready"] = True
        names = [name for name in noted["libraries"] if name not in sys.modules]
        if names:
            self._state["generation"] += 1
        else:
            self._notes = _MOST_NOTES
        self._state["own"] = sorted({*self._state["own"], *noted["own"]})
        self._state["noted"] += names
        self._import_all([(name, ()) for name in names])

    def _import_all(self, names: list[tuple[str, tuple[str, ...]]]) -> None:
        before = self._surroundings()
        for name, parts in names:
            top = name.partition(".")[0]
            if top not in self._state["left"]:
                try:
                    self._import(name, parts, before)
                except UnfitError:
                    self._begin_anew(without=top)
        if names:
            gc.collect()
            gc.freeze()  # what is loaded now is shared with the forks, and not copied by their collector's marks

    def _import(self, name: str, parts: tuple[str, ...], before: object) -> None:
        known = set(sys.modules)
        self._deeds.begin()
        try:
            __import__(name, {}, {}, parts)
        except BaseException as error:
            raise UnfitError from error
        finally:
            has_done_more = self._deeds.end()
        new = set(sys.modules) - known
        tops = {each.partition(".")[0] for each in new}
        own = {each.partition(".")[0] for each in self._state["own"]}
        if tops & {*self._state["left"], *own} or not all(self._is_of_library(each) for each in new):
            raise UnfitError
        if any(_is_beside_script(top) for top in tops - self._bare - set(sys.builtin_module_names)):
            raise UnfitError  # the script would find another one first
        if has_done_more or not self._forks.fork_loses_no_thread() or _says_anything(self._state["printed"]):
            raise UnfitError
        if self._surroundings() != before:
            raise UnfitError

    def _is_of_library(self, name: str) -> bool:
        """Whether a module that is loaded comes from the standard library, or from site-packages."""
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        path = getattr(module, "__file__", None) or getattr(spec, "origin", None)
        if path in (None, "built-in", "frozen", "namespace"):
            folders = list(getattr(module, "__path__", ()))
            return all(self._is_in_library(folder) for folder in folders)
        return self._is_in_library(path)

    def _is_found_in_library(self, top: str) -> bool:
        """Whether a module would be found there, and not beside the script."""
        if top in self._bare or top in sys.builtin_module_names:
            return True
        for finder in sys.meta_path:
            spec = finder.find_spec(top, None)
            if spec is not None:
                places = spec.submodule_search_locations or [spec.origin or ""]
                return not _is_beside_script(top) and (
                    spec.origin in ("built-in", "frozen") or all(map(self._is_in_library, places))
                )
        return False

    def _is_in_library(self, path: str) -> bool:
        return os.path.abspath(path).startswith(self._places)

    def _surroundings(self) -> tuple[object, ...]:
        """What a module had better not change when it is imported."""
        with open("/proc/self/status", encoding="utf-8") as status:
            lines = [line.partition(":") for line in status if line.startswith(_INHERITED)]
        # Without the signals that the first thread of a process has the C library catch.
        inherited = [(name, int(bits, 16) & ~_SIGNALS_OF_LIBC) for name, _, bits in lines]
        with open("/proc/self/limits", encoding="utf-8") as limits:
            limited = limits.read()
        hooks = (sys.excepthook, sys.displayhook, sys.stdin, sys.stdout, sys.stderr, sys.gettrace(), sys.getprofile())
        numbers = (sys.getrecursionlimit(), sys.getswitchinterval(), gc.get_threshold(), gc.isenabled())
        places = (os.getcwd(), list(sys.path), _locale.setlocale(_locale.LC_ALL, None))
        return dict(os.environ), inherited, limited, hooks, numbers, places, _open_files()

    def _begin_anew(self, without: str) -> None:
        """Start this process again with the same connections; from now on ``without`` is imported only in forks."""
        state = self._state
        _forget_what_was_said(state["printed"])
        state["left"].append(without)
        state["starts"] += 1
        if state["starts"] > _MOST_RESTARTS:
            os._exit(4)
        with open("/proc/self/cmdline", "rb") as words:
            command = words.read().split(b"\0")[:-1]
        path = os.pathsep.join(filter(None, [state["here"], state["PYTHONPATH"]]))
        environment = {
            **self._environment,
            "PYTHONPATH": path,
            self._forks.STATE_VARIABLE: json.dumps(state),
            self._forks.CONNECTIONS_VARIABLE: json.dumps(state["connections"]),
            self._forks.FORK_VARIABLE: self._forks.UNMARKED,
        }
        for descriptor in (*state["connections"], state["printed"]):
            os.set_inheritable(descriptor, True)
        os.execve("/proc/self/exe", command, environment)  # noqa: S606 -- as it was started

    # In a fork

    def in_fork(self) -> None:
        """Make this fork what a process of its own would be, and have it note what it imports."""
        os.close(self._state["printed"])
        random = sys.modules.get("numpy.random")
        if random is not None and "numpy.random.mtrand" in sys.modules:
            random.seed()  # each process has its own
        if self._note is not None:
            reading, writing = self._note
            os.close(reading)
            if self._is_noting:
                _leave_note_at_exit(writing, self._is_of_library)
            else:
                os.close(writing)
        for path in list(sys.path_importer_cache):
            if not os.path.join(path, "").startswith(self._places):
                del sys.path_importer_cache[path]  # the user's folders may have changed since
        for name in set(sys.modules) - self._kept:
            del sys.modules[name]


def _leave_note_at_exit(into: int, is_of_library: Callable[[str], bool]) -> None:
    """Have this fork write at its exit what it has imported until then, in this order.

    Nothing if the environment is another one by then: a module may look at it when it is imported.
    """
    import atexit

    pid, environment, known = os.getpid(), dict(os.environ), set(sys.modules)

    def leave_note() -> None:
        if os.getpid() != pid or environment != os.environ:
            return
        new = [name for name in sys.modules if name not in known]
        note = {
            "libraries": [name for name in new if is_of_library(name)],
            "own": [name for name in new if not is_of_library(name)],
        }
        try:
            os.write(into, json.dumps(note).encode() + b"\n")
            os.close(into)
        except OSError:
            pass  # too long a note: nothing more is imported

    atexit.register(leave_note)  # before any other: so it is called last


def _leading_imports(script: str, is_found: Callable[[str], bool]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The imports that a script begins with, up to the first that is not of a library or may do anything else."""
    try:
        with open(script, "rb") as source:
            tree = compile(source.read(), script, "exec", _ONLY_SYNTAX, dont_inherit=True)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # it cannot be read, which each fork will tell
    for statement in tree.body:
        kind = type(statement).__name__
        if kind == "Import":
            found = [(alias.name, ()) for alias in statement.names]
        elif kind == "ImportFrom" and not statement.level:
            found = [(statement.module, tuple(alias.name for alias in statement.names))]
        elif kind == "Expr" and type(statement.value).__name__ in ("Constant", "Str"):
            continue
        else:
            return
        for name, parts in found:
            if not is_found(name.partition(".")[0]):
                return
            yield name, () if "*" in parts else parts


def _is_beside_script(top: str) -> bool:
    """Whether the folder of the script, which is looked into first, has a module of this name."""
    folder = os.path.dirname(os.path.realpath(sys.argv[0]))
    for finder in sys.meta_path:
        if getattr(finder, "__name__", "") == "PathFinder":
            spec = finder.find_spec(top, [folder])
            return spec is not None and spec.origin is not None
    return True


def _says_anything(printed: int) -> bool:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return bool(select.select([printed], [], [], 0)[0])


def _forget_what_was_said(printed: int) -> None:
    while _says_anything(printed):
        os.read(printed, 1 << 16)


def _open_files() -> list[tuple[str, str]]:
    """The descriptors that are open and what they are, but for plain files, which it does not matter to share."""
    found = []
    for descriptor in sorted(os.listdir("/proc/self/fd")):
        try:
            found.append((descriptor, os.readlink("/proc/self/fd/" + descriptor)))
        except OSError:
            pass  # it was the listing itself
    return [(descriptor, link) for descriptor, link in found if link not in _PLAIN_FILES]


# Hears what a module does when it is imported that a look at the process afterwards does not tell.
#
# It reads a file that may have changed by the next check, writes one, starts a program, or seeds the generators that
# each fork seeds anew.

_QUIET, _LOUD = "ORT_DISABLE_TELEMETRY", "onnxruntime"
"""Set when this is imported: ONNX Runtime would start a thread that tells of its use, and forks would lose it."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_OF_THE_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib/", "/lib64/", "/bin/", "/opt/")
_PLAIN_FILES = ("/dev/null", "/dev/urandom", "/dev/random")
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
            return path not in _PLAIN_FILES
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
