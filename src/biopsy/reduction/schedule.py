"""The ordered table of passes, and which of them each mode runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from biopsy.reduction.candidate import NamedPass
from biopsy.reduction.change import NamedModelPass
from biopsy.reduction.passes.bisect import bisect
from biopsy.reduction.passes.bypass import bypass
from biopsy.reduction.passes.linear import linear
from biopsy.reduction.passes.sets import sets

Mode = Literal["minimal", "bisect", "linear"]

PASSES: tuple[NamedPass, ...] = (
    NamedPass("bisect", "the earliest failing outputs, then the latest failing inputs, by halves", bisect),
    NamedPass("sets", "the nodes that matter wherever they stand, those between them cut", sets),
    NamedPass("bypass", "around nodes, their readers reading their input (where values may change)", bypass),
    NamedPass("linear", "one node at a time, from the end", linear),
)

MODEL_PASSES: tuple[NamedModelPass, ...] = ()
"""Run in this order once the nodes are few."""

_BY_NAME = {named.name: named for named in PASSES}


@dataclass(frozen=True)
class Schedule:
    """Passes that run once, and passes that run again and again until none of them makes the candidate smaller.

    When the repeated ones end with every single node tried both ways, the result is 1-minimal: no single remaining
    node can go, by cut or by bypass.
    """

    once: tuple[NamedPass, ...]
    repeated: tuple[NamedPass, ...] = ()
    afterwards: tuple[NamedModelPass, ...] = ()


def schedule_of(mode: Mode) -> Schedule:
    """The passes that a mode runs."""
    if mode == "minimal":
        return Schedule((_BY_NAME["bisect"],), (_BY_NAME["sets"], _BY_NAME["bypass"], _BY_NAME["linear"]))
    return Schedule((_BY_NAME[mode],))
