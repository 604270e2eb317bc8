"""The types of ONNX Runtime's values, and how they are read into NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from biopsy.engines.base import ModelInput
from biopsy.model.tensor_type import MapType, OptionalType, SequenceType, TensorType, ValueType
from biopsy.tensors.dtypes import text as text_array
from biopsy.tensors.results import Array

_ELEM_OF_ORT = {
    "float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "string": 8, "bool": 9,
    "float16": 10, "double": 11, "uint32": 12, "uint64": 13, "complex64": 14, "complex128": 15, "bfloat16": 16,
    "float8e4m3fn": 17, "float8e4m3fnuz": 18, "float8e5m2": 19, "float8e5m2fnuz": 20, "uint4": 21, "int4": 22,
    "float4e2m1": 23, "float8e8m0": 24, "uint2": 25, "int2": 26,
}  # fmt: skip

PLAIN = frozenset({*range(1, 14)})
"""Element types that the package hands over as NumPy arrays by itself, with their true values."""

BYTE_WIDE_OR_MORE = frozenset({16, 17, 18, 19, 20, 24})


def value_type_of(text: str, shape: Sequence[Any] | None = None) -> ValueType | None:
    """What ONNX Runtime calls ``tensor(float)``, ``seq(tensor(int64))``, ``map(string,tensor(float))``."""
    kind, _, rest = text.partition("(")
    inner = rest.removesuffix(")")
    if kind == "tensor":
        elem = _ELEM_OF_ORT.get(inner)
        return None if elem is None else TensorType(elem, None if shape is None else tuple(shape))
    if kind == "map":
        key, _, value = inner.partition(",")
        held = value_type_of(value)
        return None if held is None or key not in _ELEM_OF_ORT else MapType(_ELEM_OF_ORT[key], held)
    held = value_type_of(inner)
    if held is None or kind not in ("seq", "optional"):
        return None
    return SequenceType(held) if kind == "seq" else OptionalType(held)


def element_of(kind: ValueType) -> int:
    """The type of the elements that a value holds."""
    if isinstance(kind, TensorType):
        return kind.elem
    return element_of(kind.value if isinstance(kind, MapType) else kind.item)


def with_true_ranks(inputs: dict[str, ValueType | None], model: ModelInput) -> dict[str, ValueType | None]:
    """ONNX Runtime shows an unknown rank as no dimensions, like a scalar, and no shapes of items: the model does."""
    unsure = [name for name, type_ in inputs.items() if not isinstance(type_, TensorType) or type_.shape == ()]
    if unsure:
        from biopsy.model.index import index_bytes

        index = index_bytes(model.data, model.folder)
        inputs |= {name: index.value_type(index.ids[name]) for name in unsure}
    return inputs


def readable(value: Any) -> Array:
    """Strings come as objects, which no store takes: give them NumPy's type for text."""
    array = np.asarray(value)
    return text_array(array) if array.dtype == object else array


def copied(memory: Callable[[int, int], bytes], address: int, dtype_name: str, shape: Sequence[int]) -> Array:
    """What stands at an address, in a type of ml_dtypes. ``memory`` gives the bytes at an address."""
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, dtype_name))
    size = math.prod(shape) * dtype.itemsize
    return np.frombuffer(memory(address, size), dtype=dtype).reshape(shape).copy()
