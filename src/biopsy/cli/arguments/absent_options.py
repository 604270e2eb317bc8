"""Options of Polygraphy that a command lacks: some are refused with a reason, others are accepted without effect."""

from __future__ import annotations

import argparse
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from biopsy import errors

_TABLE = Path(__file__).with_suffix(".txt")
"""Its first lines say how it is read."""


class AbsentOption(NamedTuple):
    """Spellings of an option, why it is missing, and what to type ``instead``; "" if it is accepted without effect."""

    options: tuple[str, ...]
    why: str
    instead: str = ""
    takes_value: bool = True


@cache
def absent_options() -> dict[str, list[AbsentOption]]:
    """The rows by command, such as ``debug reduce``."""
    rows: dict[str, list[AbsentOption]] = {}
    commands: list[str] = []
    for line in re.sub(r"\n +", " ", _TABLE.read_text(encoding="utf-8")).splitlines():
        if line.startswith("["):
            commands = line.strip("[]").split(", ")
        elif line and not line.startswith("#"):
            left, why, instead = (*line.split(" | "), "")[:3]
            options = tuple(word for word in left.split() if word.startswith("-"))
            row = AbsentOption(options, why, instead, takes_value=bool(instead) or len(left.split()) > len(options))
            for command in commands:
                rows.setdefault(command, []).append(row)
    return rows


class _Absent(argparse.Action):
    """Raises UsageError, or adds a warning to ``without_effect``."""

    def __init__(self, *args: Any, row: AbsentOption, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._row = row

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if self._row.instead:
            raise errors.UsageError(f"{option} is not available: {self._row.why}", next_steps=[self._row.instead])
        namespace.without_effect = (*namespace.without_effect, f"{option} has no effect: {self._row.why}")


def add(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the options that only Polygraphy's command of this name has; the help does not show them."""
    parser.set_defaults(without_effect=())
    for row in absent_options().get(command, ()):
        parser.add_argument(
            *row.options,
            action=_Absent,
            row=row,
            dest=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
            nargs="*" if row.instead else None if row.takes_value else 0,
            help=argparse.SUPPRESS,
        )
