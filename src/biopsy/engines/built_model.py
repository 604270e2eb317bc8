"""What a built model is in every engine of ours: its inputs, its outputs, and remarks on how it was built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from biopsy import errors
from biopsy.engines.base import Engine, ModelInput, Session
from biopsy.model.index import ModelIndex
from biopsy.model.tensor_type import ValueType


class BuiltModel(Session):
    """A session that knows what it takes and gives from the beginning."""

    def __init__(
        self, inputs: Mapping[str, ValueType | None], outputs: Sequence[str], remarks: Sequence[str] = ()
    ) -> None:
        self._inputs = inputs
        self._outputs = tuple(outputs)
        self._remarks = remarks

    @property
    def inputs(self) -> Mapping[str, ValueType | None]:
        """Inputs that must be fed, with the types that the model declares."""
        return self._inputs

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the outputs."""
        return self._outputs

    @property
    def remarks(self) -> Sequence[str]:
        """What was asked for and not done, or done otherwise."""
        return self._remarks


def indexed(model: ModelInput) -> ModelIndex:
    """The index of a model. Raises ModelError, which names the file where it is damaged."""
    from biopsy.model import load
    from biopsy.model.index import index_bytes

    try:
        return index_bytes(model.data, model.folder)
    except errors.ModelError:
        load.parse(model.data, model.path)
        raise


def require_ending(engine: type[Engine], path: Path) -> None:
    """Raise UsageError unless a file's name ends as those do that the engine saves."""
    endings = engine.capabilities.saves
    if not engine.capabilities.can_save(path):
        named = (" and " if len(endings) == 2 else ", ").join(endings)
        raise errors.UsageError(f"{path}: {engine.name} saves and loads {named} files")
