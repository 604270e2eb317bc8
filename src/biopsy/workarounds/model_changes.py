"""Workarounds that change the model: the fewest patches with which it is right, the cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from biopsy.search.drive import drive, first_that
from biopsy.search.minimal_subsets import minimal_subsets, shortest
from biopsy.workarounds.barriers import barriers
from biopsy.workarounds.candidate import ChangeCandidate, of_patches
from biopsy.workarounds.marks import marks
from biopsy.workarounds.patch import Patch
from biopsy.workarounds.question import Kind
from biopsy.workarounds.raised_precision import raised_precisions
from biopsy.workarounds.spellings.table import spellings

if TYPE_CHECKING:
    import onnx

Holds: TypeAlias = Callable[[ChangeCandidate], bool]
"""Whether the outputs with a candidate are right."""

_MAKERS: dict[Kind, Callable[[onnx.ModelProto, Sequence[int]], list[Patch]]] = {
    "mark": marks,
    "barrier": barriers,
    "precision": raised_precisions,
    "spelling": spellings,
}

MODEL_KINDS: tuple[Kind, ...] = tuple(_MAKERS)

_ENOUGH = 3
"""Candidates of a kind that are verified."""

_MOST_SINGLES = 64
"""Patches of a kind that are tried one by one, and then together."""


def candidates_of(kind: Kind, model: onnx.ModelProto, nodes: Sequence[int], holds: Holds) -> Iterator[ChangeCandidate]:
    """The patches of a kind at these nodes with which the outputs are right, those of the fewest nodes first.

    Where none is enough by itself, the fewest that are together: that search assumes that a further patch does no harm.
    """
    patches = sorted(_MAKERS[kind](model, nodes), key=lambda patch: len(patch.nodes))[:_MOST_SINGLES]
    singles = 0
    for candidate in (of_patches([patch]) for patch in patches):
        if holds(candidate):
            singles += 1
            yield candidate
            if singles == _ENOUGH:
                return
    if not singles and len(patches) > 1:
        yield from _together(patches, holds)


def _together(patches: Sequence[Patch], holds: Holds) -> Iterator[ChangeCandidate]:
    """The smallest sets of patches; of several that change the same nodes only the first is among them."""
    chosen: list[Patch] = []
    for patch in patches:
        if not any(set(patch.nodes) & set(other.nodes) for other in chosen) or patch.kind == "mark":
            chosen.append(patch)
    if len(chosen) < 2:
        return
    known: dict[tuple[int, ...], bool] = {}

    def right(places: Sequence[int]) -> bool:
        key = tuple(sorted(places))
        if key not in known:
            known[key] = holds(of_patches([chosen[place] for place in key]))
        return known[key]

    if not right(range(len(chosen))):
        return
    sets, _ = drive(minimal_subsets(range(len(chosen)), _ENOUGH), first_that(right))
    for places in shortest(sets):
        yield of_patches([chosen[place] for place in sorted(places)])
