"""Tensors of a file by name, each decoded when it is asked for.

What has been decoded is not kept here: whoever holds an array has it, and is given the same one while it lives.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from biopsy.tensors.base64_text import Base64Tensor
from biopsy.tensors.container import UnreadableFileError, placed
from biopsy.tensors.results import Array, DescribedTensors, Feed, TensorForm, form_of

_Source = TypeVar("_Source")


class Copy(NamedTuple):
    """The base64 text of a tensor, piece by piece, and the name of its type if .npy has none."""

    pieces: Iterator[bytes]
    dtype: str | None


class _TensorsByName(DescribedTensors, Generic[_Source]):
    """Tensors by name, each of which something stands for until it is asked for."""

    def __init__(self, sources: Mapping[str, _Source]) -> None:
        self.sources = sources

    def __contains__(self, name: object) -> bool:
        return name in self.sources

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    def __repr__(self) -> str:
        return f"<tensors {list(self.sources)}>"


class LazyTensors(_TensorsByName[Base64Tensor]):
    """Tensors that are base64 text. Who asks for one that is damaged gets a DataError that begins with ``place``."""

    def __init__(self, encoded: Mapping[str, Base64Tensor], place: str) -> None:
        super().__init__(encoded)
        self._place = place
        self._alive: weakref.WeakValueDictionary[str, Array] = weakref.WeakValueDictionary()

    def __getitem__(self, name: str) -> Array:
        array = self._alive.get(name)
        if array is None:
            encoded = self.sources[name]
            with placed(f"{self._place}: tensor {name!r}", UnreadableFileError):
                array = self._alive[name] = encoded.array()
        return array

    def form(self, name: str) -> TensorForm:
        """Type and shape of a tensor, which is not decoded for that. Raises DataError if its beginning is damaged."""
        with placed(f"{self._place}: tensor {name!r}", UnreadableFileError):
            return self.sources[name].form()

    def copy(self, name: str) -> Copy | None:
        """The text of a tensor, if that may go into another file as it stands. Raises DataError as ``form`` does."""
        with placed(f"{self._place}: tensor {name!r}", UnreadableFileError):
            encoded = self.sources[name]
            return Copy(self._copied(name), encoded.dtype) if encoded.may_be_copied else None

    def _copied(self, name: str) -> Iterator[bytes]:
        with placed(f"{self._place}: tensor {name!r}", UnreadableFileError):
            yield from self.sources[name].copied()


class ChosenTensors(_TensorsByName[Feed]):
    """Tensors each of which is taken from one of several mappings, when it is asked for."""

    @classmethod
    def merged(cls, mappings: Iterable[Feed]) -> ChosenTensors:
        """All tensors, of each name that of the last mapping; names keep the order in which they are first met."""
        return cls({name: mapping for mapping in mappings for name in mapping})

    def __getitem__(self, name: str) -> Array:
        return self.sources[name][name]

    def form(self, name: str) -> TensorForm:
        """Type and shape of a tensor, as its mapping tells them. Raises DataError as that does."""
        return form_of(self.sources[name], name)


def copy_of(tensors: Feed, name: str) -> Copy | None:
    """The base64 text of a tensor, if there is one that may go into another file as it stands.

    Raises DataError if it is damaged where it begins or ends, and, when it is read, if it is no base64.
    """
    while isinstance(tensors, ChosenTensors):
        tensors = tensors.sources[name]
    return tensors.copy(name) if isinstance(tensors, LazyTensors) else None
