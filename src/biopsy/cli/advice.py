"""What to type next: complete lines, each with what it would tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from biopsy.cli.console import Console


@dataclass(frozen=True)
class Advice:
    """A line that a person can paste as it is, and why: what it would tell, in a few words, "" where it says that."""

    line: str
    why: str = ""


def say_advice(console: Console, advice: Sequence[Advice]) -> None:
    """Show what to type next, each line below what it would tell: it can be pasted as a whole."""
    if advice:
        console.note("")
    for number, one in enumerate(advice):
        head = "Next" if number == 0 else ""
        if one.why:
            console.note(f"{head:<8} {one.why}:", f"{'':<8}   {one.line}")
        else:
            console.note(f"{head:<8} {one.line}")
