"""One change of a model with which it may be right, made on any model that still has the place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import onnx

PatchKind: TypeAlias = Literal["mark", "barrier", "precision", "spelling"]


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A change of some nodes of a model.

    ``text`` says it in one line, ``cost`` what it costs the user. ``nodes`` are the places in the main graph of the
    model that it was made for. ``exact``: the values are the same bit for bit; else they are rounded differently, and
    ``holds`` says for which values that is so, empty for all.
    """

    kind: PatchKind
    name: str
    text: str
    cost: str
    exact: bool
    nodes: tuple[int, ...]
    change: Callable[[onnx.ModelProto], onnx.ModelProto | None]
    holds: str = ""

    def applied(self, model: onnx.ModelProto) -> onnx.ModelProto | None:
        """A changed copy of a model; None if the nodes are not there any more, or no more as they were.

        The nodes are found by the tensors that they write, so patches can be applied one after the other. Inputs and
        outputs keep their names, order and types; outputs that a mark adds come last. Weights in other files are
        referred to as they were.
        """
        return self.change(model)
