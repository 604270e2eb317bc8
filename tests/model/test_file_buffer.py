"""A file that is read where it is looked at, also by several threads."""

from itertools import count
from pathlib import Path

from biopsy.model.wire import FileBuffer
from support.instructions import before_instruction

FAR = 1 << 15
"""Bytes between two places that never stand in one window."""


def read_with_another_reader_at(buffer: FileBuffer, place: int, other: int, instruction: int) -> tuple[int, bool]:
    """The byte at a place, another being read before one instruction of the first read; whether there were so many."""
    with before_instruction(instruction, FileBuffer.__getitem__, lambda: buffer[other]) as moment:
        found = buffer[place]
    return found, moment.came


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
