"""All spellings, and those that hold at given nodes of a model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
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
from biopsy.workarounds.spellings.calls import calls_as_nodes
from biopsy.workarounds.spellings.respelling import respellings
from biopsy.workarounds.spellings.spelling import Spelling

if TYPE_CHECKING:
    import onnx

FAMILIES: dict[str, tuple[Spelling, ...]] = {
    "Normalization": normalization.SPELLINGS,
    "Softmax": softmax.SPELLINGS,
    "Reductions and the pools that are reductions": reductions.SPELLINGS,
    "Activations": activations.SPELLINGS,
    "Clip, Max and Min": clamping.SPELLINGS,
    "Products of matrices": matrices.SPELLINGS,
    "Convolutions and pools": convolutions.SPELLINGS,
    "Arithmetic, comparisons and choices": arithmetic.SPELLINGS,
    "Operators that only move elements": layouts.SPELLINGS,
    "Operators of com.microsoft": contributed.SPELLINGS,
    "Operators that the standard defines by others": definitions.SPELLINGS,
}
"""Every spelling, by the title of its family."""

SPELLINGS: tuple[Spelling, ...] = tuple(chain.from_iterable(FAMILIES.values()))


def spellings(model: onnx.ModelProto, nodes: Sequence[int]) -> list[Patch]:
    """The other spellings of nodes of the main graph, given by their places, and of what stands in their bodies.

    Exact ones first, then in the order of the table. A call of a local function has its nodes for another spelling.
    """
    found = [*respellings(model, nodes, SPELLINGS), *calls_as_nodes(model, nodes)]
    return sorted(found, key=lambda patch: not patch.exact)
