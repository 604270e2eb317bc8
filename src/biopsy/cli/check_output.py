"""What a check printed, as a person sees it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from biopsy.cli.console import Console

_MOST_LINES_SHOWN = 20
_MOST_BYTES_SHOWN = 1 << 14


def say_output(console: Console, output: bytes, *, whole: bool) -> None:
    """What a check printed, indented; only its last lines unless ``whole``."""
    output = output.rstrip()
    lines = _lines(output)
    if not whole and output:
        last = list(_lines(output[-_MOST_BYTES_SHOWN:]))[-_MOST_LINES_SHOWN:]
        left_out = output.count(b"\n") + 1 - len(last)
        if left_out > 0:
            console.note(f"  | ... {left_out} lines before, shown by --show-output")
        lines = iter(last)
    for line in lines:
        console.quote(line)


def _lines(output: bytes) -> Iterator[str]:
    """The lines of an output one by one: millions of them at once would need many times its memory."""
    for line in io.BytesIO(output):
        yield line.decode("utf-8", "backslashreplace").rstrip("\r\n")
