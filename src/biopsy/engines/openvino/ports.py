"""The inputs and outputs of OpenVINO's models: which is which by name, their types, their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from biopsy.engines.openvino.facts import numpy_name
from biopsy.model.tensor_type import ELEM_OF_DTYPE, TensorType
from biopsy.tensors.results import Array

_ML_DTYPES = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e8m0": "float8_e8m0fnu"}
"""OpenVINO's name of a type that NumPy lacks -> the name in ml_dtypes. All are read bit by bit."""


def matched(names: Sequence[str], ports: Sequence[Any]) -> dict[str, Any]:
    """The port of each name: by name, else in order, since OpenVINO renames what it simplifies while it reads."""
    found: dict[str, Any] = {}
    rest = list(ports)
    for name in names:
        port = next((port for port in rest if name in port.get_names() or name == _own_name(port)), None)
        if port is not None:
            found[name] = port
            rest.remove(port)
    left = [name for name in names if name not in found]
    found.update(zip(left, rest, strict=False))
    return {name: found[name] for name in names if name in found}


def _own_name(port: Any) -> str:
    name: str = port.node.friendly_name
    return name.partition("/sink_port_")[0]


def tensor_of(openvino: Any, array: Array, port: Any) -> Any:
    """A value as OpenVINO takes it at a port."""
    plain = np.ascontiguousarray(array).reshape(array.shape)
    if port.element_type.get_type_name() not in _ML_DTYPES:
        return openvino.Tensor(plain)
    bits = plain.view(f"u{plain.dtype.itemsize}")
    return openvino.Tensor(bits, openvino.Shape(list(array.shape)), port.element_type)


def array_of(tensor: Any) -> Array:
    """A copy of the value of a tensor."""
    dtype_name = _ML_DTYPES.get(tensor.element_type.get_type_name())
    array: Array = np.array(tensor.data)
    if dtype_name is None:
        return array
    import ml_dtypes

    return array.view(getattr(ml_dtypes, dtype_name))


def any_name(port: Any) -> str:
    """A name of a port of a model whose ONNX file is not known."""
    return min(port.get_names(), default=_own_name(port))


def type_of(port: Any) -> TensorType | None:
    """The type that a port says it has; None for one that we do not know."""
    elem = ELEM_OF_DTYPE.get(numpy_name(port.element_type.get_type_name()))
    shape = port.partial_shape
    if elem is None:
        return None
    if shape.rank.is_dynamic:
        return TensorType(elem, None)
    return TensorType(elem, tuple(None if dim.is_dynamic else dim.get_length() for dim in shape))
