"""All spellings, and those that hold at given nodes of a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from biopsy.workarounds.patch import Patch
from biopsy.workarounds.spellings import clamping, matrices, normalization
from biopsy.workarounds.spellings.respelling import respellings
from biopsy.workarounds.spellings.spelling import Spelling

if TYPE_CHECKING:
    import onnx

SPELLINGS: tuple[Spelling, ...] = (
    *normalization.SPELLINGS,
    *clamping.SPELLINGS,
    *matrices.SPELLINGS,
)
"""Every spelling, those of a family together."""


@cache
def by_operator() -> dict[tuple[str, str], list[Spelling]]:
    """(domain, operator) -> the spellings that are looked for where it stands."""
    found: dict[tuple[str, str], list[Spelling]] = {}
    for spelling in SPELLINGS:
        for operator in spelling.operators:
            found.setdefault((spelling.domain, operator), []).append(spelling)
    return found


def spellings(model: onnx.ModelProto, nodes: Sequence[int]) -> list[Patch]:
    """The other spellings of nodes of the main graph, given by their places, and of what stands in their bodies.

    Exact ones first, then in the order of the table.
    """
    found = respellings(model, nodes, by_operator())
    return sorted(found, key=lambda patch: not patch.exact)
