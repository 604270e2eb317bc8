"""Something that happens before one instruction of a function, whichever that is: what a signal or a thread may do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import CodeType, FrameType
from typing import Any


class Moment:
    """Whether there was such an instruction; only then it has happened."""

    came = False


@contextmanager
def before_instruction(number: int, of: Callable[..., object], happens: Callable[[], object]) -> Iterator[Moment]:
    """Have something happen in this thread, once, before the instruction of this number.

    Counted are those of a function and of all that it calls, in the order in which they run, from 0. What ``happens``
    raises is raised there.
    """
    moment, seen, code = Moment(), count(), of.__code__

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if moment.came or not _runs_for(frame, code):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(seen) == number:
            moment.came = True
            happens()
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 traces no instruction if nobody has asked for it before
    sys.settrace(trace)
    try:
        yield moment
    finally:
        sys.settrace(before)


def _runs_for(frame: FrameType | None, code: CodeType) -> bool:
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
