"""What must not outlive this process, however it ends: child processes, temporary folders, and transient files.

Children lead sessions of their own, so nothing ends them when biopsy is killed by SIGKILL and has no time to do so
itself. So there is a list of what there is now, in memory that outlives this process, and a shell that waits for the
end of this process. If the list is not empty then, the shell becomes a Python that runs ``reaper``. Until then it does
nothing, and nothing is sent to it: an entry costs a few system calls. Where there is no shell, nothing of this happens.

The list is a file without a name: whoever could write to one with a name could have anything removed. What it names in
folders of the user is known by its inode, and a process by its start: whatever else has come to stand there, or to have
that number, is left as it is.

Linux can signal a child when its parent ends (PR_SET_PDEATHSIG). That is no substitute: the parent that it means is the
thread that started the child, it reaches no grandchildren, and it removes no files.
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
"""Its standard input ends with this process, and its standard output is the list, which it reads."""
_APART = f"exec 3<&0; (\n{_SHELL}) <&3 3<&- &\n"


def group(leader: int) -> Entry:
    """The entry for the group of processes that this one leads, or will lead in a moment."""
    return "group", str(leader), reaper.beginning(leader)


@contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A temporary folder of our own that is gone afterwards, also when this process is killed in it.

    It stands in ``parent``, or where this system has such folders. Raises OSError if it cannot be made.
    """
    if parent is None:
        import tempfile

        parent = Path(tempfile.gettempdir())
    folder = parent.absolute() / f"{prefix}{os.urandom(8).hex()}"
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
        reaper.remove_folder(*self._entry[1:])
        self.keep()

    def keep(self) -> None:
        """Let it stay from now on, whatever becomes of this process."""
        strike(*self._entry)


class _List:
    """The list: a file without a name, in slots of one size; the first says whether there is any entry."""

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
        """Raises OSError if there is no memory for it, or if it is longer than any path can make it."""
        data = b"\0".join(os.fsencode(part) for part in entry)
        if len(data) > SLOT - LENGTH or data.count(b"\0") != len(entry) - 1:
            raise OSError(errno.EINVAL, "no path is like this", entry[-1])
        with self._lock:
            slot = self._free.pop() if self._free else next(self._unused)
            self._slots.setdefault(entry, []).append(slot)
            self._head()
            os.pwrite(self.descriptor, data, slot * SLOT + LENGTH)
            os.pwrite(self.descriptor, len(data).to_bytes(LENGTH, "little"), slot * SLOT)  # last: now it counts

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
        """Write whether there is any entry, if that has changed."""
        heading = b"1\n" if self._slots else b"0\n"
        if heading != self._heading:
            self._heading = heading
            os.pwrite(self.descriptor, heading, 0)


class _Watcher:
    """The list, and the shell that waits for our end, which is started when there is something to put on the list."""

    def __init__(self) -> None:
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._list: _List | None = None
        self._pipe: int | None = None
        self._apart = False
        self._lock = threading.RLock()

    def watches(self) -> bool:
        """Whether there is a shell already that cleans up: a further entry then costs next to nothing.

        Nobody else reads from the pipe: it breaks if the shell was killed.
        """
        if self._pipe is None:
            return False
        poll = select.poll()
        poll.register(self._pipe, 0)
        return not poll.poll(0)

    def register(self, *entry: str) -> None:
        """Put an entry on the list, see ``reaper.clean_up``. Raises OSError if nobody can watch, or without memory."""
        self.start()
        if self._list is not None:
            self._list.add(entry)

    def strike(self, *entry: str) -> None:
        """Take it off the list, if it stands there."""
        if self._list is not None:
            self._list.remove(entry)

    def start(self, *, apart: bool = False) -> None:
        """Start the shell now, if there is none. Raises OSError if it cannot be started.

        ``apart``: as no child of ours, for a process whose end is arranged by somebody who ends its children first.
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
                # If this process is a check, whoever ends it with all that carry its mark leaves the shell alone.
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
                    shell.returncode = 0  # nobody waits for it: it ends after us
                self._pipe = writing

    def leave(self) -> None:
        """In a fork: the list is that of the parent, whose end the shell must see although the fork goes on."""
        for descriptor in (self._pipe, None if self._list is None else self._list.descriptor):
            if descriptor is not None:
                os.close(descriptor)
        self._begin_anew()


_watcher = _Watcher()
start, register, strike, watches = _watcher.start, _watcher.register, _watcher.strike, _watcher.watches
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watcher.leave)


_transient: dict[str, list[Entry]] = {}
"""The files in the user's folders that are to go with this process, by their paths, the newest last."""
_transient_lock = threading.Lock()


def _stands_in_our_folder(path: str) -> bool:
    return os.path.dirname(path) in _folders  # noqa: PTH120 -- a word


def take_along(status: os.stat_result, path: Path, temporary: Path | None = None) -> None:
    """Have the file of this ``status`` removed when this process is killed, if it stands at ``path`` then.

    Or at ``temporary``, where it stands until it is whole. The same holds for those that stood at ``path`` before,
    until ``replaced`` says that they have gone.
    """
    key = str(path.absolute())
    if not _stands_in_our_folder(key):
        entry = ("file", identity(status), key if temporary is None else str(temporary.absolute()), key)
        register(*entry)
        with _transient_lock:
            _transient.setdefault(key, []).append(entry)


def _let_go(path: Path, kept: int) -> None:
    """Take the files that stood at a path off the list, but for so many of the newest."""
    key = str(path.absolute())
    with _transient_lock:
        entries = _transient.pop(key, [])
        gone = entries[: len(entries) - kept]
        if entries[len(gone) :]:
            _transient[key] = entries[len(gone) :]
    for entry in gone:
        strike(*entry)


@contextmanager
def about_to_make(temporary: Path) -> Iterator[None]:
    """Until the file has been taken along, what is made at this name is removed if this process is killed.

    Nobody else could have known the name. The inode of a file is told only after it was made, and a process may be
    killed in between.
    """
    entry = ("new", str(temporary.absolute()))
    if _stands_in_our_folder(entry[1]):
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
        take_along(path.lstat(), path)
        replaced(path)


def replaced(path: Path) -> None:
    """What was taken along last stands at ``path`` now, and nothing before it any more."""
    _let_go(path, 1)


def keep(path: Path) -> None:
    """Whatever stands at ``path`` is not removed any more when this process is killed."""
    _let_go(path, 0)
