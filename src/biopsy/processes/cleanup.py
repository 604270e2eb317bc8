"""Lists what must not outlive this process, however it ends: child processes, temporary folders, and transient files.

Children lead sessions of their own, so nothing would end them if biopsy is killed by SIGKILL. So there is a list of
them in memory that outlives this process, and a shell that waits for the end of this process. If the list is not empty
then, the shell becomes a Python that runs ``reaper``. Until then nothing is sent to the shell, so an entry costs only a
few system calls. Without a shell on this machine, nothing is cleaned up.

The list is a file without a name, since anyone who could write to it could have anything removed. Files in the user's
folders are identified by inode, and processes by their start: anything else that has the same path or number by then is
left alone.

Linux can signal a child when its parent ends (PR_SET_PDEATHSIG), but that is not a substitute: the parent that it means
is the thread that started the child, it does not reach grandchildren, and it removes no files.
"""

from __future__ import annotations

import errno
import itertools
import os
import select
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from biopsy.processes import reaper
from biopsy.processes.reaper import LENGTH, SLOT, VERDICT_VARIABLE, Entry, identity

_SHELL = """\
trap '' HUP INT QUIT TERM
cd /
while read -r nothing; do :; done
read -r entries <&1
[ "$entries" = 0 ] || exec "$0" -I -S "$1" <&1 >/dev/null
"""
"""Its standard input ends when this process does; its standard output is the list, which it reads."""
_APART = f"exec 3<&0; (\n{_SHELL}) <&3 3<&- &\n"


def group(leader: int) -> Entry:
    """The entry for the process group that ``leader`` leads, or will lead in a moment."""
    return "group", str(leader), reaper.beginning(leader)


@contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A new temporary folder that is removed afterwards, even if this process is killed meanwhile.

    It is in ``parent``, by default the system's folder for such. Raises OSError if it cannot be made.
    """
    if parent is None:
        import tempfile

        parent = Path(tempfile.gettempdir())
    folder = parent.absolute() / f"{prefix}{os.urandom(8).hex()}"
    entry = ("folder", "", str(folder))  # nobody could have known the name
    register(*entry)  # before it is made, so that nothing stays if this process is killed in between
    _folders.add(str(folder))
    try:
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        _folders.discard(str(folder))
        unregister(*entry)


_folders: set[str] = set()
"""The present temporary folders, with which all files in them are removed."""


class TransientFolder:
    """A new folder with a given name that is removed if this process is killed."""

    def __init__(self, path: Path) -> None:
        """Raises FileExistsError if something is there, OSError if it cannot be made."""
        self.path = path.absolute()
        self.path.mkdir(mode=0o700)
        self._entry = ("folder", identity(self.path.lstat()), str(self.path))
        register(*self._entry)

    def remove(self) -> None:
        """Remove it with its content, unless another folder has replaced it."""
        reaper.remove_folder(*self._entry[1:])
        self.keep()

    def keep(self) -> None:
        """Let it stay if this process is killed from now on."""
        unregister(*self._entry)


class _List:
    """The list: a file without a name, in slots of one size; the first slot says whether there is any entry."""

    def __init__(self) -> None:
        """Raises OSError if there is no memory for it."""
        self.descriptor = -1
        if hasattr(os, "memfd_create"):
            with suppress(OSError):  # a sandbox may forbid it
                self.descriptor = os.memfd_create("biopsy")
        if self.descriptor < 0:
            import tempfile

            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())
        self._slots: dict[Entry, list[int]] = {}
        self._free: list[int] = []
        self._unused = itertools.count(1)
        self._heading = b""
        self._lock = threading.RLock()  # a handler of a signal may change the list while this thread does so
        self._head()

    def add(self, entry: Entry) -> None:
        """Raises OSError if there is no memory for it, or if it is longer than any valid path."""
        data = b"\0".join(os.fsencode(part) for part in entry)
        if len(data) > SLOT - LENGTH or data.count(b"\0") != len(entry) - 1:
            raise OSError(errno.EINVAL, "no path is like this", entry[-1])
        with self._lock:
            slot = self._free.pop() if self._free else next(self._unused)
            self._slots.setdefault(entry, []).append(slot)
            self._head()
            os.pwrite(self.descriptor, data, slot * SLOT + LENGTH)
            os.pwrite(self.descriptor, len(data).to_bytes(LENGTH, "little"), slot * SLOT)  # last: makes it valid

    def remove(self, entry: Entry) -> None:
        with self._lock:
            if entry not in self._slots:
                return
            slot = self._slots[entry].pop()
            if not self._slots[entry]:
                del self._slots[entry]
            os.pwrite(self.descriptor, bytes(LENGTH), slot * SLOT)
            self._free.append(slot)
            self._head()

    def _head(self) -> None:
        """Write whether there is any entry, if this has changed."""
        heading = b"1\n" if self._slots else b"0\n"
        if heading != self._heading:
            self._heading = heading
            os.pwrite(self.descriptor, heading, 0)


class _Watcher:
    """The list, and the shell that waits for the end of this process. The first entry starts the shell."""

    def __init__(self) -> None:
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._list: _List | None = None
        self._pipe: int | None = None
        self._apart = False
        self._lock = threading.RLock()

    def watches(self) -> bool:
        """Whether the shell is there already, so that another entry costs next to nothing.

        The shell alone reads from the pipe, which breaks if it was killed.
        """
        if self._pipe is None:
            return False
        poll = select.poll()
        poll.register(self._pipe, 0)
        return not poll.poll(0)

    def register(self, *entry: str) -> None:
        """Add an entry (see ``reaper.clean_up``). Raises OSError if the shell cannot be started, or without memory."""
        self.start()
        if self._list is not None:
            self._list.add(entry)

    def unregister(self, *entry: str) -> None:
        """Remove an entry, if it is on the list."""
        if self._list is not None:
            self._list.remove(entry)

    def start(self, *, apart: bool = False) -> None:
        """Start the shell, if there is none. Raises OSError if it cannot be started.

        ``apart``: not as a child of this process, for the case that something ends our children before us.
        """
        with self._lock:
            if not self.watches() and os.access("/bin/sh", os.X_OK):
                self._apart |= apart
                if self._list is None:
                    self._list = _List()
                import subprocess

                if self._pipe is not None:
                    os.close(self._pipe)
                    self._pipe = None
                reading, writing = os.pipe()
                # Without the mark of a check, since all processes with the mark are ended with the check.
                environment = {name: value for name, value in os.environ.items() if name != VERDICT_VARIABLE}
                try:
                    shell = subprocess.Popen(
                        ["/bin/sh", "-c", _APART if self._apart else _SHELL, sys.executable, reaper.__file__],
                        stdin=reading,
                        stdout=self._list.descriptor,
                        stderr=subprocess.DEVNULL,
                        env=environment,
                        start_new_session=True,
                    )
                except BaseException:
                    os.close(writing)
                    raise
                finally:
                    os.close(reading)
                if self._apart:
                    shell.wait()  # its child goes on
                else:
                    shell.returncode = 0  # so that Popen does not wait for it: it ends after this process
                self._pipe = writing

    def leave(self) -> None:
        """In a fork: close the parent's list and pipe, so that the shell sees the parent's end while the fork runs."""
        for descriptor in (self._pipe, None if self._list is None else self._list.descriptor):
            if descriptor is not None:
                os.close(descriptor)
        self._begin_anew()


_watcher = _Watcher()
start, register, unregister, watches = _watcher.start, _watcher.register, _watcher.unregister, _watcher.watches
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watcher.leave)


_transient: dict[str, list[Entry]] = {}
"""Path -> entries of transient files in the user's folders, the newest last."""
_transient_lock = threading.Lock()


def _is_in_temporary_folder(path: str) -> bool:
    return os.path.dirname(path) in _folders  # noqa: PTH120 -- a string


def mark_transient(status: os.stat_result, path: Path, temporary: Path | None = None) -> None:
    """Have the file with this ``status`` removed if this process is killed while the file is at ``path``.

    Or at ``temporary``, where it is until it is complete. The same still holds for earlier files at ``path``, until
    ``replaced`` is called.
    """
    key = str(path.absolute())
    if not _is_in_temporary_folder(key):
        entry = ("file", identity(status), key if temporary is None else str(temporary.absolute()), key)
        register(*entry)
        with _transient_lock:
            _transient.setdefault(key, []).append(entry)


def _let_go(path: Path, kept: int) -> None:
    """Take the files of a path off the list, except the ``kept`` newest ones."""
    key = str(path.absolute())
    with _transient_lock:
        entries = _transient.pop(key, [])
        dropped = entries[: len(entries) - kept]
        if entries[len(dropped) :]:
            _transient[key] = entries[len(dropped) :]
    for entry in dropped:
        unregister(*entry)


@contextmanager
def about_to_make(temporary: Path) -> Iterator[None]:
    """Meanwhile, have whatever is made at this random name removed if this process is killed.

    ``mark_transient`` needs the inode of the file, which is known only after it was made; the process may be killed in
    between.
    """
    entry = ("new", str(temporary.absolute()))
    if _is_in_temporary_folder(entry[1]):
        yield
        return
    register(*entry)
    try:
        yield
    finally:
        unregister(*entry)


def mark_existing_transient(path: Path) -> None:
    """As ``mark_transient``, for a file that another process of biopsy has just written, if there is one."""
    with suppress(OSError):
        mark_transient(path.lstat(), path)
        replaced(path)


def replaced(path: Path) -> None:
    """Say that the last file of ``mark_transient`` is at ``path`` now, in place of the earlier ones."""
    _let_go(path, 1)


def keep(path: Path) -> None:
    """Let the file at ``path`` stay if this process is killed from now on."""
    _let_go(path, 0)
