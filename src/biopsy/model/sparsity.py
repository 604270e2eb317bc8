"""2:4 sparsity: the weights that may have it, whether they have it, and values that do.

Of every four neighbours along the dimension that a product sums over, two or more are zero: then the sparse tensor
cores of NVIDIA's GPUs skip half of the multiplications. That dimension is the input channels of a convolution, and K
of a matrix product M x K by K x N (TensorRT's developer guide, "Structured Sparsity"; Mishra et al., "Accelerating
Sparse Deep Neural Networks", 2021). Weights are looked for as Polygraphy looks for them: behind quantization, casts and
transpositions too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from biopsy.model import walk
from biopsy.model.node import FunctionKey

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnx

GROUP = 4
"""Neighbours that are looked at together."""
ZEROS = 2
"""How many of them are zero, at least."""

_BITS: Mapping[int, tuple[str, int]] = {1: ("<u4", 0x7FFFFFFF), 10: ("<u2", 0x7FFF), 16: ("<u2", 0x7FFF)}
"""Of float, float16 and bfloat16: their bits as unsigned numbers, and the mask that leaves the sign away.

Without their signs, IEEE numbers have the order of their bits.
"""

_SAME_DIMENSIONS = frozenset({
    "QuantizeLinear", "DequantizeLinear", "TRT_FP8QuantizeLinear", "TRT_FP8DequantizeLinear", "Cast",
})  # fmt: skip
"""Operators through which a weight is followed: they change its values one by one."""


@dataclass(frozen=True, kw_only=True)
class Factor:
    """A weight that products read; ``axes`` are the dimensions of the weight that they sum over."""

    weight: onnx.TensorProto
    axes: tuple[int, ...]
    readers: tuple[str, ...] = ()
    """Names of the products; those without one by operator and output."""

    @property
    def unfit(self) -> str | None:
        """Why it cannot have the pattern; None if it can."""
        if self.weight.data_type not in _BITS:
            return "its type is none of float32, float16 and bfloat16"
        for axis in self.axes:
            size = self.weight.dims[axis]
            if size % GROUP or size <= 0:
                return f"dimension {axis} has {size} elements, no multiple of {GROUP}"
        return None


def factors(model: onnx.ModelProto) -> list[Factor]:
    """The initializers that Conv, MatMul and Gemm multiply by, in the order of their nodes; those of bodies too.

    What is behind an operator that rearranges values, such as Reshape, is none: along which dimension it is summed
    cannot be told. Local functions and Constant nodes are not looked into.
    """
    found: dict[int, tuple[onnx.TensorProto, list[int], list[str]]] = {}
    for weight, axis, reader in _uses(model.graph, {}):
        _, axes, readers = found.setdefault(id(weight), (weight, [], []))
        if axis not in axes:
            axes.append(axis)
        if reader not in readers:
            readers.append(reader)
    return [Factor(weight=weight, axes=tuple(axes), readers=tuple(names)) for weight, axes, names in found.values()]


def is_sparse(factor: Factor, values: bytes) -> bool:
    """Whether a weight has the pattern, along each of its axes; see ``conforming``."""
    return conforming(factor, values) == 1


def conforming(factor: Factor, values: bytes) -> float:
    """The share of groups that have the pattern, along the axis where that is least.

    ``values`` are raw: little-endian, one after another, as many as the weight's shape says. The weight must be able
    to have the pattern (``Factor.unfit``).
    """
    import numpy as np

    shares = []
    for axis in factor.axes:
        groups, mask = _groups(factor.weight, values, axis)
        shares.append(float(np.mean(((groups & mask) == 0).sum(axis=2, dtype=np.uint8) >= ZEROS)) if groups.size else 1)
    return min(shares)


def pruned(factor: Factor, values: bytes) -> bytes:
    """The raw values of a weight, of every four neighbours the two of the smallest magnitude set to zero.

    Of equal ones, those that stand first are set; so values that have the pattern already stay as they are, but for
    the signs of zeros. ``values`` are as in ``conforming``.
    """
    import numpy as np

    for axis in factor.axes:
        groups, mask = _groups(factor.weight, values, axis)
        sizes = groups & mask
        for place, kept in enumerate(_kept(sizes)):
            groups[:, :, place] = np.where(kept, groups[:, :, place], 0)
        values = groups.tobytes()
    return values


def _kept(sizes: npt.NDArray[Any]) -> list[npt.NDArray[np.bool_]]:
    """For each of the four places of a group, where it is among the largest two: others are before it in order."""
    import numpy as np

    four = [sizes[:, :, place] for place in range(GROUP)]
    kept = []
    for place, one in enumerate(four):
        smaller = np.zeros(one.shape, np.uint8)
        for other, rival in enumerate(four):
            if other != place:
                smaller += rival <= one if other < place else rival < one
        kept.append(smaller >= ZEROS)
    return kept


def _groups(weight: onnx.TensorProto, values: bytes, axis: int) -> tuple[npt.NDArray[Any], Any]:
    """The bits as (before, groups, 4, behind), in a copy, and the mask for their magnitude as a number of that type."""
    import numpy as np

    dtype, mask = _BITS[weight.data_type]
    dims = list(weight.dims)
    before = int(np.prod(dims[:axis], dtype=np.int64))
    behind = int(np.prod(dims[axis + 1 :], dtype=np.int64))
    bits = np.frombuffer(values, dtype).reshape(before, dims[axis] // GROUP, GROUP, behind).copy()
    return bits, bits.dtype.type(mask)


# Where weights are


_Scope = Mapping[str, "onnx.TensorProto | onnx.NodeProto"]
"""What each name of a graph means: an initializer, or the node that computes it."""


def _uses(graph: onnx.GraphProto, outer: _Scope) -> Iterator[tuple[onnx.TensorProto, int, str]]:
    """Weights with the axis that one node sums them over, and that node, in a graph and in the bodies below it."""
    scope: dict[str, onnx.TensorProto | onnx.NodeProto] = {**outer}
    for info in graph.input:
        scope.pop(info.name, None)
    scope |= {weight.name: weight for weight in graph.initializer}
    scope |= {name: node for node in graph.node for name in node.output if name}
    for node in graph.node:
        for name, axis in _summed(node):
            found = _source(name, axis, scope)
            if found is not None:
                yield *found, node.name or f"{node.op_type} of {', '.join(node.output)}"
        for body in walk.bodies(node):
            yield from _uses(body, scope)


def _summed(node: onnx.NodeProto) -> list[tuple[str, int]]:
    """The inputs of a product, each with the dimension that it is summed over; below zero from the end."""
    operator: FunctionKey = walk.operator(node)
    if operator[0] or len(node.input) < 2:
        return []
    first, second = node.input[0], node.input[1]
    if operator[1] == "Conv":
        return [(second, 1)]
    if operator[1] == "MatMul":
        return [(first, -1), (second, -2)]
    if operator[1] == "Gemm":
        turned = {attribute.name: attribute.i == 1 for attribute in node.attribute}
        return [(first, 0 if turned.get("transA") else 1), (second, 1 if turned.get("transB") else 0)]
    return []


def _source(name: str, axis: int, scope: _Scope) -> tuple[onnx.TensorProto, int] | None:
    """The weight that a tensor is made of, and the dimension that is ``axis`` of the tensor; None if it is none."""
    turns: list[Sequence[int] | None] = []
    seen: set[str] = set()
    while name not in seen:
        seen.add(name)
        found = scope.get(name)
        if found is None:
            return None
        if found.DESCRIPTOR.name == "TensorProto":
            return _weight_axis(found, axis, turns)  # type: ignore[arg-type]  # told by the descriptor
        node: onnx.NodeProto = found  # type: ignore[assignment]
        if node.op_type == "Transpose":
            turns.append(next((list(entry.ints) for entry in node.attribute if entry.name == "perm"), None))
        elif node.op_type not in _SAME_DIMENSIONS:
            return None
        if not node.input:
            return None
        name = node.input[0]
    return None


def _weight_axis(
    weight: onnx.TensorProto, axis: int, turns: Sequence[Sequence[int] | None]
) -> tuple[onnx.TensorProto, int] | None:
    """Undo the transpositions between a product and its weight, the one nearest to the product first."""
    rank = len(weight.dims)
    axis = max(axis + rank, 0) if axis < 0 else axis
    if axis >= rank:
        return None
    for turn in turns:
        order = list(reversed(range(rank))) if turn is None else turn
        if sorted(order) != list(range(rank)):
            return None
        axis = order[axis]
    return weight, axis
