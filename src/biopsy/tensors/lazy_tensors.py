"""Tensors of a file by name, each decoded when it is asked for.

What has been decoded is not kept here: whoever holds an array has it, and is given the same one while it lives.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from biopsy.tensors.base64_text import Base64Tensor
from biopsy.tensors.container import placed
from biopsy.tensors.results import Array, DescribedTensors, Feed, TensorForm, form_of


class Copy(NamedTuple):
    """The base64 text of a tensor, piece by piece, and the name of its type if .npy has none."""

    pieces: Iterator[bytes]
    dtype: str | None


class LazyTensors(DescribedTensors):
    """Tensors that are base64 text. Who asks for one that is damaged gets a DataError that begins with ``place``."""

    def __init__(self, encoded: Mapping[str, Base64Tensor], place: str) -> None:
        self._encoded = encoded
        self._place = place
        self._alive: weakref.WeakValueDictionary[str, Array] = weakref.WeakValueDictionary()

    def __getitem__(self, name: str) -> Array:
        array = self._alive.get(name)
        if array is None:
            encoded = self._encoded[name]
            with placed(f"{self._place}: tensor {name!r}"):
                array = self._alive[name] = encoded.array()
        return array

    def __contains__(self, name: object) -> bool:
        return name in self._encoded

    def __iter__(self) -> Iterator[str]:
        return iter(self._encoded)

    def __len__(self) -> int:
        return len(self._encoded)

    def __repr__(self) -> str:
        return f"<tensors {list(self._encoded)}>"

    def form(self, name: str) -> TensorForm:
        """Type and shape of a tensor, which is not decoded for that. Raises DataError if its beginning is damaged."""
        with placed(f"{self._place}: tensor {name!r}"):
            return self._encoded[name].form()

    def copy(self, name: str) -> Copy | None:
        """The text of a tensor, if that may go into another file as it stands. Raises DataError as ``form`` does."""
        with placed(f"{self._place}: tensor {name!r}"):
            encoded = self._encoded[name]
            return Copy(self._copied(name), encoded.dtype) if encoded.may_be_copied else None

    def _copied(self, name: str) -> Iterator[bytes]:
        with placed(f"{self._place}: tensor {name!r}"):
            yield from self._encoded[name].copied()


class ChosenTensors(DescribedTensors):
    """Tensors each of which is taken from one of several mappings, when it is asked for."""

    def __init__(self, sources: Mapping[str, Feed]) -> None:
        self.sources = sources

    @classmethod
    def merged(cls, mappings: Iterable[Feed]) -> ChosenTensors:
        """All tensors, of each name that of the last mapping; names keep the order in which they are first met."""
        return cls({name: mapping for mapping in mappings for name in mapping})

    def __getitem__(self, name: str) -> Array:
        return self.sources[name][name]

    def __contains__(self, name: object) -> bool:
        return name in self.sources

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    def __repr__(self) -> str:
        return f"<tensors {list(self.sources)}>"

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
