"""The imports of the warm process of a script, so that its forks need not make them.

First come the imports at the beginning of the script, which it always makes, in this order; then further imports of
the first forks, of which they leave a note. Only modules of the standard library and of site-packages are imported,
never the user's own, which each fork imports itself.

Importing a module may have effects that a fork does not share or that a script could notice: it may start threads, open
files or devices, print, or change the environment, signal handlers or limits. This process looks for such effects, but
cannot undo them; so it starts again, by exec, and leaves that module to the forks.

This file must run in CPython 3.8 or newer, and must not import biopsy.
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


def state_of(environment: MutableMapping[str, str], name: str) -> dict[str, Any]:
    """The state in an environment variable; the environment is then made what the script must see."""
    text = environment.pop(name)
    state: dict[str, Any] = json.loads(text)
    if state["PYTHONPATH"] is None:
        del environment["PYTHONPATH"]
    else:
        environment["PYTHONPATH"] = state["PYTHONPATH"]
    return state


class UnfitError(Exception):
    """A module must be left to the forks."""


class WarmImports:
    """The imports of a warm process. ``bare`` are the modules of a bare interpreter, ``forks`` is the module forks.py.

    ``state`` has ``printed``, the descriptor to read this process's output from; ``connections``, the descriptors of
    its connections; ``left``, the modules that are left to the forks; ``noted``, modules from notes; ``own``, modules
    of the user; ``starts``, the number of restarts; ``generation``, the number of changes of the loaded modules;
    ``ready``, whether it has reported that it is; and ``PYTHONPATH``, the user's, and ``here``, which was put before
    it.
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
        os.set_blocking(1, False)  # since nothing reads its output: a lot of it must not block for ever

    def of_the_start(self, work: Callable[[], bool]) -> bool:
        """Do the rest of the interpreter's start; this process ends if it has effects that a fork would lack."""
        self._deeds.begin()
        answer = work()
        if self._deeds.end() or not self._forks.fork_loses_no_thread():
            os._exit(4)
        return answer

    def begin(self) -> None:
        """Make the imports at the beginning of the script, and those from notes."""
        if _has_printed(self._state["printed"]):
            os._exit(4)  # every start of this interpreter prints something, which a fork would lack
        leading = list(_leading_imports(sys.argv[0], self._is_found_in_library))
        _drop_output(self._state["printed"])  # warnings about syntax, which each fork will repeat
        self._import_all([*leading, *((name, ()) for name in self._state["noted"])])

    def before_fork(self) -> int:
        """Prepare the note of the next fork, if another one is needed; returns the generation of the fork."""
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
                pass  # then a long note does not fit
        generation: int = self._state["generation"]
        return generation

    def idle(self) -> None:
        """Make the imports in the note of the last fork."""
        if self._note is None:
            return
        (reading, writing), self._note, text = self._note, None, b""
        os.close(writing)
        try:
            while data := os.read(reading, _LONGEST_NOTE):
                text += data
        except BlockingIOError:
            pass  # a process that it started has not ended yet
        os.close(reading)
        note = json.loads(text) if text.endswith(b"\n") else {"libraries": [], "own": []}  # it wrote none, or a part
        self._state["ready"] = True
        names = [name for name in note["libraries"] if name not in sys.modules]
        if names:
            self._state["generation"] += 1
        else:
            self._notes = _MOST_NOTES
        self._state["own"] = sorted({*self._state["own"], *note["own"]})
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
            gc.freeze()  # so that garbage collection in forks does not copy the shared memory

    def _import(self, name: str, parts: tuple[str, ...], before: object) -> None:
        known = set(sys.modules)
        self._deeds.begin()
        try:
            __import__(name, {}, {}, parts)
        except BaseException as error:
            raise UnfitError from error
        finally:
            has_effects = self._deeds.end()
        new = set(sys.modules) - known
        tops = {each.partition(".")[0] for each in new}
        own = {each.partition(".")[0] for each in self._state["own"]}
        if tops & {*self._state["left"], *own} or not all(self._is_of_library(each) for each in new):
            raise UnfitError
        if any(_is_beside_script(top) for top in tops - self._bare - set(sys.builtin_module_names)):
            raise UnfitError  # the script would import the one beside it
        if has_effects or not self._forks.fork_loses_no_thread() or _has_printed(self._state["printed"]):
            raise UnfitError
        if self._surroundings() != before:
            raise UnfitError

    def _is_of_library(self, name: str) -> bool:
        """Whether a loaded module comes from the standard library or site-packages."""
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        path = getattr(module, "__file__", None) or getattr(spec, "origin", None)
        if path in (None, "built-in", "frozen", "namespace"):
            folders = list(getattr(module, "__path__", ()))
            return all(self._is_in_library(folder) for folder in folders)
        return self._is_in_library(path)

    def _is_found_in_library(self, top: str) -> bool:
        """Whether a module would be found in the standard library or site-packages, and not beside the script."""
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
        """The state of this process that importing a module must not change."""
        with open("/proc/self/status", encoding="utf-8") as status:
            lines = [line.partition(":") for line in status if line.startswith(_INHERITED)]
        # Without the signals that the C library catches when the first thread is started.
        inherited = [(name, int(bits, 16) & ~_SIGNALS_OF_LIBC) for name, _, bits in lines]
        with open("/proc/self/limits", encoding="utf-8") as limits:
            limited = limits.read()
        hooks = (sys.excepthook, sys.displayhook, sys.stdin, sys.stdout, sys.stderr, sys.gettrace(), sys.getprofile())
        numbers = (sys.getrecursionlimit(), sys.getswitchinterval(), gc.get_threshold(), gc.isenabled())
        places = (os.getcwd(), list(sys.path), _locale.setlocale(_locale.LC_ALL, None))
        return dict(os.environ), inherited, limited, hooks, numbers, places, _open_files()

    def _begin_anew(self, without: str) -> None:
        """Start this process again with the same connections; ``without`` is then imported only in forks."""
        state = self._state
        _drop_output(state["printed"])
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

    def in_fork(self) -> None:
        """In a fork: become like a process that was started separately, and note later imports."""
        os.close(self._state["printed"])
        random = sys.modules.get("numpy.random")
        if random is not None and "numpy.random.mtrand" in sys.modules:
            random.seed()  # as in each process
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
    """Write a note at the exit of this fork with the modules it has imported, in their order.

    None if the environment has changed, since importing a module may depend on it.
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
            pass  # too long a note: no more is imported

    atexit.register(leave_note)  # the first to be registered is called last


def _leading_imports(script: str, is_found: Callable[[str], bool]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The imports at the beginning of a script, up to the first statement that is not an import of a library."""
    try:
        with open(script, "rb") as source:
            tree = compile(source.read(), script, "exec", _ONLY_SYNTAX, dont_inherit=True)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # each fork will report that it cannot be read
    for statement in tree.body:
        kind = type(statement).__name__
        if kind == "Import":
            imports = [(alias.name, ()) for alias in statement.names]
        elif kind == "ImportFrom" and not statement.level:
            imports = [(statement.module, tuple(alias.name for alias in statement.names))]
        elif kind == "Expr" and type(statement.value).__name__ in ("Constant", "Str"):
            continue
        else:
            return
        for name, parts in imports:
            if not is_found(name.partition(".")[0]):
                return
            yield name, () if "*" in parts else parts


def _is_beside_script(top: str) -> bool:
    """Whether the script's folder, which is the first on the import path, has a module with this name."""
    folder = os.path.dirname(os.path.realpath(sys.argv[0]))
    for finder in sys.meta_path:
        if getattr(finder, "__name__", "") == "PathFinder":
            spec = finder.find_spec(top, [folder])
            return spec is not None and spec.origin is not None
    return True


def _has_printed(printed: int) -> bool:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return bool(select.select([printed], [], [], 0)[0])


def _drop_output(printed: int) -> None:
    while _has_printed(printed):
        os.read(printed, 1 << 16)


def _open_files() -> list[tuple[str, str]]:
    """The open descriptors and what they are, except devices that may be shared."""
    links = []
    for descriptor in sorted(os.listdir("/proc/self/fd")):
        try:
            links.append((descriptor, os.readlink("/proc/self/fd/" + descriptor)))
        except OSError:
            pass  # the descriptor of the listing itself
    return [(descriptor, link) for descriptor, link in links if link not in _PLAIN_FILES]


_QUIET, _LOUD = "ORT_DISABLE_TELEMETRY", "onnxruntime"
"""A variable, and the module while which is imported it is set: else ONNX Runtime would start a thread for telemetry,
which forks would lose."""

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
    """Notices, by an audit hook, effects of an import that cannot be seen in the process afterwards.

    It may read a file that can change before the next check, write one, start a program, or seed random generators,
    which each fork seeds anew. ``places`` are the folders of libraries.
    """

    def __init__(self, places: Iterable[str]) -> None:
        prefixes = (os.path.join(prefix, "") for prefix in (sys.prefix, sys.base_prefix))
        self._places = (*places, *(prefix for prefix in prefixes if prefix != os.sep), *_OF_THE_SYSTEM)
        self._listens = False
        self._quiet = False
        self._done = False
        self._states: dict[str, object] = {}
        sys.addaudithook(self._hear)

    def begin(self) -> None:
        """Begin to listen."""
        self._done, self._quiet = False, False
        self._states = {name: _state(name) for name in _GENERATORS if name in sys.modules}
        self._listens = True

    def end(self) -> bool:
        """Stop listening; returns whether there was any effect."""
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
        except Exception:  # a library may pass anything as details
            self._done = True

    def _imported(self, name: str, file: str | None) -> None:
        """Handle the event that a module is about to be imported."""
        if name in _GENERATORS and file is None and name not in self._states:
            self._states[name] = None  # so that the import below does not come here again
            __import__(name)
            self._states[name] = _state(name)  # before another module can seed it
        if name.partition(".")[0] == _LOUD and _QUIET not in os.environ:
            os.environ[_QUIET] = "1"
            self._quiet = True

    def _opened(self, file: Any, mode: str | None, flags: int) -> bool:
        """Whether opening this file is more than reading a file of the system or of libraries."""
        if isinstance(file, int) or _is_of_cache(file):
            return False
        path = os.path.abspath(os.fsdecode(file))
        if (mode and set(mode) & set("wax+")) or flags & _WRITES:
            return path not in _PLAIN_FILES
        return not path.startswith(self._places) and not os.path.realpath(path).startswith(self._places)


def _is_of_cache(file: Any) -> bool:
    """Whether a file is a compiled module, or in a folder of such."""
    if not isinstance(file, (str, bytes)):
        return False
    path = os.fsdecode(file)
    prefix = getattr(sys, "pycache_prefix", None)
    return "__pycache__" in path or ".pyc" in os.path.basename(path) or bool(prefix and path.startswith(prefix))


def _state(name: str) -> object:
    """The state of a shared random generator; None while its module is not completely imported."""
    module: Any = sys.modules.get(name)
    if name == "random":
        return module.getstate() if hasattr(module, "getstate") else None
    generator = getattr(module, "_rand", None)
    if generator is None:
        return None
    kind, key, *rest = generator.get_state()
    return kind, key.tobytes(), rest
