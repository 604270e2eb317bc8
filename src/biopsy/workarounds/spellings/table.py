"""All spellings, and those that hold at given nodes of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from biopsy.workarounds.patch import Patch
from biopsy.workarounds.spellings import (
    activations,
    arithmetic,
    clamping,
    contributed,
    convolutions,
    definitions,
    layouts,
    matrices,
    normalization,
    reductions,
    softmax,
)
from biopsy.workarounds.spellings.respelling import respellings
from biopsy.workarounds.spellings.spelling import Spelling

if TYPE_CHECKING:
    import onnx

SPELLINGS: tuple[Spelling, ...] = (
    *normalization.SPELLINGS,
    *softmax.SPELLINGS,
    *reductions.SPELLINGS,
    *activations.SPELLINGS,
    *clamping.SPELLINGS,
    *matrices.SPELLINGS,
    *convolutions.SPELLINGS,
    *arithmetic.SPELLINGS,
    *layouts.SPELLINGS,
    *contributed.SPELLINGS,
    *definitions.SPELLINGS,
)
"""Every spelling, those of a family together."""


def spellings(model: onnx.ModelProto, nodes: Sequence[int]) -> list[Patch]:
    """The other spellings of nodes of the main graph, given by their places, and of what stands in their bodies.

    Exact ones first, then in the order of the table.
    """
    return sorted(respellings(model, nodes, SPELLINGS), key=lambda patch: not patch.exact)
