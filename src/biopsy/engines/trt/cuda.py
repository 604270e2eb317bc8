"""The few calls to NVIDIA's driver that running an engine on a GPU needs: memory, copies, a stream.

The driver's library is on every machine with such a GPU, so nothing has to be installed for them (CUDA Driver API).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.tensors.results import Array

_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_Pointer = ctypes.c_uint64


class NoGpuError(Exception):
    """There is no driver or no GPU here; the text says which."""


@cache
def _driver() -> Any:
    """The driver's library, ready to be used. Raises NoGpuError."""
    found = None
    for name in _LIBRARIES:
        try:
            found = ctypes.CDLL(name)
            break
        except OSError:
            continue
    if found is None:
        raise NoGpuError(f"there is no NVIDIA driver here ({_LIBRARIES[0]} cannot be loaded)")
    status = found.cuInit(0)
    if status:
        raise NoGpuError(f"NVIDIA's driver does not start: {_name_of(found, status)}")
    return found


def _name_of(driver: Any, status: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(text))
    return text.value.decode() if text.value else f"error {status}"


def _call(name: str, *arguments: Any) -> None:
    driver = _driver()
    status = getattr(driver, name)(*arguments)
    if status:
        raise RuntimeError(f"{name}: {_name_of(driver, status)}")


def gpu_names() -> list[str]:
    """Names of the GPUs here; empty if there are none."""
    try:
        count = ctypes.c_int()
        _call("cuDeviceGetCount", ctypes.byref(count))
        return [_gpu_name(number) for number in range(count.value)]
    except (NoGpuError, RuntimeError):
        return []


def _gpu_name(number: int) -> str:
    device, text = ctypes.c_int(), ctypes.create_string_buffer(128)
    _call("cuDeviceGet", ctypes.byref(device), number)
    _call("cuDeviceGetName", text, len(text), device)
    return text.value.decode()


def require_gpu(wanted: str, *next_steps: str) -> None:
    """Raise EngineMissing unless there is a GPU; ``wanted`` says what needs it."""
    try:
        _driver()
        why = "" if gpu_names() else "the driver finds none"
    except NoGpuError as error:
        why = str(error)
    if why:
        raise errors.EngineMissing(
            f"{wanted} needs an NVIDIA GPU: {why}",
            next_steps=next_steps,
        )


class Memory:
    """Memory of the first GPU and a stream on it, for one engine. Raises RuntimeError where the driver does."""

    def __init__(self) -> None:
        device, context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        _call("cuDeviceGet", ctypes.byref(device), 0)
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        _call("cuCtxSetCurrent", context)
        _call("cuStreamCreate", ctypes.byref(stream), 0)
        self.stream = int(stream.value or 0)

    @contextmanager
    def block(self) -> Iterator[Block]:
        """Memory that is freed at the end."""
        block = Block()
        try:
            yield block
        finally:
            block.free()

    def wait(self) -> None:
        """Wait until the stream has done everything."""
        _call("cuStreamSynchronize", ctypes.c_void_p(self.stream))


class Block:
    """A piece of the GPU's memory that can grow; growing loses what it held."""

    def __init__(self) -> None:
        self.address = 0
        self._size = 0

    def grow(self, size: int) -> int:
        """Make it at least ``size`` bytes; returns its address, which is never 0."""
        if not self.address or size > self._size:
            self.free()
            pointer = _Pointer()
            _call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size, 1)))
            self.address, self._size = int(pointer.value), max(size, 1)
        return self.address

    def put(self, array: Array) -> int:
        """Copy an array there; returns the address."""
        plain = np.ascontiguousarray(array)
        self.grow(plain.nbytes)
        if plain.nbytes:
            _call("cuMemcpyHtoD_v2", _Pointer(self.address), plain.ctypes.data_as(ctypes.c_void_p), _size(plain))
        return self.address

    def get(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array of what stands there."""
        array: Array = np.empty(shape, dtype)
        if array.nbytes:
            _call("cuMemcpyDtoH_v2", array.ctypes.data_as(ctypes.c_void_p), _Pointer(self.address), _size(array))
        return array

    def free(self) -> None:
        """Give it back."""
        if self.address:
            _call("cuMemFree_v2", _Pointer(self.address))
            self.address = self._size = 0


def _size(array: Array) -> ctypes.c_size_t:
    return ctypes.c_size_t(array.nbytes)
