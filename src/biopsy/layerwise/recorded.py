"""The reference engine's values of the tensors of a model, for every input sample, in mapped files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from biopsy.layerwise.findings import GoldenCoverage
from biopsy.layerwise.non_finite import NonFinite, non_finite
from biopsy.model.constant_nodes import is_constant_node
from biopsy.model.index import ModelIndex
from biopsy.model.tensor_type import STRING, TensorType
from biopsy.recording.cut_types import CutTypes
from biopsy.tensors.appendable_store import AppendableStore, results_of
from biopsy.tensors.dtypes import dtype_named
from biopsy.tensors.recorded_values import NoValues, StoredValues, ValuesInMemory
from biopsy.tensors.results import Array, release


class RecordedModel:
    """Recorded values of a model.

    ``computed`` are those that the reference gave. ``fed`` are the same in the types of the model, which subgraphs are
    fed with; they differ where the reference computes in more than these types hold. ``inputs`` is a file with the
    model's inputs alone. ``outputs`` are the model's own outputs when nothing is marked. ``golden``: nobody computed
    them here, they come from a file, and others cannot be had; None where the reference computed them.
    """

    def __init__(
        self,
        *,
        computed: StoredValues,
        fed: StoredValues,
        inputs: Path,
        outputs: ValuesInMemory,
        golden: GoldenCoverage | None = None,
    ) -> None:
        self.computed = computed
        self.fed = fed
        self.inputs = inputs
        self.outputs = outputs
        self.golden = golden
        self._non_finite: dict[str, NonFinite | None] = {}

    @property
    def is_golden(self) -> bool:
        """Whether the values are golden."""
        return self.golden is not None

    @property
    def is_rounded(self) -> bool:
        """Whether subgraphs are fed with other values than the reference has computed with."""
        return self.fed is not self.computed

    def __contains__(self, name: str) -> bool:
        return name in self.computed

    def expected(self, name: str) -> list[Array]:
        """What the reference computed for a tensor, per sample. Raises KeyError if it is not recorded."""
        values = self.computed.values(name)
        if values is None:
            raise KeyError(name)
        return values

    def non_finite(self, name: str) -> NonFinite | None:
        """The NaN and infinities in a tensor, counted when first asked for; None also if it is not recorded."""
        if name not in self._non_finite:
            values = self.computed.values(name) or []
            self._non_finite[name] = non_finite(values)
            release(*values)
        return self._non_finite[name]


def misfit_text(name: str, why: str) -> str:
    """That a golden value cannot be of a model's tensor, in words."""
    return f"the golden value of {name!r} does not fit: {why}"


def tensors_to_record(index: ModelIndex) -> list[str]:
    """What a node computes and anything needs; of a node that nothing needs, its first output.

    Not the outputs of Constant nodes, which are never cut, nor what is known to be no plain tensor.
    """
    types = CutTypes(index, NoValues())
    needed: dict[int, None] = {}
    outputs = set(index.outputs)
    for node in index.nodes:
        if is_constant_node(index, node.number):
            continue
        read = [tensor for tensor in node.writes if tensor in index.consumers or tensor in outputs]
        needed.update(dict.fromkeys(read or node.writes[:1]))
    return [index.names[tensor] for tensor in needed if types.info(tensor) is None or types.tensor_type(tensor)]


def in_types_of_the_model(index: ModelIndex, computed: StoredValues, path: Path) -> StoredValues:
    """The values in the types that the model has them in, written to ``path``; ``computed`` if they are already."""
    types = CutTypes(index, NoValues())
    samples = computed.samples
    narrower = {
        name: dtype
        for name, value in samples[0].items()
        if (dtype := _dtype(types.tensor_type(index.ids[name]))) is not None and dtype != value.dtype
    }
    if not narrower:
        return computed
    names = list(samples[0])
    places = [(0, number, name) for number in range(len(samples)) for name in names]
    with AppendableStore(path, None, places) as store:
        for number, sample in enumerate(samples):
            for name, value in sample.items():
                with np.errstate(all="ignore"):
                    store.append((0, number, name), value.astype(narrower[name]) if name in narrower else value)
                release(value)
        store.commit()
        store.finish({0: results_of(store, names, 0, "fed", len(samples))})
    return StoredValues(path)


def _dtype(kind: TensorType | None) -> np.dtype[Any] | None:
    """The type of elements as NumPy has it; None for strings, and where it is not known."""
    return None if kind is None or kind.elem == STRING else dtype_named(kind.dtype)
