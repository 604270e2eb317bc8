"""The form of the lines that are shown: what stands before each, and whether there are colours."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from biopsy.isolation.reaper import VERDICT_VARIABLE

_SOURCES = Path(__file__).parents[1]


@dataclass(kw_only=True)
class LineForm:
    """What ``--log-format`` asks for."""

    timestamp: bool = False
    line_info: bool = False
    colours: bool = True

    def before_a_line(self) -> str:
        """The time of day, and the place in our sources that shows the line, as far as they are asked for."""
        time_of_day = f"({time.strftime('%X')}) " if self.timestamp else ""
        return time_of_day + (f"[{_place_that_shows()}] " if self.line_info else "")

    def is_coloured(self, stream: TextIO | None) -> bool:
        """Whether colours are wanted on a stream."""
        return self.colours and wants_colours(stream)


def wants_colours(stream: TextIO | None) -> bool:
    """Whether a stream is to be coloured: a terminal is, unless ``NO_COLOR``; anything is by ``FORCE_COLOR``.

    Both count only where they are not empty: see no-color.org and force-color.org. What a check prints is read by
    patterns of a person, and is never coloured by ``FORCE_COLOR``.
    """
    if stream is None or os.environ.get("NO_COLOR"):
        return False
    forced = os.environ.get("FORCE_COLOR") and not os.environ.get(VERDICT_VARIABLE)
    return bool(forced) or stream.isatty()


def _place_that_shows() -> str:
    """``cli/run/report.py:42``: the nearest caller that is neither here nor the console."""
    own = {__file__, str(_SOURCES / "cli" / "console.py")}
    frame = sys._getframe(1)
    while frame.f_code.co_filename in own and frame.f_back is not None:
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    shown = file.relative_to(_SOURCES).as_posix() if file.is_relative_to(_SOURCES) else file.name
    return f"{shown}:{frame.f_lineno}"
