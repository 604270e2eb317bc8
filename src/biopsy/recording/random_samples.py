"""Inputs to record values with, where the user gave none."""

from __future__ import annotations

from biopsy.model.index import ModelIndex
from biopsy.model.tensor_type import TensorType
from biopsy.tensors.results import Feed

_SIZES = (2, 3)


def random_samples(index: ModelIndex, seed: int = 1) -> list[Feed]:
    """Two random samples that differ in every value and, where the model lets them, in every dynamic dimension.

    What is the same in both is then a matter of the model and not of its inputs, and may be frozen. Empty if an input
    is no plain tensor or nobody knows its rank.
    """
    from biopsy.tensors.generate import generate_feeds

    kinds = {index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()}
    known = {name: kind for name, kind in kinds.items() if kind is not None and kind.shape is not None}
    if len(known) < len(kinds):
        return []
    return [
        generate_feeds(known, iterations=1, seed=seed + number, shapes=_sized(known, size))[0]
        for number, size in enumerate(_SIZES)
    ]


def _sized(kinds: dict[str, TensorType], size: int) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(dim if isinstance(dim, int) else size for dim in kind.shape)
        for name, kind in kinds.items()
        if kind.shape is not None and not kind.is_static
    }
