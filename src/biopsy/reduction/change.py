"""The contract of a pass over the model itself: what runs once the nodes are few.

By then the model is small, so these passes work on the protobuf object and propose whole models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from biopsy.search.rounds import Search

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Change:
    """A simpler model, with words for the progress line, such as "without the unused input 'mask'"."""

    model: onnx.ModelProto
    description: str


ChangeSearch: TypeAlias = Search[Change, "onnx.ModelProto", None]

ModelPass: TypeAlias = "Callable[[onnx.ModelProto], ChangeSearch]"
"""One way to propose simpler models.

Like a pass over nodes, it is a generator over rounds of proposals that do not depend on each other, in the order of
preference; it is sent the model of the first that reproduces, or None, and goes on from there. It owes the same, and:

- It never changes the model that it is given, nor one that it was sent: it copies.
- Each proposal is simpler by the measure of the pass (fewer inputs, fewer attributes, fewer bytes of weights, ...), so
  that running it again and again ends. A model that does not differ from the current one is not checked.
- Everything may be missing from a model: names, types, even what the standard demands.
"""


def nothing_to_remark(model: onnx.ModelProto) -> Sequence[str]:
    """For passes that leave nothing undone that a user must know of."""
    return ()


Option: TypeAlias = Literal["simplify", "anonymize"]
"""An option of the command line that asks for more than a smaller model."""


@dataclass(frozen=True)
class NamedModelPass:
    """A pass in the table: its name on the command line, what it does in one line, and when it may run.

    ``keeps_values``: every tensor that both models compute has the same values in both. ``changes_inputs`` and
    ``changes_outputs``: it may do so, and does not run where the user keeps them. ``only_with`` names the options of
    which one must ask for it; none for a pass that always runs. ``remarks`` tells, of the final model, what the pass
    could not do.
    """

    name: str
    summary: str
    search: ModelPass
    keeps_values: bool = False
    changes_inputs: bool = False
    changes_outputs: bool = False
    only_with: tuple[Option, ...] = ()
    remarks: Callable[[onnx.ModelProto], Sequence[str]] = nothing_to_remark
