"""What must not outlive this process, however it ends: checks that run, and temporary folders.

Checks stand in sessions of their own, so nothing ends them when biopsy is killed by SIGKILL and has no time to do so
itself. A shell, started with the first of them, holds a list of what there is now, and waits for the end of this
process. If the list is not empty then, the shell becomes a Python that runs this file, which cleans up. Where there is
no shell, nothing of this happens.

This file imports nothing of biopsy.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

VARIABLE = "BIOPSY_VERDICT"
"""A check, and all that it starts, carry the path of its verdict file in this; it stands in a folder of its own."""

_SHELL = """\
trap '' HUP INT QUIT TERM
cd /
list=
while IFS= read -r line; do
  case $line in
    +*) list="$list${line#+}
" ;;
    -*) gone="${line#-}
"; list="${list%%"$gone"*}${list#*"$gone"}" ;;
  esac
done
[ -z "$list" ] || exec "$0" -I -S "$1" "$list"
"""
_ROUNDS = 50
"""Looks for processes that are to end: whoever is born between two of them is found by the next."""


def register(what: str) -> None:
    """Put a line on the list: ``folder PATH`` or ``group PID``."""
    _watch.tell(f"+{what}")


def strike(what: str) -> None:
    """Take it off the list."""
    _watch.tell(f"-{what}")


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder that is gone afterwards, also when this process is killed in it."""
    folder = Path(tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(8)}"
    register(f"folder {folder}")  # before there is one: who is killed in between leaves nothing
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        strike(f"folder {folder}")


class _Watch:
    """Our end of the pipe to the shell, which is started when there is something to tell it."""

    def __init__(self) -> None:
        self._pipe: int | None = None
        self._tried = False
        self._lock = threading.Lock()

    def tell(self, line: str) -> None:
        self.start()
        if self._pipe is not None and "\n" not in line:
            with suppress(OSError):  # it was killed, or stopped: then nobody cleans up after us
                os.write(self._pipe, os.fsencode(line) + b"\n")

    def start(self) -> None:
        with self._lock:
            if not self._tried:
                self._tried = True
                self._start()

    def _start(self) -> None:
        if not Path("/bin/sh").exists():
            return
        reading, writing = os.pipe()
        # If this process is a check itself, whoever ends it with all that carry its mark must not end the shell.
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        try:
            shell = subprocess.Popen(
                ["/bin/sh", "-c", _SHELL, sys.executable, __file__],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
            shell.returncode = 0  # nobody waits for it: it ends after us
            os.set_blocking(writing, False)
            self._pipe = writing
        except OSError:
            os.close(writing)
        finally:
            os.close(reading)


_watch = _Watch()


def end_marked(folders: Iterable[str]) -> None:
    """End every process of a check whose verdict file stands in one of these folders, wherever it has gone since.

    Only where /proc shows the environment of processes.
    """
    marks = tuple(os.fsencode(f"{VARIABLE}={folder}/") for folder in folders)
    for _ in range(_ROUNDS if marks else 0):
        found = list(_marked(marks))
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not found:
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


def clean_up(lines: Iterable[str]) -> None:
    """End and remove what stands on a list."""
    listed = [line.partition(" ") for line in lines]
    folders = [path for what, _, path in listed if what == "folder"]
    for group in (int(number) for what, _, number in listed if what == "group"):
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    end_marked(folders)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    clean_up(sys.argv[1].splitlines())
