"""The line at the end of a terminal that changes while long work goes on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from biopsy.text import printable

if TYPE_CHECKING:
    from biopsy.cli.console import Console

COLUMN = 10
"""Width of the first word of a line."""

_BAR = 12
"""Width of the bar."""


def fitted(head: str, text: str, columns: int) -> tuple[bool, str]:
    """Whether the bar has room in a line of so many ``columns``, and as much of the text as fits there.

    The bar goes first, then the last parts of the text (which stand between `` · ``), then the end of its first part.
    The head, such as the name of a pass, is never cut.
    """
    room = columns - 1 - max(COLUMN, len(head)) - 1  # a terminal may wrap behind its last column
    if len(text) <= room - _BAR - 1:
        return True, text
    parts = text.split(" · ")
    while len(parts) > 1 and len(" · ".join(parts)) > room:
        parts.pop()
    shown = " · ".join(parts)
    return False, shown if len(shown) <= room else f"{shown[: max(0, room - 1)]}…"


class LiveLine:
    """One line at the end of a terminal that changes; nothing where stderr is no terminal, with -v or with -q.

    Nor where questions are asked: it would be painted over them, again and again.
    """

    def __init__(self, console: Console) -> None:
        self._wanted = sys.stderr.isatty() and console.verbosity == 0 and not console.asks
        self._shown: Any = None
        self._last = ("", "", 0.0)
        self._aside = ""

    def update(self, head: str, text: str, done: float = 0.0) -> None:
        """Show a line; ``done`` is the part of the work that is behind, from 0 to 1."""
        if not self._wanted:
            return
        self._last = head, text, done
        if self._aside:
            first, *others = text.split(" · ")
            text = " · ".join([first, self._aside, *others])
        if self._shown is None:
            from rich.console import Console as Terminal
            from rich.progress import BarColumn, Progress, Task, TextColumn
            from rich.text import Text

            class Bar(BarColumn):
                """Nothing where there is no room for it."""

                def render(self, task: Task) -> Any:
                    return super().render(task) if task.fields["bar"] else Text()

            self._shown = Progress(
                TextColumn("{task.fields[head]}", markup=False),
                Bar(bar_width=_BAR),
                TextColumn("{task.description}", markup=False),
                console=Terminal(stderr=True),
                transient=True,
            )
            self._shown.add_task("", total=1.0, head="", bar=False)
            self._shown.start()
        task = self._shown.task_ids[0]
        head = printable(head)
        bar, description = fitted(head, printable(text), self._shown.console.width)
        self._shown.update(task, description=description, completed=done, head=f"{head:<{COLUMN}}", bar=bar)

    def beside(self, text: str) -> None:
        """What stands behind the first part of the text from now on."""
        self._aside = text
        if self._shown is not None:
            self.update(*self._last)

    def stop(self) -> None:
        """Take the line away."""
        if self._shown is not None:
            self._shown.stop()
            self._shown = None
