"""Named tensors per iteration and runner: the results of runs and the contents of files of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from biopsy.model.tensor_type import TensorType
from biopsy.slow_imports import np
from biopsy.text import count, html_table, printable, some_of

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"
"""A tensor. NumPy is not imported for it, which takes 0.1 s: a reduction may need no values at all."""

Feed: TypeAlias = "Mapping[str, Array]"
"""The inputs of one iteration: tensor name -> value."""


_Source = TypeVar("_Source")


@dataclass(frozen=True)
class TensorForm:
    """Type and shape of a tensor."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The size of its values in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def form_of_array(array: Array) -> TensorForm:
    """Type and shape of an array."""
    return TensorForm(array.dtype, array.shape)


class TensorsByName(Mapping[str, "Array"], Generic[_Source]):
    """Tensors by name, each read from its source when it is accessed."""

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

    def form(self, name: str) -> TensorForm:
        """Type and shape of a tensor, which a subclass may find without reading its values.

        Raises DataError if they are damaged.
        """
        return form_of_array(self[name])


class ChosenTensors(TensorsByName["Feed"]):
    """Tensors that are each taken from one of several mappings when they are accessed."""

    @classmethod
    def merged(cls, mappings: Iterable[Feed]) -> ChosenTensors:
        """The tensors of all mappings; the last one wins. Names keep the order of their first occurrence."""
        return cls({name: mapping for mapping in mappings for name in mapping})

    def __getitem__(self, name: str) -> Array:
        return self.sources[name][name]

    def form(self, name: str) -> TensorForm:
        """Type and shape of a tensor."""
        return form_of(self.sources[name], name)


def form_of(tensors: Feed, name: str) -> TensorForm:
    """Type and shape of a tensor, if possible without reading it. Raises DataError as ``TensorsByName.form``."""
    return tensors.form(name) if isinstance(tensors, TensorsByName) else form_of_array(tensors[name])


@dataclass(frozen=True)
class Iteration:
    """The outputs of one run of a model, by tensor name; ``runtime`` in seconds, None if it was not measured."""

    outputs: Mapping[str, Array]
    runtime: float | None = None

    def __repr__(self) -> str:
        runtime = "" if self.runtime is None else f", {self.runtime * 1000:.3g} ms"
        return f"<Iteration: {some_of(map(repr, self.outputs))}{runtime}>"

    def _repr_html_(self) -> str:
        return _table("outputs", self.outputs)


@dataclass(frozen=True)
class RunnerResult:
    """All iterations of one runner: an engine with its options, under a name.

    ``declared`` are the types of the model's outputs, None for an unknown one, if the runner must give values of these
    types. It is empty if types prove nothing: those of a file, or of an engine that computes in others on purpose.
    """

    runner: str
    iterations: tuple[Iteration, ...]
    declared: Mapping[str, TensorType | None] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<RunnerResult of {self._summary}: {some_of(map(repr, self._first))}>"

    def _repr_html_(self) -> str:
        return _table(self._summary, self._first)

    def with_outputs(self, change: Callable[[int, Iteration], Mapping[str, Array]]) -> RunnerResult:
        """The same with other outputs: ``change`` is called with each iteration's number and the iteration."""
        pairs = enumerate(self.iterations)
        return replace(self, iterations=tuple(replace(each, outputs=change(number, each)) for number, each in pairs))

    @property
    def _first(self) -> Mapping[str, Array]:
        return self.iterations[0].outputs if self.iterations else {}

    @property
    def _summary(self) -> str:
        times = [iteration.runtime for iteration in self.iterations if iteration.runtime is not None]
        each = f", {sum(times) / len(times) * 1000:.3g} ms each" if times else ""
        return f"{printable(self.runner)}, {count(len(self.iterations), 'iteration')}{each}"


def _table(title: str, tensors: Feed) -> str:
    forms = {name: form_of(tensors, name) for name in tensors}
    rows = [(name, str(form.dtype), str(list(form.shape))) for name, form in forms.items()]
    return html_table(title, ["output", "type", "shape"], rows)


def same_values(left: Array, right: Array) -> bool:
    """Whether two tensors have the same type, shape and values; NaN equals NaN."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.kind in "fc":
        return bool(np.array_equal(left, right, equal_nan=True))
    if left.dtype.kind == "V":  # types of ml_dtypes: by their bytes, NaN equals itself
        return left.tobytes() == right.tobytes()
    return bool(np.array_equal(left, right))


def release(*arrays: Array) -> None:
    """Free the memory of arrays that are views of a mapped file; they are read again when they are accessed.

    It does nothing to other arrays, or on a system that has no such call.
    """
    import mmap

    for array in arrays:
        base: Any = array
        while isinstance(base, np.ndarray):
            base = base.base
        mapped = base if isinstance(base, mmap.mmap) else None
        if mapped is None or not array.flags.c_contiguous or not hasattr(mmap, "MADV_DONTNEED"):
            continue
        begin = array.__array_interface__["data"][0] - np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]
        first = begin - begin % mmap.PAGESIZE
        if array.nbytes:
            mapped.madvise(mmap.MADV_DONTNEED, first, begin + array.nbytes - first)
