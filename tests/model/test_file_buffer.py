"""A file that is read where it is looked at, also by several threads."""

import sys
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from biopsy.model.wire import FileBuffer

FAR = 1 << 15
"""Bytes between two places that never stand in one window."""


def read_with_another_reader_at(buffer: FileBuffer, place: int, other: int, instruction: int) -> tuple[int, bool]:
    """The byte at a place, another being read before one instruction of the first read; whether there were so many."""
    seen = count()
    came = False

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal came
        if frame.f_code is not FileBuffer.__getitem__.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(seen) == instruction:
            came = True
            buffer[other]
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return buffer[place], came
    finally:
        sys.settrace(before)


def test_another_reader_at_any_instruction_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"".join(bytes([place]) * FAR for place in range(2)))
    for held in (0, FAR):
        for instruction in count():
            with path.open("rb") as stream:
                buffer = FileBuffer(path, stream.fileno())
            assert buffer[held] == held // FAR
            found, came = read_with_another_reader_at(buffer, 0, FAR, instruction)
            assert (found, buffer[FAR], buffer[0]) == (0, 1, 0)
            if not came:
                break
        assert instruction > 10
