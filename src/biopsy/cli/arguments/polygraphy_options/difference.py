"""What becomes here of an option of Polygraphy that is not the same, or not here: the form of all rows."""

from __future__ import annotations

from typing import Literal, NamedTuple

Fate = Literal["refused", "no effect", "differs"]
"""``refused``: wrong usage, which says why and what to type instead. ``no effect``: it is accepted and a line says why
nothing changes. ``differs``: it is an option here too, with another meaning, or with more or fewer values."""


class OptionDifference(NamedTuple):
    """Some spellings of Polygraphy, what becomes of them here, why, and what there is instead (words to type or do)."""

    options: tuple[str, ...]
    fate: Fate
    why: str
    instead: str = ""
    values: bool = True
    """Whether values may follow."""

    def of(self, *options: str) -> OptionDifference:
        """The same of some of its spellings: those that a command has."""
        return self._replace(options=options)
