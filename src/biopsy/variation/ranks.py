"""The number of dimensions that inputs may have, where operators allow others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from biopsy.tensors.results import Array
from biopsy.variation.features import Alternative, Feature
from biopsy.variation.fed_model import Edit, FedModel
from biopsy.variation.ties import tied_groups
from biopsy.variation.validity import Validity

if TYPE_CHECKING:
    import onnx


def rank_features(fed: FedModel, validity: Validity) -> Iterator[Feature]:
    """Inputs with one dimension more in front, of size 1 or 2, or with one less."""
    ranks = _ranks(fed.model)
    if not validity.is_strict:
        return

    def is_valid(group: Sequence[str]) -> bool:
        made = (edit(fed) for edit in (_raised(group, 2), _lowered(group)))
        return any(one is not None and validity.told(one.model) is not None for one in made)

    for group in tied_groups(list(ranks), list(ranks), is_valid):
        rank = ranks[group[0]]
        yield Feature(
            what="size",
            name=f"number of dimensions of {' = '.join(group)}",
            present=str(rank),
            alternatives=[
                Alternative(kind="one more", text=f"{rank + 1} (the first of size 1)", edit=_raised(group, 1)),
                Alternative(kind="one more", text=f"{rank + 1} (the first of size 2)", edit=_raised(group, 2)),
                Alternative(kind="one less", text=str(rank - 1), edit=_lowered(group)),
                Alternative(kind="two more", text=f"{rank + 2} (the first of size 2)", edit=_twice_raised(group)),
            ],
        )


def _ranks(model: onnx.ModelProto) -> dict[str, int]:
    weights = {weight.name for weight in model.graph.initializer}
    return {
        info.name: len(info.type.tensor_type.shape.dim)
        for info in model.graph.input
        if info.name not in weights and info.type.tensor_type.HasField("shape")
    }


def _raised(group: Sequence[str], size: int) -> Edit:
    """The edit that puts a dimension in front of inputs."""

    def edit(fed: FedModel) -> FedModel | None:
        made = fed.copied()
        for info in made.model.graph.input:
            if info.name in group:
                shape = info.type.tensor_type.shape
                dims = [shape.Dimension(dim_value=size), *shape.dim]
                del shape.dim[:]
                shape.dim.extend(dims)
                made = made.with_fed(info.name, lambda values: _stacked(values, size))
        return made

    return edit


def _stacked(values: Array, size: int) -> Array:
    return np.repeat(values[np.newaxis], size, axis=0)


def _twice_raised(group: Sequence[str]) -> Edit:
    def edit(fed: FedModel) -> FedModel | None:
        once = _raised(group, 1)(fed)
        return None if once is None else _raised(group, 2)(once)

    return edit


def _lowered(group: Sequence[str]) -> Edit:
    """The edit that takes the first dimension of inputs away, and keeps what stands first in it."""

    def edit(fed: FedModel) -> FedModel | None:
        made = fed.copied()
        for info in made.model.graph.input:
            if info.name in group:
                dims = info.type.tensor_type.shape.dim
                fed_shapes = [feed[info.name].shape for feed in made.feeds or () if info.name in feed]
                if not dims or not all(shape and shape[0] for shape in fed_shapes):
                    return None
                del dims[0]
                made = made.with_fed(info.name, lambda values: values[0])
        return made

    return edit
