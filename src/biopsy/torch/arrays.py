"""The import of PyTorch, which only this module does; its tensors as arrays and back; and the outputs of a module under
the names of its ONNX model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.processes.own_process import install_line
from biopsy.tensors.results import Array
from biopsy.tensors.types import dtype_named


def imported(name: str = "torch") -> Any:
    """PyTorch, or a module of it, such as ``torch.fx``. Raises EngineMissing if it is not installed or does not work.

    It is typed as Any, so that biopsy can be type-checked without PyTorch, which is large.
    """
    try:
        return import_module(name)
    except ImportError as error:
        if error.name != "torch":
            why = f"PyTorch does not work here: {error}"
        else:
            why = "biopsy.torch needs PyTorch, which is not installed"
        raise errors.EngineMissing(why, next_steps=[install_line("biopsy[torch]"), "or see: biopsy doctor"]) from error


_SAME_NAME = (
    *("bool", "float16", "float32", "float64", "bfloat16"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
_REAL_PARTS = {"complex64": "float32", "complex128": "float64"}
_PAIRS = {"float4_e2m1fn_x2": "float4_e2m1fn"}
"""Types that hold two elements in a byte, the first one in its lower half."""


def type_in_model(value: Any) -> np.dtype[Any] | None:
    """The element type that a value of a program has in the ONNX model; None if ONNX has no such tensor.

    ``value`` may be a fake tensor without elements. In the model, a complex number is two real ones, and a Python
    number is a tensor without dimensions.
    """
    torch = imported()
    if isinstance(value, bool | torch.SymBool):
        return np.dtype(np.bool_)
    if isinstance(value, int | torch.SymInt):
        return np.dtype(np.int64)
    if isinstance(value, float | torch.SymFloat):
        return np.dtype(np.float32)
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
        return None
    name = str(value.dtype).removeprefix("torch.")
    name_in_model = name if name in _SAME_NAME else _REAL_PARTS.get(name) or _PAIRS.get(name)
    return None if name_in_model is None else dtype_named(name_in_model)


def as_array(value: Any, *, copy: bool = True) -> Array:
    """The array of a value that has a ``type_in_model``. It is a copy, since later operators may write into the tensor.

    Without ``copy``, it may share memory with the tensor.
    """
    torch = imported()
    dtype = type_in_model(value)
    assert dtype is not None
    if not isinstance(value, torch.Tensor):
        return np.asarray(value, dtype)
    plain = value.detach().resolve_conj().resolve_neg()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    here = plain.to("cpu", copy=copy, memory_format=torch.contiguous_format)
    if str(here.dtype).removeprefix("torch.") in _PAIRS:
        return _unpacked(here.view(torch.uint8).numpy()).view(dtype)
    if dtype.isbuiltin == 1:
        array: Array = here.numpy()
        return array
    # A type of ml_dtypes, which PyTorch does not know: the bytes are passed as integers.
    bits: Array = here.view(torch.uint8 if dtype.itemsize == 1 else torch.int16).numpy()
    return bits.view(dtype)


def as_tensor(value: Array) -> Any:
    """A tensor with a copy of an array. Raises DataError if PyTorch has no such type."""
    torch = imported()
    if value.dtype.kind not in "biufcV":
        raise errors.DataError(f"PyTorch has no tensor of {value.dtype.name}")
    own = value.copy()
    if own.dtype.isbuiltin == 1:
        return torch.from_numpy(own)
    # A type of ml_dtypes, which PyTorch does not know: the bytes are passed as integers.
    bits = torch.from_numpy(own.view("uint8" if own.dtype.itemsize == 1 else "int16"))
    kind = getattr(torch, own.dtype.name, None)
    if kind is None or kind.itemsize != own.dtype.itemsize:
        raise errors.DataError(f"PyTorch has no tensor of {own.dtype.name}")
    return bits.view(kind)


def _unpacked(packed: Array) -> Array:
    """Elements of four bits, each in a byte of its own, which doubles the last dimension."""
    return np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


@dataclass(frozen=True)
class Leaf:
    """A value in nested arguments or outputs; ``path`` is its place as Python writes it: ``['logits'][0]``."""

    path: str
    value: Any


def leaves_of(nested: Any) -> list[Leaf]:
    """The values of nested lists, tuples, dictionaries and registered classes, in the order of the exporter."""
    pytree = imported("torch.utils._pytree")
    return [Leaf(pytree.keystr(path), value) for path, value in pytree.tree_flatten_with_path(nested)[0]]


def array_of_leaf(value: Any) -> Array | None:
    """A tensor, number or text as an array; None for any other value, and for a quantized tensor."""
    if isinstance(value, str):
        return np.asarray(value)
    return None if type_in_model(value) is None else as_array(value)


def outputs_of(onnx_program: Any, leaves: Sequence[Leaf]) -> dict[str, Leaf]:
    """The values that the module returned, by the names of the ONNX model's outputs.

    Raises CannotCompare if their numbers differ.
    """
    # They are paired by position, since the exporter may rename outputs. It flattens outputs as torch.utils._pytree
    # does, leaves out constants that are not tensors, and keeps the order of the exported program's signature.
    program = onnx_program.exported_program
    specs = [spec for spec in program.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    names = [value.name for value in onnx_program.model.graph.outputs]
    if len(specs) != len(leaves):
        raise errors.CannotCompare(f"the module gives {len(leaves)} values, and its exported program {len(specs)}")
    tensors = [leaf for spec, leaf in zip(specs, leaves, strict=True) if type(spec.arg).__name__ != "ConstantArgument"]
    if len(tensors) != len(names):
        raise errors.CannotCompare(
            f"the module gives {len(tensors)} tensors, and the ONNX model has {len(names)} outputs"
        )
    return dict(zip(names, tensors, strict=True))


def arrays_by_output(onnx_program: Any, leaves: Sequence[Leaf], values: Sequence[Any]) -> dict[str, Array]:
    """``values`` in the places of ``leaves`` as arrays, by the names of the ONNX model's outputs.

    Raises CannotCompare as ``outputs_of`` does.
    """
    placed = [Leaf(leaf.path, value) for leaf, value in zip(leaves, values, strict=True)]
    arrays = {name: array_of_leaf(leaf.value) for name, leaf in outputs_of(onnx_program, placed).items()}
    return {name: array for name, array in arrays.items() if array is not None}


LONE = "output"
"""The name of the value that a module returns outside of any tuple or dictionary."""


def arrays_by_path(leaves: Sequence[Leaf], values: Sequence[Any]) -> dict[str, Array]:
    """``values`` in the places of ``leaves`` as arrays, by these places."""
    arrays = {leaf.path or LONE: array_of_leaf(value) for leaf, value in zip(leaves, values, strict=True)}
    return {path: array for path, array in arrays.items() if array is not None}
