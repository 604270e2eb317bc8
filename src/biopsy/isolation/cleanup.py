"""What must not outlive this process, however it ends: child processes, temporary folders, and transient files.

Children lead sessions of their own, so nothing ends them when biopsy is killed by SIGKILL and has no time to do so
itself. A shell, started with the first entry, holds a list of what there is now, and waits for the end of this
process. If the list is not empty then, the shell becomes a Python that runs this file, which cleans up. Where there is
no shell, nothing of this happens.

The list stands in no file: who could write there could have anything removed. What it names in folders of the user is
known by its inode too, and whatever else has come to stand there since is left as it is.

This file imports nothing of biopsy.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

VERDICT_VARIABLE = "BIOPSY_VERDICT"
"""A check, and all that it starts, carry the path of its verdict file in this; it stands in a folder of its own."""

Entry: TypeAlias = tuple[str, ...]
"""A line of the list, see ``clean_up``: a word for what it is, then what it names."""

_SHELL = """\
trap '' HUP INT QUIT TERM
cd /
list=
while IFS= read -r line; do
  case $line in
    +*) list="$list${line#+}
" ;;
    -*) gone="${line#-}
"; case $list in *"$gone"*) list="${list%%"$gone"*}${list#*"$gone"}" ;; esac ;;
  esac
done
[ -z "$list" ] || exec "$0" -I -S "$1" "$list"
"""
_APART = f"exec 3<&0; (\n{_SHELL}) <&3 3<&- &\n"
_LONGEST_LINE = 4096
"""What a pipe takes as a whole or not at all."""
_ROUNDS = 50
"""Looks for what is to go: whoever is born, or made, between two of them is found by the next."""
_PATIENCE = 1.0
"""Seconds to wait for a lock: who begins anew looks at it for a moment."""


def start(*, apart: bool = False) -> None:
    """Start the shell now, if there is none: what is registered later is then on the list at once.

    ``apart``: as no child of ours, for a process whose end is arranged by somebody who ends its children first.
    """
    _watch.start(apart=apart)


def register(*entry: str) -> None:
    """Put an entry on the list."""
    _watch.start()
    _watch.tell("+", entry)


def strike(*entry: str) -> None:
    """Take it off the list."""
    _watch.tell("-", entry)


def watches() -> bool:
    """Whether there is a shell already that cleans up: a further entry then costs next to nothing."""
    return _watch.runs


def identity(status: os.stat_result) -> str:
    """What tells a file or folder from any other that may come to stand at its path."""
    return f"{status.st_dev}:{status.st_ino}"


@contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A temporary folder of our own that is gone afterwards, also when this process is killed in it.

    It stands in ``parent``, or where this system has such folders. Raises OSError if it cannot be made.
    """
    folder = (_folder_of_the_system() if parent is None else parent.absolute()) / f"{prefix}{os.urandom(8).hex()}"
    entry = ("folder", "", str(folder))  # nobody could have known the name
    register(*entry)  # before there is one: who is killed in between leaves nothing
    _folders.add(str(folder))
    try:
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        _folders.discard(str(folder))
        strike(*entry)


_folders: set[str] = set()
"""The temporary folders that there are: what stands in them goes with them."""


def _folder_of_the_system() -> Path:
    import tempfile

    return Path(tempfile.gettempdir())


class TransientFolder:
    """A folder of a given name that was made now, and that is removed also when this process is killed."""

    def __init__(self, path: Path) -> None:
        """Raises FileExistsError if something stands there, OSError if it cannot be made."""
        self.path = path.absolute()
        self.path.mkdir(mode=0o700)
        self._entry = ("folder", identity(self.path.lstat()), str(self.path))
        register(*self._entry)

    def remove(self) -> None:
        """Remove it, and what was put there since, unless another one stands there now."""
        _remove_folder(*self._entry[1:])
        self.keep()

    def keep(self) -> None:
        """Let it stay from now on, whatever becomes of this process."""
        strike(*self._entry)


class _CleanupWatcher:
    """Our end of the pipe to the shell, which is started when there is something to tell it."""

    def __init__(self) -> None:
        self._pipe: int | None = None
        self._tried = False
        self._lock = threading.Lock()

    @property
    def runs(self) -> bool:
        return self._pipe is not None

    def tell(self, sign: str, entry: Entry) -> None:
        line = f"{sign}{json.dumps(entry)}\n".encode("ascii")
        if self._pipe is not None and len(line) <= _LONGEST_LINE:
            with suppress(OSError):  # it was killed, or stopped: then nobody cleans up after us
                os.write(self._pipe, line)

    def start(self, *, apart: bool = False) -> None:
        with self._lock:
            if not self._tried:
                self._tried = True
                self._start(apart=apart)

    def leave(self) -> None:
        """In a fork: the list is that of the parent, whose end the shell must see although the fork goes on."""
        pipe, self._pipe = self._pipe, None
        self._tried, self._lock = False, threading.Lock()
        if pipe is not None:
            os.close(pipe)

    def _start(self, *, apart: bool) -> None:
        import subprocess

        if not Path("/bin/sh").exists():
            return
        reading, writing = os.pipe()
        # If this process is a check itself, whoever ends it with all that carry its mark must not end the shell.
        environment = {name: value for name, value in os.environ.items() if name != VERDICT_VARIABLE}
        try:
            shell = subprocess.Popen(
                ["/bin/sh", "-c", _APART if apart else _SHELL, sys.executable, __file__],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
            if apart:
                shell.wait()  # its child goes on
            else:
                shell.returncode = 0  # nobody waits for it: it ends after us
            os.set_blocking(writing, False)
            self._pipe = writing
        except OSError:
            os.close(writing)
        finally:
            os.close(reading)


_watch = _CleanupWatcher()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch.leave)


class _TransientFiles:
    """The files in the user's folders that are to go with this process, by their paths, the newest last."""

    def __init__(self) -> None:
        self._entries: dict[str, list[Entry]] = {}
        self._lock = threading.Lock()

    def take(self, status: os.stat_result, temporary: Path, path: Path) -> None:
        entry = ("file", identity(status), str(temporary.absolute()), str(path.absolute()))
        if os.path.dirname(entry[-1]) in _folders:  # noqa: PTH120 -- a word
            return
        register(*entry)
        with self._lock:
            self._entries.setdefault(entry[-1], []).append(entry)

    def let(self, path: Path, *, but_newest: bool = False) -> None:
        key = str(path.absolute())
        with self._lock:
            entries = self._entries.pop(key, [])
            if but_newest:
                self._entries[key] = entries[-1:]
        for entry in entries[:-1] if but_newest else entries:
            strike(*entry)


_transient = _TransientFiles()


def take_along(status: os.stat_result, path: Path, temporary: Path | None = None) -> None:
    """Have the file of this ``status`` removed when this process is killed, if it stands at ``path`` then.

    Or at ``temporary``, where it stands until it is whole. The same holds for those that stood at ``path`` before,
    until ``replaced`` says that they have gone.
    """
    _transient.take(status, path if temporary is None else temporary, path)


@contextmanager
def about_to_make(temporary: Path) -> Iterator[None]:
    """Until the file has been taken along, what is made at this name is removed if this process is killed.

    Nobody else could have known the name. The inode of a file is told only after it was made, and a process may be
    killed in between.
    """
    entry = ("new", str(temporary.absolute()))
    known = os.path.dirname(entry[-1]) in _folders  # noqa: PTH120 -- a word
    if known:
        yield
        return
    register(*entry)
    try:
        yield
    finally:
        strike(*entry)


def take_what_stands_at(path: Path) -> None:
    """As ``take_along``, for a file that a process of ours has just written; nothing if there is none."""
    with suppress(OSError):
        _transient.take(path.lstat(), path, path)
        replaced(path)


def replaced(path: Path) -> None:
    """What was taken along last stands at ``path`` now, and nothing before it any more."""
    _transient.let(path, but_newest=True)


def keep(path: Path) -> None:
    """Whatever stands at ``path`` is not removed any more when this process is killed."""
    _transient.let(path)


def end_marked(folders: Iterable[str]) -> None:
    """End every process of a check whose verdict file stands in one of these folders, wherever it has gone since.

    Only where /proc shows the environment of processes.
    """
    marks = tuple(os.fsencode(f"{VERDICT_VARIABLE}={folder}/") for folder in folders)
    for _ in range(_ROUNDS if marks else 0):
        marked = list(_marked(marks))
        for pid in marked:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not marked:
            return


def _marked(marks: tuple[bytes, ...]) -> Iterator[int]:
    for pid in processes():
        with suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if pid != os.getpid() and any(entry.startswith(marks) for entry in environment.split(b"\0")):
                yield pid


def processes() -> Iterator[int]:
    """The numbers of all processes, where /proc shows them."""
    with suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 -- numbers, not paths


def clean_up(entries: Iterable[Entry]) -> None:
    """End and remove what stands on a list.

    ``group PID`` is a group of processes, ``folder IDENTITY PATH`` a folder (no identity: its name is known to nobody
    else), ``file IDENTITY TEMPORARY PATH`` a file that stands at one of these, ``new PATH`` one whose name
    is known to nobody else, ``back IDENTITY FROM TO`` a file of
    somebody else that was set aside, and ``lock PATH`` what must be had before anything with a name that others may
    use is touched: if somebody else has it, that is left as it is.
    """
    listed: dict[str, list[Entry]] = {}
    for what, *rest in entries:
        listed.setdefault(what, []).append(tuple(rest))
    for (number,) in listed.get("group", ()):
        with suppress(OSError):
            os.killpg(int(number), signal.SIGKILL)
    folders = listed.get("folder", [])
    end_marked(path for known, path in folders if not known)
    locks = [path for (path,) in listed.get("lock", ())]
    held = [_taken(path) for path in locks]
    for known, temporary, path in listed.get("file", ()):
        for place in {temporary, path} if all(held) else {temporary} - {path}:
            _remove_file(known, place)
    for (path,) in listed.get("new", ()):
        _remove_new(path)
    for known, path in folders:
        if not known or all(held):
            _remove_folder(known, path)
    if all(held):
        _put_back(listed.get("back", ()))
    for path in (path for path, had in zip(locks, held, strict=True) if had):
        with suppress(OSError):
            os.unlink(path)  # noqa: PTH108 -- words, not paths


def _put_back(entries: Iterable[Entry]) -> None:
    for known, aside, path in entries:
        if _is(known, aside) and not os.path.lexists(path):
            with suppress(OSError):
                os.rename(aside, path)  # noqa: PTH104 -- words, not paths


def _is(known: str, path: str) -> bool:
    with suppress(OSError):
        return identity(os.lstat(path)) == known
    return False


def _remove_file(known: str, path: str) -> None:
    if _is(known, path):
        with suppress(OSError):
            os.unlink(path)  # noqa: PTH108 -- words, not paths


def _remove_new(path: str) -> None:
    with suppress(OSError):
        if stat.S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)  # noqa: PTH108 -- words, not paths


def _remove_folder(known: str, path: str) -> None:
    """Without following a link, neither at the path nor below it: ``rmtree`` goes by descriptors."""
    for _ in range(_ROUNDS):
        if not os.path.lexists(path) or (known and not _is(known, path)):
            return
        shutil.rmtree(path, ignore_errors=True)  # who was killed a moment ago may still finish a file in it


def _taken(path: str) -> bool:
    """Take a lock, and keep it until this process ends; False if another has it, or if something else stands there."""
    import fcntl

    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError:
            return False
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
            return False
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(identity(status), path):
                return True
        os.close(descriptor)
        time.sleep(0.01)
    return False


if __name__ == "__main__":
    clean_up([tuple(json.loads(line)) for line in sys.argv[1].splitlines()])
