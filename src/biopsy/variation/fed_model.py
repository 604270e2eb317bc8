"""A model with the inputs that it is fed, and how one is edited."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from biopsy.reduction.passes.editing import copied
from biopsy.tensors.results import Array

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class FedModel:
    """A model, and what it is fed: one tensor for each input, in every iteration. None where the check feeds it."""

    model: onnx.ModelProto
    feeds: Sequence[Mapping[str, Array]] | None = None

    def with_fed(self, name: str, changed: Callable[[Array], Array]) -> FedModel:
        """The same with other values of one input, in every iteration that has it."""
        if self.feeds is None:
            return self
        feeds = [{**feed, name: changed(feed[name])} if name in feed else dict(feed) for feed in self.feeds]
        return replace(self, feeds=feeds)

    def copied(self) -> FedModel:
        """The same with a model that may be changed."""
        return replace(self, model=copied(self.model))


Edit: TypeAlias = Callable[[FedModel], "FedModel | None"]
"""Makes another model, or the same with other inputs, of a copy of its own; None where that cannot be done."""


def in_turn(edits: Sequence[Edit]) -> Edit:
    """One edit after the other; None if one of them cannot be done."""

    def edit(fed: FedModel) -> FedModel | None:
        made: FedModel | None = fed
        for one in edits:
            made = None if made is None else one(made)
        return made

    return edit
