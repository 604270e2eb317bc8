"""The ordered table of passes, and which of them each mode runs."""

from __future__ import annotations

from typing import Literal

from biopsy.reduction.candidate import NamedPass
from biopsy.reduction.passes.bisect import bisect
from biopsy.reduction.passes.linear import linear

Mode = Literal["bisect", "linear"]

PASSES: tuple[NamedPass, ...] = (
    NamedPass("bisect", "the earliest failing outputs, then the latest failing inputs, by halves", bisect),
    NamedPass("linear", "one node at a time, from the end", linear),
)

_BY_NAME = {named.name: named for named in PASSES}


def passes_of(mode: Mode) -> list[NamedPass]:
    """The passes that a mode runs, in order."""
    return [_BY_NAME[mode]]
