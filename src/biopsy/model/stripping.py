"""Strips weights from models and makes up new ones, and finds or makes 2:4 sparsity of weights.

2:4 sparsity: of every four neighbours along the dimension that a product sums over, at least two are zero, so the
sparse tensor cores of NVIDIA's GPUs skip half of the multiplications. That dimension is the input channels of a
convolution, and K of a matrix product M x K by K x N (TensorRT's developer guide, "Structured Sparsity"; Mishra et al.,
"Accelerating Sparse Deep Neural Networks", 2021). Like Polygraphy, this finds weights also behind quantization, casts
and transpositions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.model import walk
from biopsy.model.external import VALUE_FIELDS, byte_size, clear_values, is_external, values_later
from biopsy.model.parts import FunctionKey
from biopsy.model.tensor_type import SIZED, elements
from biopsy.slow_imports import np, onnx

if TYPE_CHECKING:
    import numpy.typing as npt

_MARK, _SPARSE = "TRT_WEIGHTLESS", "SPARSE_2_4"

_UINT8 = 2
_LARGE = 1024
"""The least number of elements of a table of Gather or Slice that is stripped."""

_POSITIONS: Mapping[str, tuple[int, ...]] = {
    "Conv": (0,), "ConvTranspose": (0,), "Gemm": (0, 1, 2), "MatMul": (0, 1),
}  # fmt: skip
"""Operators whose weights TensorRT can refit -> the inputs at which the weights may be transposed or quantized."""

_ARITY: Mapping[str, tuple[int, ...]] = {
    "Conv": (2, 3), "ConvTranspose": (2, 3), "Gemm": (2, 3), "MatMul": (2,), "Gather": (2,), "Slice": (3, 4, 5),
    "QuantizeLinear": (2, 3), "DequantizeLinear": (2, 3), "Transpose": (1,),
}  # fmt: skip

_LARGEST_TENSOR = 8 << 30
"""Bytes of the largest tensor that gets made-up values, which must fit into memory."""


def is_stripped(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor is marked as stripped and has no values."""
    if not _is_marked(tensor) or is_external(tensor):
        return False
    return not any(len(getattr(tensor, field)) for field in VALUE_FIELDS) and byte_size(tensor) > 0


def _is_marked(tensor: onnx.TensorProto) -> bool:
    return tensor.doc_string.split("/")[0] == _MARK


@dataclass(frozen=True, kw_only=True)
class Stripped:
    """The stripped weights: their names, the bytes of their values, and the names of those with 2:4 sparsity.

    ``unused`` are excluded names that would not have been stripped anyway.
    """

    names: tuple[str, ...]
    size: int
    sparse: tuple[str, ...]
    unused: tuple[str, ...]


def strip(model: onnx.ModelProto, folder: Path | None, excluded: Collection[str] = ()) -> Stripped:
    """Remove the values of initializers that an engine can refit, except the ``excluded`` ones.

    These are the weights of Conv, ConvTranspose, Gemm and MatMul, also if they are transposed, or quantized and
    dequantized, for this operator only; tables of 1,024 elements or more of Gather and Slice; and all weights of
    operators that ONNX does not know. Weights of type uint8 stay. Bodies and functions are not stripped. External
    weights in ``folder`` are read to find out whether they are sparse; if it is None, they are not read and count as
    not sparse.

    Raises ModelError if a weight that must be read is missing or damaged.
    """
    names = _refitted(model.graph)
    candidates = {
        weight.name: weight for weight in model.graph.initializer if weight.name in names and not is_stripped(weight)
    }
    chosen = [weight for name, weight in candidates.items() if name not in excluded]
    ids = {id(weight) for weight in chosen}
    sparse = {
        factor.weight.name
        for factor in factors(model)
        if id(factor.weight) in ids
        and factor.unfit is None
        and (folder is not None or not is_external(factor.weight))
        and conforming(factor, values_later(factor.weight, folder or Path())()) == 1
    }
    size = sum(byte_size(weight) for weight in chosen)
    for weight in chosen:
        clear_values(weight)
        weight.raw_data = b""
        weight.doc_string = f"{_MARK}/{_SPARSE if weight.name in sparse else ''}"
    if chosen and not model.doc_string.endswith(_MARK):
        model.doc_string = "-".join(filter(None, [model.doc_string, _MARK]))
    return Stripped(
        names=tuple(weight.name for weight in chosen),
        size=size,
        sparse=tuple(weight.name for weight in chosen if weight.name in sparse),
        unused=tuple(sorted(set(excluded) - set(candidates) - {""})),
    )


def _refitted(graph: onnx.GraphProto) -> set[str]:
    """The initializers that an engine can refit, judged by the nodes that read them."""
    weights = {weight.name: weight for weight in graph.initializer}
    ends = {info.name for info in graph.output}
    consumers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            consumers.setdefault(name, []).append((node, place))

    def leads_to(node: onnx.NodeProto, *, through: str = "") -> bool:
        """Whether only a product reads the result of a node, directly or after a node with operator ``through``."""
        name = node.output[0] if node.output else ""
        readers = consumers.get(name, ())
        if len(readers) != 1 or name in ends:
            return False
        other, place = readers[0]
        if through:
            return other.op_type == through and place == 0 and _fits(other) and leads_to(other)
        return place in _POSITIONS.get(other.op_type, ()) and _fits(other)

    names = set()
    for node in graph.node:
        op_type = node.op_type
        is_known = onnx.defs.has(op_type)
        refits = _fits(node) and (
            op_type in {*_POSITIONS, "Gather", "Slice"}
            or (op_type == "Transpose" and leads_to(node))
            or (op_type == "QuantizeLinear" and leads_to(node, through="DequantizeLinear"))
        )
        if is_known and not refits:
            continue
        least = _LARGE if op_type in {"Gather", "Slice"} else 0 if op_type == "MatMul" or not is_known else 1
        for name in node.input[:1] if op_type in {"Slice", "QuantizeLinear"} else node.input:
            weight = weights.get(name)
            if weight is not None and weight.data_type in SIZED - {_UINT8} and byte_size(weight) > 0:
                names |= {name} if elements(weight.dims or [1]) >= least else set()
    return names


def _fits(node: onnx.NodeProto) -> bool:
    return len(node.input) in _ARITY.get(node.op_type, ())


@dataclass(frozen=True, kw_only=True)
class Refilling:
    """A stripped weight that gets values; with a ``factor``, they get 2:4 sparsity along its axes."""

    weight: onnx.TensorProto
    factor: Factor | None

    def values(self) -> bytes:
        """Normally distributed raw values, always the same for the same name, type and shape."""
        weight = self.weight

        seed = hashlib.sha256(f"{weight.name}/{weight.data_type}/{list(weight.dims)}".encode()).digest()
        dtype: np.dtype[np.generic] = onnx.helper.tensor_dtype_to_np_dtype(weight.data_type)
        normal = np.random.default_rng(int.from_bytes(seed[:8], "big")).standard_normal(tuple(weight.dims), np.float32)
        values = bytes(onnx.numpy_helper.from_array(np.asarray(normal.astype(dtype))).raw_data)
        return values if self.factor is None else pruned(self.factor, values)


def refillings(model: onnx.ModelProto) -> list[Refilling]:
    """The stripped weights of a model, whether Polygraphy or biopsy stripped them.

    Raises ModelError for a weight of more than 8 GiB, or of a type without random values.
    """
    able = {id(factor.weight): factor for factor in factors(model) if factor.unfit is None}
    refills = []
    for weight in filter(is_stripped, model.graph.initializer):
        if weight.data_type not in SIZED:
            raise errors.ModelError(f"values cannot be made up for tensor {weight.name!r} of type {weight.data_type}")
        if byte_size(weight) > _LARGEST_TENSOR:
            raise errors.ModelError(
                f"tensor {weight.name!r} of shape {list(weight.dims)} would have {byte_size(weight)} bytes, more than"
                f" {_LARGEST_TENSOR}: its values are not made up"
            )
        was_sparse = weight.doc_string.endswith(f"/{_SPARSE}")
        refills.append(Refilling(weight=weight, factor=able.get(id(weight)) if was_sparse else None))
    return refills


def unmark(model: onnx.ModelProto, weights: Iterable[onnx.TensorProto]) -> None:
    """Remove the mark of stripped weights, and that of the model if no marked weight is left."""
    for weight in weights:
        weight.ClearField("doc_string")
    if not any(_is_marked(weight) for weight in model.graph.initializer):
        model.doc_string = model.doc_string.removesuffix(_MARK).removesuffix("-")
        if not model.doc_string:
            model.ClearField("doc_string")


GROUP = 4
"""Neighbours in a group of the 2:4 pattern."""
ZEROS = 2
"""The least number of zeros in a group."""

_BITS: Mapping[int, tuple[str, int]] = {1: ("<u4", 0x7FFFFFFF), 10: ("<u2", 0x7FFF), 16: ("<u2", 0x7FFF)}
"""float32, float16 and bfloat16 -> the type of their bits as unsigned numbers, and the mask that removes the sign.

Magnitudes of IEEE numbers have the same order as their bits.
"""

_SAME_DIMENSIONS = frozenset({
    "QuantizeLinear", "DequantizeLinear", "TRT_FP8QuantizeLinear", "TRT_FP8DequantizeLinear", "Cast",
})  # fmt: skip
"""A weight is also found before one of these operators, since they only change its elements."""


@dataclass(frozen=True, kw_only=True)
class Factor:
    """A weight that products multiply by; ``axes`` are the dimensions of the weight that they sum over."""

    weight: onnx.TensorProto
    axes: tuple[int, ...]
    readers: tuple[str, ...] = ()
    """Names of the products; without a name, operator and output."""

    @property
    def unfit(self) -> str | None:
        """Why the weight cannot have the 2:4 pattern; None if it can."""
        if self.weight.data_type not in _BITS:
            return "its type is none of float32, float16 and bfloat16"
        for axis in self.axes:
            size = self.weight.dims[axis]
            if size % GROUP or size <= 0:
                return f"dimension {axis} has {size} elements, no multiple of {GROUP}"
        return None


def factors(model: onnx.ModelProto) -> list[Factor]:
    """The initializers that Conv, MatMul and Gemm multiply by, in the order of their nodes, also in bodies.

    Weights behind an operator that rearranges values, such as Reshape, do not count, since the dimension that is summed
    over is unknown; nor do Constant nodes and weights in local functions.
    """
    uses: dict[int, tuple[onnx.TensorProto, list[int], list[str]]] = {}
    for weight, axis, reader in _uses(model.graph, {}):
        _, axes, readers = uses.setdefault(id(weight), (weight, [], []))
        if axis not in axes:
            axes.append(axis)
        if reader not in readers:
            readers.append(reader)
    return [Factor(weight=weight, axes=tuple(axes), readers=tuple(names)) for weight, axes, names in uses.values()]


def conforming(factor: Factor, values: bytes) -> float:
    """The share of groups with the pattern, along the axis with the smallest share.

    ``values`` are the raw values of the weight, little-endian. ``factor.unfit`` must be None.
    """
    shares = []
    for axis in factor.axes:
        groups, mask = _groups(factor.weight, values, axis)
        shares.append(float(np.mean(((groups & mask) == 0).sum(axis=2, dtype=np.uint8) >= ZEROS)) if groups.size else 1)
    return min(shares)


def pruned(factor: Factor, values: bytes) -> bytes:
    """The raw values of a weight with the two smallest magnitudes of every four neighbours set to zero.

    Of equal magnitudes, the first ones are set. So values with the pattern stay as they are, except for the signs of
    zeros. ``values`` are as in ``conforming``.
    """
    for axis in factor.axes:
        groups, mask = _groups(factor.weight, values, axis)
        smallest = np.argsort(groups & mask, axis=2, kind="stable")[:, :, :ZEROS]
        np.put_along_axis(groups, smallest, 0, axis=2)
        values = groups.tobytes()
    return values


def pruned_later(factor: Factor, folder: Path) -> Callable[[], bytes]:
    """A function that returns the pruned values of a weight; it reads external data in ``folder`` when it is called.

    Raises as ``values_later``.
    """
    dense = values_later(factor.weight, folder)
    return lambda: pruned(factor, dense())


def _groups(weight: onnx.TensorProto, values: bytes, axis: int) -> tuple[npt.NDArray[Any], Any]:
    """A copy of the bits with the shape (before, groups, 4, behind), and the mask of their magnitude in their type."""
    dtype, mask = _BITS[weight.data_type]
    dims = list(weight.dims)
    before = int(np.prod(dims[:axis], dtype=np.int64))
    behind = int(np.prod(dims[axis + 1 :], dtype=np.int64))
    bits = np.frombuffer(values, dtype).reshape(before, dims[axis] // GROUP, GROUP, behind).copy()
    return bits, bits.dtype.type(mask)


_Scope = Mapping[str, "onnx.TensorProto | onnx.NodeProto"]
"""Tensor names -> the initializer, or the node that computes the tensor."""


def _uses(graph: onnx.GraphProto, outer: _Scope) -> Iterator[tuple[onnx.TensorProto, int, str]]:
    """Each use of a weight in a product, in a graph and its bodies: weight, axis summed over, name of the node."""
    scope: dict[str, onnx.TensorProto | onnx.NodeProto] = {**outer}
    for info in graph.input:
        scope.pop(info.name, None)
    scope |= {weight.name: weight for weight in graph.initializer}
    scope |= {name: node for node in graph.node for name in node.output if name}
    for node in graph.node:
        for name, axis in _summed(node):
            if (source := _source(name, axis, scope)) is not None:
                yield *source, node.name or f"{node.op_type} of {', '.join(node.output)}"
        for body in walk.bodies(node):
            yield from _uses(body, scope)


def _summed(node: onnx.NodeProto) -> list[tuple[str, int]]:
    """The inputs of a product, each with the dimension that is summed over; negative ones count from the end."""
    operator: FunctionKey = walk.operator(node)
    if operator[0] or len(node.input) < 2:
        return []
    first, second = node.input[0], node.input[1]
    if operator[1] == "Conv":
        return [(second, 1)]
    if operator[1] == "MatMul":
        return [(first, -1), (second, -2)]
    if operator[1] == "Gemm":
        transposed = {attribute.name: attribute.i == 1 for attribute in node.attribute}
        return [(first, 0 if transposed.get("transA") else 1), (second, 1 if transposed.get("transB") else 0)]
    return []


def _source(name: str, axis: int, scope: _Scope) -> tuple[onnx.TensorProto, int] | None:
    """The weight that a tensor is made of, and its dimension that is ``axis`` of the tensor; None without a weight."""
    permutations: list[Sequence[int] | None] = []
    seen: set[str] = set()
    while (origin := scope.get(name)) is not None and origin.DESCRIPTOR.name == "NodeProto":
        node: onnx.NodeProto = origin  # type: ignore[assignment]  # the descriptor shows it
        seen.add(name)
        if node.op_type == "Transpose":
            permutations.append(next((list(entry.ints) for entry in node.attribute if entry.name == "perm"), None))
        elif node.op_type not in _SAME_DIMENSIONS:
            return None
        name = node.input[0] if node.input else ""
        if name in seen:
            return None
    if origin is None:
        return None
    weight: onnx.TensorProto = origin  # type: ignore[assignment]
    rank = len(weight.dims)
    axis = max(axis + rank, 0) if axis < 0 else axis
    for permutation in permutations:  # undone, the one nearest to the product first
        order = list(reversed(range(rank))) if permutation is None else permutation
        if axis >= rank or sorted(order) != list(range(rank)):
            return None
        axis = order[axis]
    return (weight, axis) if axis < rank else None
