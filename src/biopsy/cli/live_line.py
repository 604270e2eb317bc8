"""The line at the end of a terminal that changes while long work goes on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from biopsy.text import printable, shortened

if TYPE_CHECKING:
    from biopsy.cli.console import Console

COLUMN = 10
"""Width of the first word of a line."""

_LONGEST_SHOWN = 300
"""Characters: the line must stay one, or few, to be taken away again."""


class LiveLine:
    """One line at the end of a terminal that changes; nothing where stderr is no terminal, with -v or with -q.

    Nor where questions are asked: it would be painted over them, again and again.
    """

    def __init__(self, console: Console) -> None:
        self._wanted = sys.stderr.isatty() and console.verbosity == 0 and not console.asks
        self._shown: Any = None

    def update(self, head: str, text: str, done: float = 0.0) -> None:
        """Show a line; ``done`` is the part of the work that is behind, from 0 to 1."""
        if not self._wanted:
            return
        if self._shown is None:
            from rich.console import Console as Terminal
            from rich.progress import BarColumn, Progress, TextColumn

            self._shown = Progress(
                TextColumn("{task.fields[head]}", markup=False),
                BarColumn(bar_width=12),
                TextColumn("{task.description}", markup=False),
                console=Terminal(stderr=True),
                transient=True,
            )
            self._shown.add_task("", total=1.0, head="")
            self._shown.start()
        task = self._shown.task_ids[0]
        description = shortened(printable(text), _LONGEST_SHOWN)
        self._shown.update(task, description=description, completed=done, head=f"{printable(head):<{COLUMN}}")

    def stop(self) -> None:
        """Take the line away."""
        if self._shown is not None:
            self._shown.stop()
            self._shown = None
