"""Tensors of PyTorch as arrays, in the form that they have in an ONNX model, and arrays as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from biopsy import errors
from biopsy.tensors.dtypes import dtype_named
from biopsy.tensors.results import Array
from biopsy.torch.installed import imported

_SAME_NAME = (
    *("bool", "float16", "float32", "float64", "bfloat16"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
_REAL_PARTS = {"complex64": "float32", "complex128": "float64"}
_PAIRS = {"float4_e2m1fn_x2": "float4_e2m1fn"}
"""Types that hold two elements in a byte, the first one in its lower half."""


def type_in_model(value: Any) -> np.dtype[Any] | None:
    """The type of the elements that a value of a program has in the model; None if the model has no such tensor.

    ``value`` may be one that stands for it without having any elements. A complex number is two real ones in the model,
    and a number of Python a tensor without dimensions.
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
    found = name if name in _SAME_NAME else _REAL_PARTS.get(name) or _PAIRS.get(name)
    return None if found is None else dtype_named(found)


def as_array(value: Any, *, copy: bool = True) -> Array:
    """A value that ``type_in_model`` has a type for. Later operators may write into the tensor: so it is copied."""
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
        found: Array = here.numpy()
        return found
    # NumPy has no such type: the bytes go over as integers.
    bits: Array = here.view(torch.uint8 if dtype.itemsize == 1 else torch.int16).numpy()
    return bits.view(dtype)


def as_tensor(value: Array) -> Any:
    """An array as a tensor of its own. Raises DataError if PyTorch has no such type."""
    torch = imported()
    if value.dtype.kind not in "biufcV":
        raise errors.DataError(f"PyTorch has no tensor of {value.dtype.name}")
    own = value.copy()
    if own.dtype.isbuiltin == 1:
        return torch.from_numpy(own)
    # NumPy has no such type: the bytes go over as integers.
    bits = torch.from_numpy(own.view("uint8" if own.dtype.itemsize == 1 else "int16"))
    kind = getattr(torch, own.dtype.name, None)
    if kind is None or kind.itemsize != own.dtype.itemsize:
        raise errors.DataError(f"PyTorch has no tensor of {own.dtype.name}")
    return bits.view(kind)


def _unpacked(packed: Array) -> Array:
    """Elements of four bits, each in a byte of its own: twice as many in the last dimension."""
    return np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
