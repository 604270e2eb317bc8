"""Recorded values: what the tensors of a model are for each input sample, and what callers may ask about them.

Whoever needs values, sizes or types of tensors asks through one protocol. The values are in memory, in a file on disk,
or nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from biopsy.model.tensor_type import ELEM_OF_DTYPE, Shape, TensorType
from biopsy.tensors.results import Array, TensorForm, form_of, same_values


class RecordedValues(Protocol):
    """Values of tensors by name, one per input sample in the order of the samples."""

    @property
    def count(self) -> int:
        """How many samples there are."""

    def __contains__(self, name: str, /) -> bool:
        """Whether the tensor is recorded, which means in every sample."""

    def values(self, name: str) -> list[Array] | None:
        """The tensor's value in every sample, in order; None if it is not recorded."""

    def tensor_type(self, name: str) -> TensorType | None:
        """Type and shape of the tensor in all samples together, as ``type_of_forms`` gives them."""

    def size(self, name: str) -> int:
        """Bytes of the tensor's values in all samples; 0 if it is not recorded."""


class ValuesInMemory:
    """Recorded values as arrays, such as those that an engine has just given: ``samples`` has them by name."""

    def __init__(self, samples: Sequence[Mapping[str, Array]]) -> None:
        self.samples = samples

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self.samples)

    def __contains__(self, name: str, /) -> bool:
        return bool(self.samples) and all(name in sample for sample in self.samples)

    def values(self, name: str) -> list[Array] | None:
        """The tensor's value in every sample, in order; None if it is not recorded."""
        return [sample[name] for sample in self.samples] if name in self else None

    def tensor_type(self, name: str) -> TensorType | None:
        """Type and shape of the tensor in all samples together, as ``type_of_forms`` gives them."""
        return type_of_forms([form_of(sample, name) for sample in self.samples]) if name in self else None

    def size(self, name: str) -> int:
        """Bytes of the tensor's values in all samples; 0 if it is not recorded."""
        return sum(form_of(sample, name).nbytes for sample in self.samples) if name in self else 0


class StoredValues(ValuesInMemory):
    """Recorded values in the file ``path``: every array is a view of it, so that they need not fit into memory.

    An engine in another process reads the same file. Raises what ``read_feeds`` raises.
    """

    def __init__(self, path: Path) -> None:
        from biopsy.tensors.files import read_feeds

        super().__init__(read_feeds(path))
        self.path = path


class NoValues(ValuesInMemory):
    """Nothing is recorded: types and values of a model that was not run."""

    def __init__(self) -> None:
        super().__init__(())


def type_of_forms(forms: Sequence[TensorForm]) -> TensorType | None:
    """Type and shape that some values have together; None if their elements have a type that ONNX does not know.

    A dimension that differs between values is open, and so is the shape if their ranks differ.
    """
    dtype = "string" if forms[0].dtype.kind in "OUS" else forms[0].dtype.name
    if dtype not in ELEM_OF_DTYPE:
        return None
    shapes = {form.shape for form in forms}
    if len({len(shape) for shape in shapes}) != 1:
        return TensorType(ELEM_OF_DTYPE[dtype], None)
    shape: Shape = tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))
    return TensorType(ELEM_OF_DTYPE[dtype], shape)


def constant_value(recorded: RecordedValues, name: str) -> Array | None:
    """The value of a tensor that is recorded and the same in every sample; None for any other."""
    values = recorded.values(name)
    if values is None or not all(same_values(values[0], value) for value in values[1:]):
        return None
    return values[0]
