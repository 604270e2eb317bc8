"""Models that compute nothing: their outputs are constants of the right type, named as the original's tensors.

A check that compares any of these tensors with golden values fails on them; one that does not has nothing to find.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from biopsy.model.tensor_type import DTYPE_OF_ELEM, STRING
from biopsy.recording.borders import as_constant

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnx

_MOST_ELEMENTS = 1 << 22
_OPEN_SIZE = 2
"""What stands for a dimension that is left open."""

Filling: TypeAlias = "Callable[[int], npt.NDArray[np.float64]]"
"""So many values, that agree with no other filling in order, sign, mean or greatest element."""


def _ascending(count: int) -> npt.NDArray[np.float64]:
    import numpy as np

    return np.linspace(1, 2, count)


def _descending(count: int) -> npt.NDArray[np.float64]:
    return -3 * _ascending(count)


def _peak(count: int) -> npt.NDArray[np.float64]:
    """One great value in the middle."""
    values = _ascending(count)
    values[count // 2 : count // 2 + 1] = 97
    return values


FILLINGS: Mapping[str, Filling] = {"ascending": _ascending, "descending": _descending, "with one peak": _peak}


def constant_outputs(model: onnx.ModelProto, infos: Iterable[bytes], filling: Filling) -> onnx.ModelProto | None:
    """A model with the inputs of ``model``, in which each tensor of some serialized ValueInfoProtos is a constant.

    They are its outputs. None if any is of a type for which no value can be made.
    """
    from onnx import ValueInfoProto

    wanted = list(map(ValueInfoProto.FromString, infos))
    made = [(info, value) for info in wanted if (value := _value(info.type, filling)) is not None]
    return _computing_nothing(model, made) if len(made) == len(wanted) else None


def recorded_outputs(
    model: onnx.ModelProto, recorded: Callable[[str], npt.NDArray[Any] | None]
) -> onnx.ModelProto | None:
    """A model with the inputs and outputs of ``model``, in which each output is a constant with its recorded value.

    ``recorded`` gives the value of a tensor by name. None if it knows none of an output, or one that cannot be stored.
    """
    from onnx import TensorProto

    inputs = {info.name for info in model.graph.input}
    made = []
    for info in model.graph.output:
        value = None if info.name in inputs else recorded(info.name)
        stored = None if value is None else as_constant(info.name, value)
        if stored is None:
            return None
        made.append((info, TensorProto.FromString(stored)))
    return _computing_nothing(model, made)


def _computing_nothing(
    model: onnx.ModelProto, outputs: Iterable[tuple[onnx.ValueInfoProto, onnx.TensorProto]]
) -> onnx.ModelProto:
    """A model with the inputs of ``model`` and these outputs, which are constants."""
    from onnx import helper

    made = type(model)()
    made.CopyFrom(model)
    graph = made.graph
    for field in ("node", "initializer", "sparse_initializer", "output", "value_info", "quantization_annotation"):
        graph.ClearField(field)
    del made.functions[:], made.training_info[:]
    initial = {weight.name for weight in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in initial]
    del graph.input[:]
    graph.input.extend(inputs)
    for info, value in outputs:
        graph.node.append(helper.make_node("Constant", [], [info.name], name=f"constant {info.name}", value=value))
        graph.output.append(info)
    return made


def _value(kind: onnx.TypeProto, filling: Filling) -> onnx.TensorProto | None:
    from onnx import numpy_helper

    shape = [dim.dim_value or _OPEN_SIZE for dim in kind.tensor_type.shape.dim]
    dtype = _dtype(kind)
    if dtype is None or math.prod(shape) > _MOST_ELEMENTS:
        return None
    values = filling(math.prod(shape))
    return numpy_helper.from_array((values > 1.5 if dtype.kind == "b" else values).astype(dtype).reshape(shape))


def _dtype(kind: onnx.TypeProto) -> np.dtype[Any] | None:
    """The NumPy type; None for strings, for what is narrower than a byte, and for what is no tensor of a known rank."""
    from onnx import helper

    elem = kind.tensor_type.elem_type
    if not kind.tensor_type.HasField("shape") or elem == STRING or elem not in DTYPE_OF_ELEM:
        return None
    if DTYPE_OF_ELEM[elem].endswith(("int4", "int2", "e2m1fn")):
        return None
    return helper.tensor_dtype_to_np_dtype(elem)
