"""One command line in this process, its output on a real pipe or a real terminal: every byte that comes out is kept."""

import contextlib
import fcntl
import io
import os
import pty
import struct
import sys
import termios
import threading
import tty
from collections.abc import Iterator

import pytest

from biopsy.cli.app import main

KINDS = ("pipe", "terminal")


def shown_by(words: list[str], kind: str, typed: str = "") -> tuple[int, str]:
    """The status of a command, and all that it wrote to stdout and stderr, which are one ``kind`` of stream."""
    ours, theirs = os.pipe() if kind == "pipe" else _terminal()
    found = bytearray()
    reader = threading.Thread(target=_drain, args=(ours, found))
    reader.start()
    try:
        with _streams(theirs, typed):
            status = main(words)
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    return status, found.decode("utf-8")


def _terminal() -> tuple[int, int]:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)  # so that newlines come as they were written
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 150, 0, 0))
    return ours, theirs


def _drain(stream: int, found: bytearray) -> None:
    with contextlib.suppress(OSError):  # what the master of a terminal says at its end
        while data := os.read(stream, 1 << 16):
            found += data


@contextlib.contextmanager
def _streams(stream: int, typed: str) -> Iterator[None]:
    """Python's streams and the ones below, which engines write to."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    with pytest.MonkeyPatch.context() as patch:
        for number in (1, 2):
            os.dup2(stream, number)
        patch.setenv("TERM", "xterm")
        patch.delenv("NO_COLOR", raising=False)
        patch.setattr(sys, "stdin", io.StringIO(typed))
        for number, name in ((1, "stdout"), (2, "stderr")):
            patch.setattr(sys, name, os.fdopen(os.dup(number), "w", encoding="utf-8"))
        try:
            yield
        finally:
            for one in (sys.stdout, sys.stderr):
                one.close()
            for number, before in zip((1, 2), kept, strict=True):
                os.dup2(before, number)
                os.close(before)
