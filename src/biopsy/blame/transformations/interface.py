"""What has become of the inputs and outputs of a model: whoever used it before must be able to use it now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from biopsy.checks.verdict import VerdictFile
from biopsy.comparison.mismatch import Mismatch
from biopsy.model.index import ModelIndex
from biopsy.model.tensor_type import TensorType
from biopsy.tensors.results import Feed


def interface_change(before: ModelIndex, after: ModelIndex, feeds: Sequence[Feed]) -> VerdictFile | None:
    """How the inputs or outputs of a model have changed for the worse; None if they have not.

    Outputs may be added behind those that were there. ``feeds`` are inputs of the model before.
    """
    return _outputs_changed(before, after) or _inputs_changed(before, after, feeds)


def _outputs_changed(before: ModelIndex, after: ModelIndex) -> VerdictFile | None:
    wanted = [before.names[tensor] for tensor in before.outputs]
    has = [after.names[tensor] for tensor in after.outputs]
    gone = [name for name in wanted if name not in has]
    if gone:
        missing = tuple(Mismatch(output=name, kind="missing-output") for name in gone)
        return _changed("missing-output", f"it loses output {_quoted(gone)}", tuple(gone), missing)
    if has[: len(wanted)] != wanted:
        return _changed("other-order", f"its outputs stand in another order: {_quoted(has)}, not {_quoted(wanted)}")
    return _retyped("output", wanted, before, after)


def _inputs_changed(before: ModelIndex, after: ModelIndex, feeds: Sequence[Feed]) -> VerdictFile | None:
    takes = [after.names[tensor] for tensor in after.fed_inputs()]
    strange = [name for name in takes if name not in feeds[0]]
    if strange:
        return _changed("new-input", f"it wants an input {_quoted(strange)}")
    dropped = [name for name in feeds[0] if name not in takes]
    if dropped:
        return _changed("lost-input", f"it loses input {_quoted(dropped)}")
    return _retyped("input", takes, before, after) or _fixed(takes, before, after)


def _retyped(what: str, names: Iterable[str], before: ModelIndex, after: ModelIndex) -> VerdictFile | None:
    """An input or output of another element type."""
    for name in names:
        old, new = before.declared_type(name), after.declared_type(name)
        if isinstance(old, TensorType) and isinstance(new, TensorType) and 0 not in (old.elem, new.elem):
            if old.elem != new.elem:
                return _changed("other-type", f"{what} {name!r} is {new.dtype} now, not {old.dtype}")
        elif old is not None and new is not None and type(old) is not type(new):
            return _changed("other-type", f"{what} {name!r} is {new} now, not {old}")
    return None


def _fixed(names: Iterable[str], before: ModelIndex, after: ModelIndex) -> VerdictFile | None:
    """An input one of whose dimensions was open and is not any more."""
    for name in names:
        old, new = before.declared_type(name), after.declared_type(name)
        if not isinstance(old, TensorType) or not isinstance(new, TensorType) or None in (old.shape, new.shape):
            continue
        for axis, (one, other) in enumerate(zip(old.shape or (), new.shape or (), strict=False)):
            if isinstance(other, int) and not isinstance(one, int):
                return _changed("fixed-size", f"dimension {axis} of input {name!r} is {other} now, and was open")
    return None


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _changed(kind: str, said: str, outputs: tuple[str, ...] = (), mismatches: tuple[Mismatch, ...] = ()) -> VerdictFile:
    return VerdictFile(
        outcome="fails", stage="interface", kind=kind, message=said, outputs=outputs, mismatches=mismatches
    )
