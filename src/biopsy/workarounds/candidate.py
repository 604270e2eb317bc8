"""A change that may be a workaround, and the model that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from biopsy.tactics.setting_changes import SettingChange
from biopsy.workarounds.patch import Patch
from biopsy.workarounds.question import Kind

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, kw_only=True)
class ChangeCandidate:
    """A change of the engine's settings, or patches of the model together; ``nodes`` are places in the original."""

    kind: Kind
    text: str
    change: SettingChange = field(default_factory=SettingChange)
    patches: tuple[Patch, ...] = ()

    @property
    def nodes(self) -> tuple[int, ...]:
        """Places of the nodes that it changes."""
        return tuple(sorted({node for patch in self.patches for node in patch.nodes}))


def of_patches(patches: Sequence[Patch]) -> ChangeCandidate:
    """The candidate of one patch, or of several together: as dear as the dearest."""
    from biopsy.workarounds.question import KINDS

    kinds: list[Kind] = [patch.kind for patch in patches]
    dearest = max(kinds, key=KINDS.index)
    return ChangeCandidate(kind=dearest, text="; ".join(patch.text for patch in patches), patches=tuple(patches))


def patched(model: onnx.ModelProto, patches: Sequence[Patch]) -> onnx.ModelProto | None:
    """A copy of a model with all patches; None if one of them does not fit, also because of another one."""
    made: onnx.ModelProto | None = model
    for patch in patches:
        made = None if made is None else patch.applied(made)
    return made


def interface_objection(before: onnx.ModelProto, after: onnx.ModelProto, *, may_add: bool) -> str | None:
    """What has changed of inputs and outputs; None if nothing has. ``may_add``: outputs may be added at the end.

    Whoever feeds the model and takes its first outputs must not notice a change.
    """
    inputs = [info.SerializeToString(deterministic=True) for info in before.graph.input]
    if [info.SerializeToString(deterministic=True) for info in after.graph.input] != inputs:
        return "it has other inputs"
    outputs = list(before.graph.output)
    first = list(after.graph.output)[: len(outputs)]
    if [info.name for info in first] != [info.name for info in outputs]:
        return "it has other outputs, or in another order"
    if len(after.graph.output) > len(outputs) and not may_add:
        return "it has more outputs"
    for old, new in zip(outputs, first, strict=True):
        if old.type.WhichOneof("value") and old.type != new.type:
            return f"output {old.name!r} is of another type"
    return None
