"""Models without their weights: what can be refitted to an engine is left out, and values are made up again.

The form is Polygraphy's, so that either program reads what the other wrote: the ``doc_string`` of a stripped
initializer is ``TRT_WEIGHTLESS/``, or ``TRT_WEIGHTLESS/SPARSE_2_4`` where its values were 2:4 sparse; its ``raw_data``
is there and empty; the model's ``doc_string`` ends in ``TRT_WEIGHTLESS``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.model.external import VALUE_FIELDS, byte_size, clear_values, is_external, raw_values, values_later
from biopsy.model.sparsity import Factor, factors, is_sparse, pruned
from biopsy.model.storage import SIZED, elements

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import onnx

_MARK, _SPARSE = "TRT_WEIGHTLESS", "SPARSE_2_4"

_UINT8 = 2
_LARGE = 1024
"""Elements that a table of Gather or Slice has at least, if it is stripped."""

_POSITIONS: Mapping[str, tuple[int, ...]] = {
    "Conv": (0,), "ConvTranspose": (0,), "Gemm": (0, 1, 2), "MatMul": (0, 1),
}  # fmt: skip
"""The operators that TensorRT refits weights of, and the inputs at which these may be transposed or quantized."""

_ARITY: Mapping[str, tuple[int, ...]] = {
    "Conv": (2, 3), "ConvTranspose": (2, 3), "Gemm": (2, 3), "MatMul": (2,), "Gather": (2,), "Slice": (3, 4, 5),
    "QuantizeLinear": (2, 3), "DequantizeLinear": (2, 3), "Transpose": (1,),
}  # fmt: skip

_LARGEST_TENSOR = 8 << 30
"""Bytes of one tensor that values are made up for: it stands in memory while it is written."""


def is_stripped(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor says that its values were left out, and they are."""
    if not _is_marked(tensor) or is_external(tensor):
        return False
    return not any(len(getattr(tensor, field)) for field in VALUE_FIELDS) and byte_size(tensor) > 0


def _is_marked(tensor: onnx.TensorProto) -> bool:
    return tensor.doc_string.split("/")[0] == _MARK


# Stripping


@dataclass(frozen=True, kw_only=True)
class Stripped:
    """What was stripped: names, bytes of values, which names were 2:4 sparse; ``unused``: names excluded in vain."""

    names: tuple[str, ...]
    size: int
    sparse: tuple[str, ...]
    unused: tuple[str, ...]


def strip(model: onnx.ModelProto, folder: Path | None, excluded: Collection[str] = ()) -> Stripped:
    """Take the values from the initializers that an engine can be refitted with, but not from the ``excluded``.

    These are the weights of Conv, ConvTranspose, Gemm and MatMul, also if they are transposed, or quantized and
    dequantized, before, for that operator alone; tables of 1,024 elements or more of Gather and Slice; and all that
    operators read which ONNX does not know. Those of type uint8 stay. Only the model's own graph is looked at.
    ``folder`` is that of external weights: they are read, to see whether they are sparse (with None they are not, and
    count as not sparse).

    Raises ModelError if a weight that has to be looked at is missing or damaged.
    """
    candidates = _refittable(model.graph)
    chosen = [weight for name, weight in candidates.items() if name not in excluded]
    ids = {id(weight) for weight in chosen}
    fit = [factor for factor in factors(model) if id(factor.weight) in ids and factor.unfit is None]
    sparse_ones = {factor.weight.name for factor in fit if _has_pattern(factor, folder)}
    size = sum(byte_size(weight) for weight in chosen)
    for weight in chosen:
        clear_values(weight)
        weight.raw_data = b""
        weight.doc_string = f"{_MARK}/{_SPARSE if weight.name in sparse_ones else ''}"
    if chosen and not model.doc_string.endswith(_MARK):
        model.doc_string = "-".join(filter(None, [model.doc_string, _MARK]))
    return Stripped(
        names=tuple(weight.name for weight in chosen),
        size=size,
        sparse=tuple(weight.name for weight in chosen if weight.name in sparse_ones),
        unused=tuple(sorted(set(excluded) - set(candidates) - {""})),
    )


def _has_pattern(factor: Factor, folder: Path | None) -> bool:
    weight = factor.weight
    if folder is None:
        return not is_external(weight) and is_sparse(factor, raw_values(weight))
    return is_sparse(factor, values_later(weight, folder)())


def _refittable(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The initializers of a graph that are stripped, by name, in their order in the file."""
    products = _GraphOfProducts(graph)
    names = {name for node in graph.node for name in products.read_by(node)}
    return {weight.name: weight for weight in graph.initializer if weight.name in names and not is_stripped(weight)}


class _GraphOfProducts:
    """The nodes and initializers of a graph, as what TensorRT refits."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._weights = {weight.name: weight for weight in graph.initializer}
        self._ends = {info.name for info in graph.output}

    @cached_property
    def _consumers(self) -> dict[str, list[tuple[onnx.NodeProto, int]]]:
        found: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in self._graph.node:
            for place, name in enumerate(node.input):
                found.setdefault(name, []).append((node, place))
        return found

    def read_by(self, node: onnx.NodeProto) -> list[str]:
        """The initializers that go for the sake of one node."""
        from onnx import defs

        known = defs.has(node.op_type)
        refits = _fits(node) and (
            node.op_type in {*_POSITIONS, "Gather", "Slice"}
            or (node.op_type == "Transpose" and self._leads_to_product(node))
            or (node.op_type == "QuantizeLinear" and self._is_quantized_weight(node))
        )
        if known and not refits:
            return []
        only_first = node.op_type in {"Slice", "QuantizeLinear"}
        inputs = node.input[:1] if only_first else node.input
        least = _LARGE if node.op_type in {"Gather", "Slice"} else 0 if node.op_type == "MatMul" or not known else 1
        return [name for name in inputs if self._goes(name, least)]

    def _goes(self, name: str, least: int) -> bool:
        weight = self._weights.get(name)
        return (
            weight is not None
            and weight.data_type in SIZED - {_UINT8}
            and byte_size(weight) > 0
            and elements(weight.dims or [1]) >= least
        )

    def _leads_to_product(self, node: onnx.NodeProto) -> bool:
        return any(place in _POSITIONS.get(other.op_type, ()) and _fits(other) for other, place in self._behind(node))

    def _is_quantized_weight(self, node: onnx.NodeProto) -> bool:
        return any(
            other.op_type == "DequantizeLinear" and place == 0 and _fits(other) and self._leads_to_product(other)
            for other, place in self._behind(node)
        )

    def _behind(self, node: onnx.NodeProto) -> Sequence[tuple[onnx.NodeProto, int]]:
        """The one node that reads the result of a node, and as which input; nothing if others need it too."""
        name = node.output[0] if node.output else ""
        readers = self._consumers.get(name, ())
        return readers if len(readers) == 1 and name not in self._ends else ()


def _fits(node: onnx.NodeProto) -> bool:
    return len(node.input) in _ARITY.get(node.op_type, ())


# Making up values


@dataclass(frozen=True, kw_only=True)
class Refilling:
    """A stripped weight, and whether its made-up values are to be 2:4 sparse; ``factor`` says along which axes."""

    weight: onnx.TensorProto
    factor: Factor | None

    def values(self) -> bytes:
        """Normally distributed values, raw; the same each time for the same name, type and shape."""
        values = _made_up(self.weight)
        return values if self.factor is None else pruned(self.factor, values)


def refillings(model: onnx.ModelProto) -> list[Refilling]:
    """The weights of a model that were stripped, by either program, and have no values yet.

    Raises ModelError for one that would have more than 8 GiB, or a type that no random values have.
    """
    sparse_ones = {id(factor.weight): factor for factor in factors(model) if factor.unfit is None}
    found = []
    for weight in model.graph.initializer:
        if is_stripped(weight):
            _require_possible(weight)
            wants = weight.doc_string.endswith(f"/{_SPARSE}")
            found.append(Refilling(weight=weight, factor=sparse_ones.get(id(weight)) if wants else None))
    return found


def unmark(model: onnx.ModelProto, weights: Iterable[onnx.TensorProto]) -> None:
    """Say no more that ``weights`` were left out, nor, if there are no others, that the model has none."""
    for weight in weights:
        weight.ClearField("doc_string")
    if not any(_is_marked(weight) for weight in model.graph.initializer):
        model.doc_string = model.doc_string.removesuffix(_MARK).removesuffix("-")
        if not model.doc_string:
            model.ClearField("doc_string")


def _require_possible(weight: onnx.TensorProto) -> None:
    if weight.data_type not in SIZED:
        raise errors.ModelError(f"values cannot be made up for tensor {weight.name!r} of type {weight.data_type}")
    if byte_size(weight) > _LARGEST_TENSOR:
        raise errors.ModelError(
            f"tensor {weight.name!r} of shape {list(weight.dims)} would have {byte_size(weight)} bytes, more than"
            f" {_LARGEST_TENSOR}: its values are not made up"
        )


def _made_up(weight: onnx.TensorProto) -> bytes:
    import hashlib

    import numpy as np
    from onnx import helper, numpy_helper

    seed = hashlib.sha256(f"{weight.name}/{weight.data_type}/{list(weight.dims)}".encode()).digest()
    dtype: np.dtype[np.generic] = helper.tensor_dtype_to_np_dtype(weight.data_type)
    normal = np.random.default_rng(int.from_bytes(seed[:8], "big")).standard_normal(tuple(weight.dims), np.float32)
    return bytes(numpy_helper.from_array(np.asarray(normal.astype(dtype))).raw_data)
