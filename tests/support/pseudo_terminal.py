"""A command in a pseudo-terminal of a given width: what a person sees of it, and its status."""

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

_PROGRAM = [sys.executable, "-m", "biopsy"]


def seen(
    words: str | Sequence[str],
    folder: Path,
    *,
    columns: int = 80,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = _PROGRAM,
) -> tuple[str, int]:
    """What ``biopsy`` with these words shows there, line ends as ``\\n``, and its status. It is asked nothing."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {
        key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"}
    }
    given = shlex.split(words) if isinstance(words, str) else list(words)
    process = subprocess.Popen(
        [*program, *given],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        env={**kept, "TERM": "xterm-256color", **(environment or {})},
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 1 << 16)
        except OSError:  # nobody has the other end any more
            break
        if not part:
            break
        shown += part
    os.close(leader)
    return shown.decode().replace("\r\n", "\n"), process.wait()


_TOKEN = re.compile(r"\x1b\[(\d*)A|\x1b\[2K|\x1b\[\?25[hl]|\r|\n")


def settled(shown: str) -> str:
    """What stands on the terminal at the end: lines that were taken away, or written over, are gone."""
    lines, row, place = [""], 0, 0
    for match in _TOKEN.finditer(shown):
        lines[row] += shown[place : match.start()]
        place = match.end()
        if match[0] == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif match[0].endswith("A"):
            row = max(0, row - int(match[1] or 1))
        elif match[0].endswith("2K"):
            lines[row] = ""
    lines[row] += shown[place:]
    return "\n".join(lines)
