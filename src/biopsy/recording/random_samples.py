"""Inputs to record values with, where the user gave none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from biopsy.model.index import ModelIndex
from biopsy.model.known_names import require_known
from biopsy.model.tensor_type import TensorType
from biopsy.tensors.results import Feed

_SIZES = (2, 3)


@dataclass(frozen=True, kw_only=True)
class Draws:
    """How random samples are drawn: at least two; ``val_range`` as for ``generate_feeds``."""

    seed: int = 1
    count: int = len(_SIZES)
    val_range: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def random_samples(index: ModelIndex, draws: Draws | None = None) -> list[Feed]:
    """Random samples that differ in every value and, where the model lets two of them, in every dynamic dimension.

    What is the same in all is then a matter of the model and not of its inputs, and may be frozen. Empty if an input
    is no plain tensor or nobody knows its rank. Raises DoesNotFit for a range of an input that there is not.
    """
    from biopsy.tensors.generate import generate_feeds

    draws = draws or Draws()

    kinds = {index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()}
    known = {name: kind for name, kind in kinds.items() if kind is not None and kind.shape is not None}
    if len(known) < len(kinds):
        return []
    require_known("--val-range", "input", draws.val_range, known)
    return [
        generate_feeds(
            known,
            iterations=1,
            seed=draws.seed + number,
            val_range=draws.val_range,
            shapes=_sized(known, _SIZES[number % len(_SIZES)]),
        )[0]
        for number in range(max(draws.count, len(_SIZES)))
    ]


def _sized(kinds: dict[str, TensorType], size: int) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(dim if isinstance(dim, int) else size for dim in kind.shape)
        for name, kind in kinds.items()
        if kind.shape is not None and not kind.is_static
    }
