"""Tensors of PyTorch as arrays, in memory of their own: what is computed in place later changes none of them."""

from __future__ import annotations

from typing import Any

from biopsy.tensors.dtypes import dtype_named
from biopsy.tensors.results import Array
from biopsy.torch.package import torch_package


def array_of(tensor: Any) -> Array:
    """A copy of a tensor, in row-major order; complex numbers as pairs, as the exporter has them.

    Types that NumPy lacks, such as bfloat16, are those of ml_dtypes. Raises DataError for a type that neither has.
    """
    torch = torch_package()
    value = tensor.detach().resolve_conj().resolve_neg()
    if value.is_complex():
        value = torch.view_as_real(value)
    value = value.to("cpu", copy=True, memory_format=torch.contiguous_format)
    name = str(value.dtype).removeprefix("torch.")
    dtype = dtype_named(name)
    if dtype.isbuiltin == 1:
        array: Array = value.numpy()
        return array
    bits = {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
    extended: Array = value.view(bits).numpy().view(dtype)
    return extended
