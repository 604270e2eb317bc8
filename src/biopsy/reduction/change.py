"""The contract of a pass over the model itself: what runs once the nodes are few.

By then the model is small, so these passes work on the protobuf object and propose whole models.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Change:
    """A simpler model, with words for the progress line, such as "without the unused input 'mask'"."""

    model: onnx.ModelProto
    doing: str


ChangeSearch: TypeAlias = "Generator[Iterable[Change], onnx.ModelProto | None, None]"

ModelPass: TypeAlias = "Callable[[onnx.ModelProto], ChangeSearch]"
"""One way to propose simpler models.

Like a pass over nodes, it is a generator over rounds of proposals that do not depend on each other, in the order of
preference; it is sent the model of the first that reproduces, or None, and goes on from there. It owes the same, and:

- It never changes the model that it is given, nor one that it was sent: it copies.
- Each proposal is simpler by the measure of the pass (fewer inputs, fewer attributes, fewer bytes of weights, ...), so
  that running it again and again ends. A model that does not differ from the current one is not checked.
- Everything may be missing from a model: names, types, even what the standard demands.
"""


@dataclass(frozen=True)
class NamedModelPass:
    """A pass in the table: its name on the command line, what it does in one line, and when it may run.

    ``keeps_values``: every tensor that both models compute has the same values in both. ``only_with`` names the
    option that asks for it; "" for a pass that always runs.
    """

    name: str
    summary: str
    search: ModelPass
    keeps_values: bool
    only_with: Literal["", "simplify", "anonymize"] = ""
